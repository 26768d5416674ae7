"""A step's operations on tensors, written down while they are done: what recorded.py replays.

Every tensor that a step reads is an input, found by identity, or was made by the step. A step that
reads another one, reads a value on the host, draws from a generator or changes the model cannot be
written down. torch's make_fx would write the same graph, but loads torch's compiler for it, in
every process.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from ..core.rng import others_now
from ..core.vector import leaves, tree
from .by_row import ByRow, SideBySide, joined
from .cuda_graph import CudaGraph

# operations that give what a value was; functions that read one, and are no operations
_READ = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_UNSEEN = {"numpy", "tolist", "__array__", "__dlpack__"}
_SAME = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}  # give the same memory
_COPYING = {torch.ops.aten.copy_.default, torch.ops.aten.where.self}  # also from the host
_PACKAGES = [Path(torch.__file__).parent, Path(__file__).parent.parent]

ModelState = Callable[[], list[Any]]  # the tensors and numbers that the model holds now
Replay = Callable[[Sequence[Tensor]], Any]


class StepGraph(NamedTuple):
    """result: what a step gave, a tuple of records. replay: does the same operations, so many, on
    other inputs; why: it must not be used, or "".
    """

    result: Any
    replay: Replay
    operations: int
    why: str


def write_step(
    do: Callable[..., Any], arguments: tuple[Any, ...], inputs: Sequence[Tensor], state: ModelState
) -> StepGraph:
    """Do a step, do(*arguments), and write it down as a function of these inputs: the tensors of
    the arguments, and what the step reads beside them. Of a function by row one row is written.
    Raises CaptureError.
    """
    rows, stacked, first = [arguments], [False] * len(inputs), inputs
    computing: list[Callable[[], Any]] = [lambda: do(*arguments)]
    if isinstance(do, ByRow):
        rows, dims = do.rows(*arguments), zip(arguments, do.dims(*arguments), strict=True)
        own = [dim == 0 for value, dim in dims for _ in tensors_of(value)]
        stacked[: len(own)] = own
        first = [*tensors_of(*rows[0]), *inputs[len(own) :]]
        computing = do.computing(rows)
    writer, before = _Writer(first), _around(inputs, state)
    with writer, _Reading(writer):
        result = computing[0]()
    writer.end([*leaves(*result)])
    results = [result, *(compute() for compute in computing[1:])]
    result = joined(results) if isinstance(do, ByRow) else result
    for why, now in _around(inputs, state).items():
        if before[why] != now:
            writer.refuse(why)
    forward: Callable[..., Sequence[Tensor]] = lambda *inputs: []
    used = writer.used()
    if not writer.why:
        forward = fx.GraphModule(writer.constants, writer.graph).forward
        device = inputs[0].device if inputs[0].is_cuda else None
        if isinstance(do, ByRow):
            forward = SideBySide(forward, [*compress(stacked, used)], len(rows), device)
        if device is not None:
            forward = CudaGraph(forward, [*compress(inputs, used)])
    like = [tree(lambda v: None, part) for part in result]

    def replay(inputs: Sequence[Tensor]) -> Any:
        with torch.no_grad():
            outputs = iter(forward(*compress(inputs, used)))
        return tuple(tree(lambda _: next(outputs), part) for part in like)

    operations = len(rows) * (len(writer.graph.nodes) - sum(used))
    return StepGraph(result, replay, operations, writer.why)


def tensors_of(*values: Any) -> list[Tensor]:
    """The tensors of some records; a tuple in them is a batch."""
    tensors: list[Tensor] = []
    for v in leaves(*values):
        tensors.extend(v if isinstance(v, tuple) else (v,))
    return tensors


def _around(inputs: Sequence[Tensor], state: ModelState) -> dict[str, Any]:
    """{what a step may not do: what would be another one afterwards}."""
    return {
        "it writes into a tensor that it is given": [v._version for v in inputs],
        "the model changes what it holds": [id(v) if isinstance(v, Tensor) else v for v in state()],
        "it draws random numbers of Python's or numpy's": others_now(),
    }


class _Operations:
    """Writes down every operation. In a class that is a mode itself torch would load its compiler
    for it, which takes seconds.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph, self.constants, self.why = fx.Graph(), dict[str, Tensor](), ""
        self._nodes, self._device = WeakTensorKeyDictionary(), inputs[0].device
        self._fixed: set[fx.Node] = set()  # what does not depend on the inputs
        self._placeholders = [self.graph.placeholder(f"v{n}") for n in range(len(inputs))]
        for v, node in zip(inputs, self._placeholders, strict=True):
            if v not in self._nodes:
                self._nodes[v] = node

    def refuse(self, why: str) -> None:
        """Make no record. The first reason counts."""
        self.why = self.why or f"{why}{_line()}"

    def end(self, outputs: list[Any]) -> None:
        """Write down what the step gives."""
        if any(v not in self._nodes for v in outputs):
            self.refuse("it gives a tensor that no operation made")
        if not self.why:
            self.graph.output([self._nodes[v] for v in outputs])
            self.graph.eliminate_dead_code()

    def used(self) -> list[bool]:
        """Which inputs the graph reads: it has no others."""
        used = [bool(node.users) for node in self._placeholders]
        for node in self._placeholders:
            if not node.users:
                self.graph.erase_node(node)
        return used

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.why:
            self._write(func, args, kwargs or {}, out)
        return out

    def _write(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        for v in tensors:
            if v not in self._nodes:
                if func is not torch.ops.aten.lift_fresh.default:
                    shape = list(v.shape)
                    return self.refuse(f"it reads a tensor {shape} of neither model, part nor loc")
                self._nodes[v] = self._constant(v)
        nodes = [self._nodes[v] for v in tensors]
        fixed = self._fixed.issuperset(nodes)
        made = [v for v in tree_leaves(out) if isinstance(v, Tensor)]
        varying = {v for v, n in zip(tensors, nodes, strict=True) if n not in self._fixed}
        # a graph on CUDA reads other devices once, when it is made: of a number that does no harm
        number = torch.Tag.pointwise in func.tags and func not in _COPYING
        for v in () if fixed else (*tensors, *made):
            if v.device != self._device and (v.ndim or v in varying or not number):
                return self.refuse(f"it reads or makes a tensor on {v.device}")
        if not fixed and func.overloadpacket.__name__.endswith("_"):
            self._vary(tensors[0])
        if fixed and tensors and any(v.device != tensors[0].device for v in made):
            self._nodes[out] = self._constant(out)  # a number of the program, moved to a GPU
            return None
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self.refuse("it draws from torch's generator")
        if not fixed and not _READ.isdisjoint(func.tags):
            return self.refuse(f"it reads a value ({func})")
        if func in _SAME or func is torch.ops.aten.lift_fresh.default:
            self._nodes[out] = nodes[0]
            return None
        if torch.Tag.inplace_view in func.tags:  # another view under the same name
            _, name, overload = str(func).split(".")
            func = getattr(getattr(torch.ops.aten, name.removesuffix("_")), overload)
        args, kwargs = tree_map_only(Tensor, self._nodes.__getitem__, (args, kwargs))
        node = self.graph.call_function(func, args, kwargs)
        results = [(out, node)]
        if isinstance(out, (tuple, list)):
            results = [(v, self._call(operator.getitem, node, n)) for n, v in enumerate(out)]
        for v, node in results:
            if isinstance(v, Tensor):
                self._nodes[v] = node
                self._fixed |= {node} if fixed else set()
        return None

    def _vary(self, written: Tensor) -> None:
        """What lies in the memory of a tensor that is written into depends on the inputs, too."""
        place = written.untyped_storage().data_ptr()
        for v, node in self._nodes.items():  # type: ignore[no-untyped-call]  # torch has no types
            if node in self._fixed and v.untyped_storage().data_ptr() == place:
                self._fixed.remove(node)

    def _constant(self, value: Tensor) -> fx.Node:
        """A number of the program, such as torch.tensor(2.0): every replay has its own."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value.clone()
        node = self._call(torch.ops.aten.clone.default, self.graph.get_attr(name))
        self._fixed.add(node)
        return node

    def _call(self, func: Callable[..., Any], *args: Any) -> fx.Node:
        return self.graph.call_function(func, args)


class _Writer(_Operations, TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types
    """Writes down every operation inside of a with statement."""


class _Reading(TorchFunctionMode):
    """Notices functions that read a tensor's values, and are no operations."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self._writer = writer

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch.overrides."""
        if getattr(func, "__name__", "") in _UNSEEN:
            self._writer.refuse(f"it reads a value ({func.__name__})")
        return func(*args, **(kwargs or {}))


def _line() -> str:
    """The line of a user's that the step is at, in brackets; "" if there is none."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename == __file__ and frame.name == write_step.__name__:
            return ""
        if not any(Path(frame.filename).is_relative_to(folder) for folder in _PACKAGES):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""
