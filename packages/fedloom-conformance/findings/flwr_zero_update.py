"""flwr 1.42.0, server-side fixed clipping: a client whose model did not move stops the round."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 1)
strategy.current_arrays = ArrayRecord({"x": Array(np.ones(2))})
arrays = ArrayRecord({"x": Array(np.ones(2))})
content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
try:
    strategy.aggregate_train(1, [Message(content, dst_node_id=1, message_type="train")])
except ZeroDivisionError as error:
    print("ZeroDivisionError:", error)  # clipping_norm / input_norm; a zero needs no clipping
