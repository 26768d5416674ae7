"""The named blocks of a module, for objectives that run it in parts.

Blocks are the children of an nn.Sequential, or those whose names another module lists in an
attribute `blocks`; run one after another they are the module's forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from ..errors import CompositionError


class Block(NamedTuple):
    """One block. places: {name of a parameter inside it: its index in the net's layout};
    overwrites: it has layers that work in place, so its input must be a copy.
    """

    name: str
    places: dict[str, int]
    overwrites: bool


class Blocks(NamedTuple):
    """The blocks in the order they run in; outside: trained parameters that belong to no block."""

    parts: tuple[Block, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The blocks' names in the module."""
        return tuple(block.name for block in self.parts)


def find_blocks(module: nn.Module, params: Sequence[nn.Parameter]) -> Blocks:
    """The blocks of a module whose trained parameters are `params`; empty if it has none.

    Parameters are compared by identity, so that a parameter that two blocks share is found in both.
    Raises CompositionError if `blocks` names what the module does not have.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> [block.places for block in find_blocks(net, list(net.parameters())).parts]
    [{'weight': 0, 'bias': 1}, {'weight': 2, 'bias': 3}]
    """
    place = {id(p): i for i, p in enumerate(params)}
    parts = []
    for name in _names(module):
        try:
            child = module.get_submodule(name)
        except AttributeError:
            children = ", ".join(n for n, _ in module.named_children())
            raise CompositionError(
                f"{type(module).__name__}.blocks names '{name}', which is no part of it; "
                f"its children: {children}"
            ) from None
        places = {n: place[id(p)] for n, p in child.named_parameters() if id(p) in place}
        parts.append(
            Block(name, places, any(getattr(m, "inplace", False) for m in child.modules()))
        )
    inside = {i for block in parts for i in block.places.values()}
    first = {id(p): n for n, p in reversed(list(module.named_parameters()))}
    outside = (first[id(p)] for i, p in enumerate(params) if parts and i not in inside)
    return Blocks(tuple(parts), tuple(outside))


def _names(module: nn.Module) -> tuple[str, ...]:
    declared = getattr(module, "blocks", None)
    if isinstance(declared, (list, tuple)) and all(isinstance(b, str) for b in declared):
        return tuple(declared)
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        # with duplicates: a Sequential may run one layer in two places
        every = module.named_modules(remove_duplicate=False)
        return tuple(n for n, _ in every if n and "." not in n)
    return ()


def refuse_blocks(module: nn.Module, blocks: Blocks, user: str, trained: bool = False) -> None:
    """Raise CompositionError naming `user` and the module if it cannot be run block by block.

    trained: a block before the last one must be trained, else its input never changes.
    """
    kind = type(module).__name__
    pair, names = f"{user} and {kind}", blocks.names
    if len(names) < 2:
        raise CompositionError(
            f"{pair}: {user} runs the model in two blocks or more, but {kind} names "
            f"{', '.join(names) or 'none'}; make it an nn.Sequential, or give it an attribute "
            "`blocks`: the names of the children that, run one after another, are its forward; the "
            "classifier is a block of its own"
        )
    if blocks.outside:
        raise CompositionError(
            f"{pair}: '{blocks.outside[0]}' is trained but lies in none of the blocks "
            f"{', '.join(names)}; move it into one of them"
        )
    if trained and not any(block.places for block in blocks.parts[:-1]):
        raise CompositionError(
            f"{pair}: {user} trains the features that the last block gets, but nothing before "
            f"'{names[-1]}' has a trained parameter; take a model with a hidden layer"
        )
