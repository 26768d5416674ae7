"""torch.func.grad_and_value from its own primitives, so with its bits. The function itself imports
torch's compiler at its first call, about three seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._C._functorch import _unwrap_for_grad, _wrap_for_grad
from torch._functorch.eager_transforms import enable_inplace_requires_grad, grad_increment_nesting


def grad_and_value(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient (of the shape of x) and the value (0-d) of a function at x; zeros if it does not
    depend on x. It may be called inside of torch.vmap, and be differentiated once more.

    >>> grad_and_value(lambda x: (x**2).sum(), torch.tensor([1.0, 2.0]))
    (tensor([2., 4.]), tensor(5.))
    """
    with grad_increment_nesting() as level, torch.enable_grad():
        point = _wrap_for_grad(x, level)
        with enable_inplace_requires_grad(True):
            point.requires_grad_()
        value, derivative = function(point), None
        if value.requires_grad:
            # with a graph of its own, because the backward pass runs without gradients otherwise
            (derivative,) = torch.autograd.grad(value, point, create_graph=True, allow_unused=True)
        gradient = torch.zeros_like(point) if derivative is None else derivative
        return _unwrap_for_grad(gradient, level), _unwrap_for_grad(value, level)
