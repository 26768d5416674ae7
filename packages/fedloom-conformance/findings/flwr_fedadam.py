"""flwr 1.42.0, FedAdam: the correction of the bias is one step ahead.

Its comment takes alpha_t of Kingma & Ba (arXiv 1412.6980, end of section 2), where t = 1 in the
first step. With tau = 0 the first step then has the length eta in every coordinate.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
strategy = FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=0.0)
strategy.current_arrays = {"x": np.zeros(2)}
arrays = ArrayRecord({"x": Array(np.array([0.5, -3.0]))})
content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
reply = Message(content, dst_node_id=1, message_type="train")
x = strategy.aggregate_train(1, [reply])[0]["x"].numpy()
print("first step", x, "right: [0.1, -0.1]")
factor = np.sqrt(1 - 0.99**2) / (1 - 0.9**2) * (1 - 0.9) / np.sqrt(1 - 0.99)
print("with server_round + 1 = 2 for t:", 0.1 * factor)
