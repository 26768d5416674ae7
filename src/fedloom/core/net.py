"""Any nn.Module as a function of one flat vector."""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import CompositionError, ConfigError, DataError
from .blocks import Block, Blocks, find_blocks, refuse_blocks
from .dropout import HashedDropout, restore, swap
from .layout import Layout
from .module_buffers import ModuleBuffers
from .products import in_bfloat16, in_onednn
from .vector import Vec


def logits_of(outputs: Any) -> Any:
    """The field `logits` of an output that has it; any other output as it is."""
    logits = None if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    return outputs if logits is None else logits


class Variables(nn.Module):
    """A model that is nothing but a vector, for objectives that are functions of x itself.

    >>> Net(Variables(torch.zeros(3))).layout.d
    3
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(len(inputs), -1)


def _copied(module: nn.Module) -> nn.Module:
    """A copy of a model, so that the caller's keeps its weights. Raises ConfigError."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # a user's parts may raise anything
        why = str(error).partition(". ")[0]
        raise ConfigError(
            f"the model {type(module).__name__} cannot be copied ({why}), and a run works on a "
            "copy; take torch.nn.utils.parametrizations instead of weight_norm or spectral_norm of "
            "torch.nn.utils, and keep open files, locks and generators outside of the model"
        ) from error


class _Slot(NamedTuple):
    """A place of a trained parameter in a module, and the parameter's index in the layout."""

    owner: nn.Module
    key: str
    place: int


def _slots_of(module: nn.Module, params: Sequence[Tensor]) -> list[_Slot]:
    """Every place once, also in a module that is used twice; a tied parameter has several."""
    places = {id(p): i for i, p in enumerate(params)}
    return [
        _Slot(owner, key, places[id(p)])
        for owner in module.modules()
        for key, p in owner._parameters.items()
        if id(p) in places
    ]


def _called_with(slots: list[_Slot], pieces: list[Tensor], module: nn.Module, inputs: Any) -> Any:
    """The module's output with these tensors in place of its parameters.

    Not torch's functional_call: it restores a module that is used twice to the first call's
    tensors, and looks up all names again at every call.
    """
    params = [slot.owner._parameters[slot.key] for slot in slots]
    try:
        for slot in slots:
            slot.owner._parameters[slot.key] = pieces[slot.place]  # type: ignore[assignment]
        return module(inputs)
    finally:
        for slot, param in zip(slots, params, strict=True):
            slot.owner._parameters[slot.key] = param


class Net:
    """A module whose trainable parameters are the pieces of a vector x (d,).

    x holds the parameters with requires_grad, in the module's order; frozen ones stay in the
    module. Floating buffers (the statistics of batch norm) are a second vector, never part of x.
    The module is copied; the caller's own does not change.

    >>> net = Net(nn.Linear(2, 1))
    >>> x = torch.tensor([1.0, 2.0, 3.0])
    >>> net(x, torch.ones(1, 2)).detach()
    tensor([[6.]])
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype | None = None) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigError(
                f"the model {type(module).__name__} is a ScriptModule of torch.jit, which a run "
                "cannot copy and bind to a vector; give the nn.Module that it was made of"
            )
        lazy = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
        if any(isinstance(t, lazy) for t in [*module.parameters(), *module.buffers()]):
            raise DataError(
                f"{type(module).__name__} has lazy layers without shapes; "
                "call it once on a batch before you hand it over"
            )
        self.module = swap(_copied(module)).to(dtype=dtype)
        trained = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        if not trained:
            raise DataError(
                f"{type(module).__name__} has no parameter with requires_grad: nothing to train"
            )
        kinds = {p.dtype for _, p in trained}
        if len(kinds) > 1 or not trained[0][1].is_floating_point():
            raise DataError(
                f"{type(module).__name__} mixes parameters of {sorted(map(str, kinds))}; "
                "make them one floating type, for example with module.float()"
            )
        self.layout = Layout.of(trained)
        self.params = [p for _, p in trained]
        self._module_buffers = ModuleBuffers(self.module)
        self.draws = any(isinstance(m, HashedDropout) for m in self.module.modules())
        self._recurrent = any(isinstance(m, nn.RNNBase) for m in self.module.modules())
        self._start = torch.cat([p.detach().reshape(-1) for p in self.params])
        self._start_buffers = self.buffers()
        self._bound: Tensor | None = None
        self.pieces: list[Tensor] = []  # of the vector that is bound
        self._live: Tensor | None = None
        self.bf16 = False  # products and convolutions in bfloat16, see Local.precision
        self.onednn = False  # large products of linear layers in oneDNN

    @property
    def dtype(self) -> torch.dtype:
        """The type of x."""
        return self._start.dtype

    @property
    def device(self) -> torch.device:
        """Where x lives."""
        return self._start.device

    def to(self, device: torch.device | str) -> Net:
        """Move to a device, in place."""
        self._module_buffers.put_back()
        self.module.to(device)
        # a module gets new buffers on another device, and on some also new parameters
        self.params = [p for p in self.module.parameters() if p.requires_grad]
        self._module_buffers = ModuleBuffers(self.module)
        self._start = self._start.to(device)
        self._start_buffers = self._start_buffers.to(device)
        self._bound = self._live = None
        return self

    def init(self) -> Vec:
        """The weights that the module came with, as x (d,)."""
        return self._start.clone()

    def init_buffers(self) -> Vec:
        """The floating buffers that the module came with, as one vector; empty if it has none."""
        return self._start_buffers.clone()

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Set the initial values: {name: tensor} of the trained parameters, and of buffers if
        given.

        Raises DataError for a missing, misshapen or unknown entry.
        """
        tied: dict[str, str] = {}  # every name of a tensor -> its first one
        first: dict[int, str] = {}
        for kind in (self.module.named_parameters, self.module.named_buffers):
            for name, tensor in kind(remove_duplicate=False):
                tied[name] = first.setdefault(id(tensor), name)
        if unknown := sorted(set(weights) - set(tied)):
            raise DataError(f"weights name '{unknown[0]}', which the model does not have")
        with torch.no_grad():
            state = self.module.state_dict()
            for name, value in weights.items():
                if name in state and state[name].shape != value.shape:
                    raise DataError(
                        f"weights give '{name}' the shape {list(value.shape)}, "
                        f"but the model has {list(state[name].shape)}"
                    )
        by_first_name = {tied[name]: value for name, value in weights.items()}
        self._start = self.layout.flatten(by_first_name).to(self._start)
        self.module.load_state_dict(by_first_name, strict=False)
        self._module_buffers = ModuleBuffers(self.module)
        self._start_buffers = self.buffers()
        self._bound = self._live = None

    @property
    def buffer_layout(self) -> Layout:
        """The place of each floating buffer in the vector of them."""
        return self._module_buffers.layout

    def buffers(self) -> Vec:
        """The module's floating buffers now, as one new vector, also those that forward assigned.
        Raises AuthorError for one that forward gave another shape.
        """
        return self._module_buffers.vector(self.params[0])

    def load_buffers(self, values: Vec) -> None:
        """Set the module's floating buffers, and reset its counters to their initial values."""
        self._module_buffers.load(values)

    def changed_buffer(self, loaded: Vec) -> str | None:
        """The name of the first floating buffer that forward has written or assigned since these
        were loaded; None: there is none.
        """
        return self._module_buffers.changed(loaded)

    def changed_counter(self) -> str | None:
        """The name of the first buffer of whole numbers that is not what the module came with."""
        return self._module_buffers.changed_counter()

    def model_state(self) -> list[Any]:
        """All tensors and numbers that a forward may read beside its inputs, also those that are no
        buffers.
        """
        values = [v for name, v in vars(self).items() if not name.startswith("_")]
        values += [v for part in self.module.modules() for v in vars(part).values()]
        values += [*self.module.parameters(), *self.module.buffers()]
        return [v for v in values if isinstance(v, Tensor | int | float)]

    def bind(self, x: Vec) -> None:
        """Make the module's parameters the pieces of x, without a copy."""
        if x is not self._bound:
            self._live = None
            self.pieces = self.layout.pieces(x)
            for param, piece in zip(self.params, self.pieces, strict=True):
                param.data = piece
            self._bound = x

    def live(self, x: Vec) -> Tensor:
        """Bind x and return the handle that stands for it in a loss that will be differentiated.

        Calling the net with the handle runs the module itself, at no cost; with any other vector it
        is a functional call. The handle is itself a leaf, so that a loss may also use x directly.
        """
        if self._live is None or x is not self._bound:
            self.bind(x)
            self._live = x.detach().requires_grad_()
        return self._live

    def train(self, mode: bool = True) -> None:
        """Switch layers such as dropout between training and evaluation."""
        if self.module.training is not mode:
            self.module.train(mode)

    def __call__(self, x: Vec, inputs: Any) -> Any:
        """The module's output on `inputs` with parameters x (d,); its `logits` if it has them, as
        Hugging Face's models do.
        """
        return logits_of(self.raw(x, inputs))

    def raw(self, x: Vec, inputs: Any) -> Any:
        """The module's output with parameters x (d,), unchanged."""
        if x is self._live:
            return self._computed(self.module, inputs)
        pieces = self.layout.pieces(x)
        return self._computed(lambda v: _called_with(self._slots, pieces, self.module, v), inputs)

    def evaluated(self, inputs: Any) -> Any:
        """The module's output on `inputs` with the parameters that are bound, in full precision."""
        return in_onednn(self.module, inputs) if self.onednn else self._quiet(self.module, inputs)

    def _computed(self, forward: Callable[[Any], Any], inputs: Any) -> Any:
        if self.bf16:
            return in_bfloat16(functools.partial(self._quiet, forward), inputs, self._start)
        return in_onednn(forward, inputs) if self.onednn else self._quiet(forward, inputs)

    def _quiet(self, forward: Callable[[Any], Any], inputs: Any) -> Any:
        """Without the warning that the weights of an nn.LSTM are no one piece of memory: they are
        pieces of x, which cuDNN puts together at every call.
        """
        if not (self._recurrent and self.device.type == "cuda"):
            return forward(inputs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single")
            return forward(inputs)

    @functools.cached_property
    def _slots(self) -> list[_Slot]:
        return _slots_of(self.module, self.params)

    @functools.cached_property
    def _slots_of_blocks(self) -> dict[str, list[_Slot]]:
        children = {b.name: self.module.get_submodule(b.name) for b in self._blocks.parts}
        return {name: _slots_of(child, self.params) for name, child in children.items()}

    def full(self, x: Vec, inputs: Any) -> Any:
        """As the call, but with all parameters, if the net of a view draws a part for each step."""
        return self(x, inputs)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, layers such as dropout and batch norm are in evaluation mode; afterwards every
        layer is in its former mode. The scaler of a slice stays on: a teacher has it too.
        """
        # cuDNN differentiates recurrent layers in training mode only; without dropout the mode
        # changes nothing else about them
        switched = [
            m
            for m in self.module.modules()
            if m.training
            and not (isinstance(m, nn.RNNBase) and m.dropout == 0)
            and not getattr(m, "trained_with", False)  # what training multiplies by, a teacher too
        ]
        for m in switched:
            m.training = False
        try:
            yield
        finally:
            for m in switched:
                m.training = True

    # --------------------------------------------------------------------------------- its blocks
    @functools.cached_property
    def _blocks(self) -> Blocks:
        return find_blocks(self.module, self.params)

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the module's blocks in the order they run in; empty if it has none.

        They are the children of an nn.Sequential, or those that another module lists in an
        attribute `blocks`, whose composition is its forward.

        >>> Net(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))).blocks
        ('0', '1')
        """
        return self._blocks.names

    def need_blocks(self, user: str, trained: bool = False) -> None:
        """Raise CompositionError naming `user` and the module if it has no two blocks that hold all
        of x; trained: also if nothing before the last block is trained.
        """
        refuse_blocks(self.module, self._blocks, user, trained)

    def check_blocks(self, user: str, inputs: Any, trained: bool = False) -> None:
        """need_blocks(), and try on `inputs` that the blocks one after another are the module.

        Raises CompositionError.
        """
        self.need_blocks(user, trained)
        x = self.init()
        with torch.no_grad(), self.evaluating():
            whole, parts = self(x, inputs), self.path([x] * len(self.blocks), inputs)
        fits = isinstance(whole, Tensor) and isinstance(parts, Tensor)
        if not fits or whole.shape != parts.shape or not torch.allclose(whole, parts, 1e-3, 1e-5):
            raise CompositionError(
                f"{user} and {type(self.module).__name__}: its blocks {', '.join(self.blocks)}, "
                "run one after another, do not give its output; put what its forward does between "
                "them into the blocks"
            )

    def _run(self, block: Block, x: Vec, inputs: Any, pieces: dict[int, list[Tensor]]) -> Any:
        if block.overwrites and isinstance(inputs, Tensor):
            inputs = inputs.clone()  # what came before is read again: by another path, by a loss
        child = self.module.get_submodule(block.name)
        if (x is self._live and id(x) not in pieces) or not block.places:
            return self._computed(child, inputs)
        if id(x) not in pieces:
            pieces[id(x)] = self.layout.pieces(x)
        slots, parts = self._slots_of_blocks[block.name], pieces[id(x)]
        return self._computed(lambda v: _called_with(slots, parts, child, v), inputs)

    def path(self, xs: Sequence[Vec], inputs: Any, start: int = 0) -> Any:
        """Run block start + b with the vector xs[b] (d,), on what the block before it gives. Fewer
        vectors than blocks stop early. Raises DataError for more vectors than blocks.
        """
        last = start + len(xs)
        if start < 0 or last > len(self.blocks):
            raise DataError(
                f"path() got {len(xs)} vectors from block {start} on, but "
                f"{type(self.module).__name__} has {len(self.blocks)} blocks"
            )
        pieces: dict[int, list[Tensor]] = {}
        for block, x in zip(self._blocks.parts[start:last], xs, strict=True):
            inputs = self._run(block, x, inputs, pieces)
        return inputs

    def stages(self, x: Vec, inputs: Any) -> list[Any]:
        """The outputs of all blocks in one forward pass with x (d,); the last is net(x, inputs)."""
        out: list[Any] = []
        pieces: dict[int, list[Tensor]] = {}
        for block in self._blocks.parts:
            inputs = self._run(block, x, inputs, pieces)
            out.append(inputs)
        return out

    def features(self, x: Vec, inputs: Any) -> Tensor:
        """The input of the last block, flattened: (B, F)."""
        self.need_blocks("net.features")
        return self._flat(self.path([x] * (len(self.blocks) - 1), inputs))

    def both(self, x: Vec, inputs: Any) -> tuple[Tensor, Any]:
        """features(x, inputs) (B, F) and net(x, inputs), in one forward pass."""
        self.need_blocks("net.both")
        *_, h, outputs = self.stages(x, inputs)
        return self._flat(h), outputs

    def _flat(self, h: Any) -> Tensor:
        if not isinstance(h, Tensor):
            raise CompositionError(
                f"the last block of {type(self.module).__name__} gets a {type(h).__name__}; "
                "features must be one tensor (B, ...)"
            )
        return h.flatten(1)

    def export(self, x: Vec, buffers: Vec | None = None) -> nn.Module:
        """A free-standing copy of the module with these weights, in evaluation mode."""
        with torch.no_grad():
            self.load_buffers(self.buffers() if buffers is None else buffers)
            module = restore(copy.deepcopy(self.module))
            params = [p for p in module.parameters() if p.requires_grad]
            for param, piece in zip(params, self.layout.pieces(x), strict=True):
                param.data = piece.detach().clone()
        return module.eval()
