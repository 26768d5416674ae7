"""A client's answer on its way into the sums."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..algorithm import Algorithm, Job
from ..errors import ClientError
from ..vector import Rec, leaves, tree
from ..views.base import View

__all__ = ["numbers", "spread", "uniform_of"]


def uniform_of(alg: Algorithm, up: Rec, job: Job) -> Rec:
    """What enters the plain means of an answer. Raises ClientError for other fields than said."""
    uniform = alg.uniform(up, job._replace(full=None))
    if uniform._fields != alg.means:
        raise ClientError(
            f"{alg.method}: uniform() returns the fields {uniform._fields}, "
            f"but `means` says {alg.means}"
        )
    return uniform


def numbers(up: Rec) -> Rec:
    """An answer whose single values are Python floats: they travel as doubles, also where an engine
    computes numbers of the job as tensors.
    """
    if not any(isinstance(v, Tensor) and not v.ndim for v in leaves(up)):
        return up
    return tree(lambda v: float(v) if isinstance(v, Tensor) and not v.ndim else v, up)


def spread(part: Rec, view: View) -> Rec:
    """One answer at the server's length d; 0 where the client holds nothing."""
    held = view.held
    if held is None:
        return part

    def one(v: Any) -> Any:
        if not isinstance(v, Tensor) or v.shape != held.shape:
            return v
        return v.new_zeros(view.d).index_copy(0, held, v)

    return tree(one, part)
