"""Where clients hold different coordinates of a separable function, each coordinate goes the way of
a federation of its holders; and what a mask has dropped rests.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import Local
from fedloom.data import from_clients
from fedloom.net import Variables
from fedloom.objectives import Function
from fedloom.views import Importance, Rule, behind_mask, whole
from fedloom.zoo import make_algorithm
from tiny import A, B, models, quadratics

CLIENTS = [0.5, 0.5, 1.0, 1.0]  # the first two hold only the first coordinate
METHODS = {
    "fedavg": {},
    "scaffold": {},
    "scaffold, option I": {"option": 1},
    "feddyn": {"alpha": 0.5},
    "feddc": {"alpha": 0.1},
}


class First(Rule):
    """The first coordinates."""

    fixed = True

    def view(self, x, net, capacity, rnd):
        if capacity == 1:
            return whole(net.layout)
        return behind_mask(torch.arange(int(capacity * net.layout.d)), net.layout)


@pytest.mark.parametrize("method", METHODS)
def test_a_coordinate_goes_the_way_of_its_holders(method):
    name, options = method.partition(",")[0], METHODS[method]
    local = Local(steps=5, lr=0.1, batch=1)
    mixed = models(
        quadratics(
            make_algorithm(name, **options), local=local, submodel=First(), capacities=CLIENTS
        ),
        12,
    )
    alone = from_clients([(A[i][None], B[i][None]) for i in (2, 3)], dtype=torch.float64)
    two = models(quadratics(make_algorithm(name, **options), local=local, data=alone), 12)
    np.testing.assert_allclose(mixed[:, 1], two[:, 1], rtol=0, atol=1e-12)
    assert np.abs(two[-1, 1]) > 0.1  # it would be no test otherwise


def test_a_coordinate_that_few_hold_is_not_slower_with_scaffold():
    ends = [
        models(quadratics(make_algorithm("scaffold"), submodel=First(), capacities=c), 300)[-1]
        for c in (CLIENTS, [1.0] * 4)
    ]
    own = (A[2:] * B[2:]).sum(0) / A[2:].sum(0)
    np.testing.assert_allclose(ends[0][1], own[1], rtol=0, atol=1e-9)
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
def test_weight_decay_leaves_what_fiarse_has_dropped(engine):
    # without a gradient only the decay moves: x shrinks until it is below tau, and stays there
    start = np.array([1.0, -2.0, 1.05, 0.4, 3.0, -1.1, 0.2, 1.5, 0.9, 0.1])
    tau, lr, wd = 1.05, 0.1, 0.6  # the fifth largest of ten
    nothing = Function(f=lambda x, a, b: 0 * x.sum() * b.sum())
    end = models(
        quadratics(
            make_algorithm("fedavg"),
            model=Variables(torch.tensor(start)),
            loss=nothing,
            local=Local(steps=6, lr=lr, batch=1, weight_decay=wd),
            submodel=Importance(),
            capacities=[0.5] * 4,
            engine=engine,
        ),
        1,
    )[-1]
    want = start.copy()
    for _ in range(6):
        want -= lr * wd * np.where(np.abs(want) >= tau, want, 0)
    stopped = np.abs(want) > np.abs(start) * 0.94**6 + 1e-9
    assert 0 < stopped[np.abs(start) >= tau].sum() < 5
    np.testing.assert_allclose(end, want, rtol=0, atol=1e-12)
