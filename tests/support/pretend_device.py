"""A stand-in for a GPU, on any machine: the device `pretend`, a backend of torch's in Python.

Its tensors say that they lie on `pretend:0` and hold real values on the host. They refuse to be
mixed with tensors on the CPU as CUDA does (a single CPU number may enter a pointwise operation),
refuse to become numpy arrays, and refuse a CPU generator. Copies between the devices and values
read by the host are counted. It is stricter than CUDA in one thing: an index on the CPU is refused
everywhere, where CUDA would copy it in silence. All arithmetic is the CPU's, with its bits.

Registering a backend is for the whole process and for good: `register()` is called once in each
process that wants it, a worker process too, and harms nobody who does not name the device.
torch's own fake tensors hold no values, and a backward pass on a fake `cuda` aborts a torch that
was built for CPUs: hence a backend of our own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch

__all__ = ["NAME", "Count", "Pretend", "counted", "register"]

NAME = "pretend"

# what makes the host wait for a value: sizes that depend on values do, too
_READS = (
    "_local_scalar_dense",
    "bincount",
    "equal",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique",
)


class Count:
    """How often something crossed between host and device. to_device, to_host: copies; reads:
    values for which the host waited.
    """

    def __init__(self) -> None:
        self.to_device = self.to_host = self.reads = 0

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return dict(vars(self))


_counts: list[Count] = []
_late: list[RuntimeError] = []  # refused in a backward pass, to be raised behind it


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Inside, crossings are counted."""
    own = Count()
    _counts.append(own)
    try:
        yield own
    finally:
        _counts.remove(own)


def _note(kind: str) -> None:
    for count in _counts:
        setattr(count, kind, getattr(count, kind) + 1)


class Pretend(Tensor):
    """A tensor on the device. inner: its values, on the host; views of it share their memory."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[Pretend], inner: Tensor, requires_grad: bool = False) -> Pretend:
        """Take a tensor on the CPU for the values."""
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=f"{NAME}:0",
            requires_grad=requires_grad,
        )
        made.inner = inner
        return made  # type: ignore[no-any-return]

    # ------------------------------------------------------- what torch asks below its dispatcher
    @property
    def data(self) -> Tensor:
        """The same memory outside of autograd."""
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        if not isinstance(other, Pretend):
            raise RuntimeError(f"the data of a tensor on {NAME} cannot be set to one on the CPU")
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.inner = other.inner

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def tolist(self) -> Any:
        _note("reads")
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        return self.cpu().numpy()

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        copied = Pretend(self.inner.clone(), self.requires_grad)
        if getattr(self, "_is_param", False):
            copied._is_param = True  # type: ignore[attr-defined]
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a tensor on {NAME} is not sent to another process")

    def __repr__(self, **_: Any) -> str:
        return f"{self.inner!r} on {NAME}:0"

    # ------------------------------------------------------------------------------ every operation
    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do it on the values inside, and wrap what comes out."""
        if _late and not _in_backward():
            raise _late.pop()
        kwargs = dict(kwargs or {})
        name, kernel, single, reads, reshapes = _known(func)
        seen: list[Tensor] = []
        inside = _unwrapped(args, seen), {k: _unwrapped(v, seen) for k, v in kwargs.items()}
        if name in ("copy_", "_to_copy"):
            return _copied(func, name, seen, *inside)
        _refuse_mixed(name, single, seen, kwargs)
        device = kwargs.get("device")
        here = device is None or torch.device(device).type == NAME
        if device is not None:
            inside[1]["device"] = torch.device("cpu")
        if reads or _by_mask(name, seen):
            _note("reads")
        out = kernel(*inside[0], **inside[1])
        if reshapes:
            _reshape(func, args, kwargs)
        if not here:
            return out
        return _wrapped(out, {id(t.inner): t for t in seen if isinstance(t, Pretend)})


@functools.cache
def _known(func: Any) -> tuple[str, Callable[..., Any], bool, bool, bool]:
    """Of an operation: its name, what does it, and whether it is pointwise, makes the host wait,
    and changes what a tensor says of itself.
    """
    name: str = func.overloadpacket.__name__
    pointwise, reshapes = (t in func.tags for t in (torch.Tag.pointwise, torch.Tag.inplace_view))
    reads = name in _READS or name.lstrip("_").startswith(_READS)
    return name, _KERNELS.get(name, func), pointwise, reads, reshapes


def _unwrapped(value: Any, seen: list[Tensor]) -> Any:
    """Values in place of our tensors, in lists too; seen: every tensor that is met."""
    if isinstance(value, Tensor):
        seen.append(value)
        return value.inner if isinstance(value, Pretend) else value
    if isinstance(value, list | tuple):
        return type(value)(_unwrapped(v, seen) for v in value)
    return value


def _wrapped(value: Any, known: dict[int, Pretend]) -> Any:
    """Tensors of ours around what an operation gives; known: those that it was given."""
    if isinstance(value, Tensor):
        own = known.get(id(value))
        if own is not None and own.shape != value.shape:
            raise RuntimeError(f"{NAME}: an operation gave a tensor another shape in place")
        return Pretend(value) if own is None else own
    if isinstance(value, list | tuple):
        return type(value)(_wrapped(v, known) for v in value)
    return value


def _reshape(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """What unsqueeze_() and its like have done inside, of what the tensor says of itself."""
    before = torch._C._meta_in_tls_dispatch_include()
    with no_dispatch():
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            func(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # type: ignore[attr-defined, no-any-return]


def _copied(func: Any, name: str, seen: list[Tensor], args: Any, kwargs: dict[str, Any]) -> Any:
    """A copy, perhaps to the other device."""
    ours = [isinstance(t, Pretend) for t in seen]
    if name == "copy_":  # into the first
        to, source = ours[0], ours[1]
    else:
        given = kwargs.get("device")
        to = ours[0] if given is None else torch.device(given).type == NAME
        source = ours[0]
        if given is not None:
            kwargs["device"] = torch.device("cpu")
    if to != source:
        _note("to_device" if to else "to_host")
    out = func(*args, **kwargs)
    if name == "copy_":
        return seen[0]
    if out is args[0] or (to != source and out.data_ptr() == args[0].data_ptr()):
        out = out.clone()  # another device is other memory
    return Pretend(out) if to else out


def _refuse_mixed(name: str, single: bool, seen: list[Tensor], kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError for operands on two devices; single: one number of the host is allowed."""
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
    if all(isinstance(t, Pretend) for t in seen):
        return
    if any(t.ndim or not single for t in seen if not isinstance(t, Pretend)):
        error = RuntimeError(
            f"Expected all tensors to be on the same device, but found {NAME}:0 and cpu: mixed "
            f"devices in aten.{name}"
        )
        if not _in_backward():
            raise error
        _late.append(error)  # torch ends the process when a device in Python raises there


def _by_mask(name: str, seen: list[Tensor]) -> bool:
    """Whether an index is a mask, whose number of entries the host must know."""
    return name == "index" and any(t.dtype == torch.bool for t in seen[1:])


# ------------------------------------------------------- what torch asks of devices but not of CPUs
def _lstm_cell(i: Tensor, h: Tensor, cx: Tensor, *biases: Tensor | None) -> tuple[Tensor, ...]:
    """One step of an LSTM from the products of inputs and state: h, c, and the four gates."""
    sums = functools.reduce(torch.add, [b for b in biases if b is not None], i + h)
    enter, forget, cell, leave = sums.chunk(4, 1)
    enter, forget, leave = enter.sigmoid(), forget.sigmoid(), leave.sigmoid()
    cell = cell.tanh()
    cy = forget * cx + enter * cell
    return leave * cy.tanh(), cy, torch.cat([enter, forget, cell, leave], 1)


def _lstm_cell_back(
    gh: Tensor | None, gc: Tensor | None, cx: Tensor, cy: Tensor, gates: Tensor, biased: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Its gradients: of the sums in the gates, of c, of the biases."""
    enter, forget, cell, leave = gates.chunk(4, 1)
    gh = torch.zeros_like(cx) if gh is None else gh
    seen = cy.tanh()
    back = gh * leave * (1 - seen**2) + (0 if gc is None else gc)
    parts = [back * cell * enter * (1 - enter), back * cx * forget * (1 - forget)]
    parts += [back * enter * (1 - cell**2), gh * seen * leave * (1 - leave)]
    sums = torch.cat(parts, 1)
    return sums, back * forget, sums.sum(0) if biased else None


_KERNELS = {
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_back,
}


def _made(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of torch's that makes a tensor out of nothing, as one on the device."""

    @functools.wraps(make)
    def factory(*args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("generator") is not None:
            raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
        left = {k: kwargs[k] for k in ("dtype", "memory_format") if kwargs.get(k) is not None}
        return Pretend(make(*args, **left))

    return factory


def _filled(source: Tensor, into: Tensor, non_blocking: bool = False) -> Tensor:
    """What torch.tensor() does below its dispatcher: values on the host into a new tensor."""
    if isinstance(source, Pretend) or not isinstance(into, Pretend):
        raise NotImplementedError(f"{NAME}: a copy below the dispatcher that is no torch.tensor()")
    _note("to_device")
    into.inner.copy_(source)
    return into


_FACTORIES: dict[str, Callable[..., Tensor]] = {
    "empty.memory_format": torch.empty,
    "empty_strided": torch.empty_strided,
    "arange": torch.arange,
    "arange.start": torch.arange,
    "arange.start_step": torch.arange,
    "randperm": torch.randperm,
    "eye": torch.eye,
    "linspace": torch.linspace,
}


@functools.cache
def register() -> str:
    """Make the device known to this process -> its name. Once is enough."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)  # type: ignore[attr-defined]
    library = torch.library.Library("aten", "IMPL")
    for name, make in _FACTORIES.items():
        library.impl(name, _made(make), "PrivateUse1")
    library.impl("_copy_from", _filled, "PrivateUse1")
    _kept.append(library)  # what it has registered goes with it
    # backward in the thread that asks for it, as on a CPU: torch would start one for the device,
    # and a transform of torch.func does not survive that where the device is written in Python
    torch.autograd.set_multithreading_enabled(False)
    return NAME


_kept: list[Any] = []
