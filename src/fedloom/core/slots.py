"""The places of a module's parameters, and a call of it with other tensors there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn


class Slot(NamedTuple):
    """A place of a trained parameter in a module, and the parameter's index in the layout."""

    owner: nn.Module
    key: str
    place: int


def slots_of(module: nn.Module, params: Sequence[Tensor]) -> list[Slot]:
    """Every place once, also in a module that is used twice; a tied parameter has several."""
    places = {id(p): i for i, p in enumerate(params)}
    return [
        Slot(owner, key, places[id(p)])
        for owner in module.modules()
        for key, p in owner._parameters.items()
        if id(p) in places
    ]


def called_with(slots: list[Slot], pieces: list[Tensor], module: nn.Module, inputs: Any) -> Any:
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
