"""Flower: the strategies of flwr.serverapp around clients in numpy, in one process."""

from flwr import __version__
from flwr.app import Message, MetricRecord, RecordDict
from table import records, strategy_of

from fedloom_conformance.federation import Federation

FRAMEWORK = f"flwr {__version__}"


class Loop:
    """A Grid: its nodes are the round's cohort, and answer at once; for FedProx they add mu."""

    def __init__(self, problem):
        self.fed, self.states, even = Federation(problem), [], [1] * len(problem.data)
        self.sizes = problem.sizes if problem.weights == "sizes" else even

    def get_node_ids(self):
        return list(self.fed.cohorts[len(self.states) - 1])

    def send_and_receive(self, messages, *, timeout=None):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        node, arrays = message.metadata.dst_node_id, message.content["arrays"]
        x = self.fed.flat({name: array.numpy() for name, array in arrays.items()})
        mu = message.content["config"].get("proximal-mu", 0.0)
        y = self.fed.state(self.fed.local(node, x, lambda y, g: g + mu * (y - x)))
        reply = {"arrays": records(y), "metrics": MetricRecord({"num-examples": self.sizes[node]})}
        return Message(RecordDict(reply), reply_to=message)


def train(problem, method, settings):
    loop = Loop(problem)
    keep = lambda _, x: loop.states.append({k: array.numpy().copy() for k, array in x.items()})
    strategy = strategy_of(method, settings, len(problem.cohorts[0]))
    strategy.start(loop, records(problem.start), len(problem.cohorts), evaluate_fn=keep)
    return loop.states[1:]
