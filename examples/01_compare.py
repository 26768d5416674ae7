"""Four methods on scikit-learn's digits: 50 clients, Dirichlet 0.3, a fifth takes part."""

from fedloom import Experiment, Local
from fedloom.algorithms import FedACG, FedAvg, FedAvgM, Scaffold
from fedloom.data import digits, dirichlet
from fedloom.models import mlp

data = digits(dirichlet(0.3, clients=50))
for algorithm in (FedAvg(), FedAvgM(), Scaffold(), FedACG()):
    result = Experiment(
        algorithm=algorithm,
        model=lambda: mlp(64, (64,), 10),
        data=data,
        rounds=60,
        cohort=0.2,
        local=Local(epochs=2, batch=16, lr=0.1),
    ).run()
    print(f"{result.summary['label']:10} accuracy {result.last:.3f}")
