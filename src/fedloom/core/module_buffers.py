"""The buffers of a module: the floating ones as a vector, and how all of them begin again."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import AuthorError
from .layout import Layout
from .vector import Vec, as_bytes


class _Place(NamedTuple):
    """Where a module holds a buffer, by which name, and the tensor that belongs there."""

    owner: nn.Module
    key: str
    tensor: Tensor | None


class ModuleBuffers:
    """The buffers that a module has now. Floating ones (the statistics of batch norm) are pieces of
    a vector; others (counters) are not averaged: every client begins with their present values.

    What counts is the place in the module, because a forward may write into a buffer or assign a
    new tensor to it. load() puts the module's own tensors back.
    """

    def __init__(self, module: nn.Module) -> None:
        self._name = type(module).__name__
        self._places = [
            _Place(owner, key, tensor)
            for owner in module.modules()
            for key, tensor in owner._buffers.items()
        ]
        buffers = list(module.named_buffers())
        floating = [(name, b) for name, b in buffers if b.is_floating_point()]
        self.layout = Layout.of(floating)
        self._tensors = [b for _, b in floating]
        by_tensor: dict[int, list[_Place]] = {}
        for place in self._places:
            by_tensor.setdefault(id(place.tensor), []).append(place)
        self._floating = [by_tensor[id(b)] for b in self._tensors]  # a shared buffer has several
        counters = {name: b for name, b in buffers if not b.is_floating_point()}
        self._counters = [(b, b.clone()) for b in counters.values()]
        self._places_of_counters = {name: by_tensor[id(b)][0] for name, b in counters.items()}
        self._versions = [tensor._version for tensor in self._tensors]  # as load() left them

    def vector(self, like: Tensor) -> Vec:
        """The floating buffers as one new vector of the type of `like`. Raises AuthorError if
        forward has assigned what cannot be averaged.
        """
        if not self._tensors:
            return like.detach().new_empty(0)
        pieces = []
        for b, places in enumerate(self._floating):
            first = places[0]
            now = first.owner._buffers.get(first.key)
            if now is None or now is not first.tensor or len(places) > 1:
                now = self._checked(b, places, now)
            pieces.append(now.detach().reshape(-1).to(like.dtype))
        return torch.cat(pieces)

    def _checked(self, b: int, places: list[_Place], now: Tensor | None) -> Tensor:
        """What forward has assigned to a floating buffer; now: at the first of its places."""
        shape, name = self.layout.shapes[b], self.layout.names[b]
        if any(p.owner._buffers.get(p.key) is not now for p in places[1:]):
            raise AuthorError(
                f"forward of {self._name} assigns a new tensor to one of the {len(places)} places "
                f"of its buffer '{name}', which are averaged as one; write into it, as in "
                "self.buffer.copy_(...), or give each layer its own"
            )
        if now is None or now.shape != shape:
            actual = "nothing" if now is None else f"a tensor of shape {list(now.shape)}"
            raise AuthorError(
                f"forward of {self._name} assigns {actual} to its buffer '{name}' of shape "
                f"{list(shape)}; buffers are averaged over the clients, so they keep their shape; "
                "hold what changes it in an attribute that is no buffer"
            )
        return now

    def changed(self, loaded: Vec) -> str | None:
        """The name of the first floating buffer that forward has written or assigned since these
        values were loaded; None: there is none.
        """
        for b, piece in enumerate(self.layout.pieces(loaded)):
            tensor = self._tensors[b]
            assigned = any(p.owner._buffers.get(p.key) is not tensor for p in self._floating[b])
            # a write may give the same value again, and F.batch_norm's is not counted by torch
            rewritten = tensor._version != self._versions[b]
            start = piece.to(tensor.dtype)
            if assigned or rewritten or not torch.equal(as_bytes(tensor), as_bytes(start)):
                return self.layout.names[b]
        return None

    def changed_counter(self) -> str | None:
        """The name of the first other buffer that is no longer what the module came with."""
        for (name, place), (_, start) in zip(
            self._places_of_counters.items(), self._counters, strict=True
        ):
            now = place.owner._buffers.get(place.key)
            if now is None or not torch.equal(now, start):
                return name
        return None

    def put_back(self) -> None:
        """Put the module's own tensors back where forward has assigned others."""
        for owner, key, tensor in self._places:
            owner._buffers[key] = tensor

    def load(self, values: Vec) -> None:
        """Set the floating buffers, and reset the counters to their initial values."""
        self.put_back()
        for tensor, piece in zip(self._tensors, self.layout.pieces(values), strict=True):
            tensor.copy_(piece)
        for counter, start in self._counters:
            counter.copy_(start)
        self._versions = [tensor._version for tensor in self._tensors]
