"""flwr 1.42.0, FedProx: the client's term in the docstring's example has no square.

The docstring gives mu / 2 ||w - w^t||^2 and then an example in PyTorch, which adds (mu / 2) times
the sum of (local_weights - global_weights).norm(2) over the layers. Here both, in numpy.
"""

import numpy as np
from flwr.serverapp.strategy import FedProx

lines = [line.strip() for line in (FedProx.__doc__ or "").splitlines()]
print([line for line in lines if "norm(2)" in line or "|| w - w^t" in line])
mu, layers = 1.0, [np.array([3.0, 4.0]), np.array([0.0, 2.0])]
print("formula", mu / 2 * sum(np.sum(v**2) for v in layers))  # 14.5
print("example", mu / 2 * sum(np.linalg.norm(v) for v in layers))  # 3.5
