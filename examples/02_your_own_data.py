"""Your own arrays, one pair per client; your own module, loss and metric."""

import numpy as np
from torch import nn

from fedloom import Experiment, Local
from fedloom.algorithms import Scaffold
from fedloom.data import from_clients

rng = np.random.default_rng(0)
truth = rng.normal(size=8)


def hospital(shift: float, patients: int) -> tuple[np.ndarray, np.ndarray]:
    """Measurements (patients, 8) around the hospital's mean, and noisy outcomes (patients, 1)."""
    measured = rng.normal(shift, 1.0, (patients, 8))
    return measured, (measured @ truth + 0.1 * rng.normal(size=patients))[:, None]


clients = [hospital(shift, 20 + 10 * n) for n, shift in enumerate(np.linspace(-1, 1, 12))]
result = Experiment(
    algorithm=Scaffold(),
    model=lambda: nn.Linear(8, 1),
    data=from_clients(clients, test=hospital(0.0, 500)),
    rounds=60,
    cohort=6,
    local=Local(steps=5, batch=10, lr=0.05),
    objective=lambda outputs, targets: nn.functional.huber_loss(outputs, targets),
    metrics={"mae": lambda outputs, targets: (outputs - targets).abs()},
).run()
off = np.abs(result.model.get_parameter("weight").detach().numpy()[0] - truth).max()
print(f"mean absolute error {result.last:.3f}, largest error of a coefficient {off:.3f}")
