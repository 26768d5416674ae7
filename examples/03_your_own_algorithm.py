"""An algorithm of your own: FedAvg whose clients mix in the direction of their last round."""

from typing import Any

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithm import Trait
from fedloom.core.hyper import Share, hyper
from fedloom.core.vector import rec, zeros
from fedloom.data import digits, dirichlet
from fedloom.models import mlp


class Recall(FedAvg):
    """Recall: mix the mean direction of the client's last round into every step.

    server: x        client: d (mean direction of the last round)        up: delta
    """

    traits = frozenset({Trait.READS_THE_MOVE})  # delta / lr_sum is a mean direction
    alpha: Share = hyper(0.9, source="ours")

    def client_init(self, x: Any) -> Any:
        return rec(d=zeros(x))

    def direction(self, x: Any, loc: Any, msg: Any, mem: Any, grad: Any, job: Any) -> Any:
        return self.alpha * grad(x) + (1 - self.alpha) * mem.d, loc

    def finish(self, x: Any, loc: Any, msg: Any, mem: Any, job: Any) -> Any:
        delta = x - msg.x
        return rec(delta=delta, weight=job.weight), rec(d=-delta / job.lr_sum)


result = Experiment(
    algorithm=Recall(alpha=0.8),
    model=lambda: mlp(64, (64,), 10),
    data=digits(dirichlet(0.3, clients=50)),
    rounds=60,
    cohort=0.2,
    local=Local(epochs=2, batch=16, lr=0.1),
).run()
print(f"Recall: accuracy {result.last:.3f}")
