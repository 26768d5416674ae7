"""A tensor that a method leaves on its class is refused in words."""

from __future__ import annotations

import contextlib

import pytest
import torch

import fedloom
from fedloom import FedAvg, Local
from fedloom.errors import ClientError
from tiny import small, trace


def left_on_its_class() -> list[type[FedAvg]]:
    """New classes, for a tensor stays on one."""

    class Leaves(FedAvg):
        def direction(self, x, loc, msg, mem, grad, job):
            Leaves.kept = grad(x)  # type: ignore[attr-defined]
            return Leaves.kept, loc  # type: ignore[attr-defined]

    class Uses(FedAvg):
        kept = torch.zeros(())

        def direction(self, x, loc, msg, mem, grad, job):
            g = grad(x)
            d, Uses.kept = g + 0 * Uses.kept, g.sum()
            return d, loc

    return [Leaves, Uses]


def ends(part, engine):
    """Run it for a round."""
    local = Local(steps=3, batch=4, lr=0.25)
    [*trace(small(part, torch.float64, local=local, engine=engine), 1)]


SAID = "it keeps state outside of its records"
FUNCTORCH = ("functorch", "internal", "vmap_plumbing", "TensorWrapper", "Traceback")


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_run_refuses_a_tensor_on_a_class(which, engine):
    with pytest.raises(ClientError, match=SAID) as caught:
        ends(left_on_its_class()[which](), engine)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("which", [0, 1])
def test_a_tensor_left_on_a_class_is_a_finding_in_words(which):
    part = left_on_its_class()[which]()
    for _ in range(2):
        report = fedloom.check(part, engines=("vectorised:3",))
        assert any(SAID in outcome.why for outcome in report.failures)
        for outcome in report.failures:
            assert not any(word in outcome.why for word in FUNCTORCH), outcome
        with contextlib.suppress(ClientError):  # leaves one of a vmap that has ended
            ends(part, "vectorised:3")
