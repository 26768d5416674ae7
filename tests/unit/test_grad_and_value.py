"""The gradient for vmapped steps: torch.func's bits, without torch's compiler."""

import pytest
import torch
from torch import Tensor, vmap

from fedloom.engines.grad_and_value import grad_and_value


def loss(x: Tensor, data: Tensor) -> Tensor:
    """A small network's mean loss: 12 weights, data (B, 4)."""
    return ((data @ x.view(4, 3)).relu() ** 2).mean().sqrt()


@pytest.mark.parametrize("shared", [False, True])
def test_it_has_the_bits_of_torch_func(shared: bool) -> None:
    x, data = torch.randn(12) if shared else torch.randn(5, 12), torch.randn(5, 7, 4)
    dims = (None if shared else 0, 0)
    ours = vmap(lambda x, d: grad_and_value(lambda y: loss(y, d), x), in_dims=dims)(x, data)
    theirs = vmap(torch.func.grad_and_value(loss), in_dims=dims)(x, data)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_it_is_differentiated_once_more() -> None:
    x, data, v = torch.randn(12), torch.randn(7, 4), torch.randn(12)
    ours = torch.func.grad(lambda x: grad_and_value(lambda y: loss(y, data), x)[0] @ v)(x)
    theirs = torch.func.grad(lambda x: torch.func.grad(loss)(x, data) @ v)(x)
    assert torch.equal(ours, theirs) and ours.any()


def test_what_does_not_depend_on_x_has_the_gradient_zero() -> None:
    x = torch.randn(3)
    for constant in (torch.tensor(2.0), (x**2).sum()):
        gradient, value = grad_and_value(lambda y, c=constant: c, x)
        assert torch.equal(gradient, torch.zeros(3)) and value == constant


def test_an_error_of_the_function_leaves_no_trace() -> None:
    def wrong(x: Tensor) -> Tensor:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        grad_and_value(wrong, torch.ones(2))
    assert not torch._C._functorch.maybe_current_level()
