"""What all places of a federation agree on before round 1: sizes, shapes, classes, and if it is
asked for the clients' common mean and deviation of each feature.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fedloom.core.strict_json import Examples, Name, first_of, from_json
from fedloom.core.vector import as_bytes
from fedloom.data import FederatedData
from fedloom.data.client_indices import Ragged
from fedloom.data.federated import Roll
from fedloom.data.own.preparation import Column, Preparation
from fedloom.data.raw_inputs import Columns, Raw, Undescribed, recipe
from fedloom.errors import DataError, WireError
from fedloom.storage.atomic import reason
from fedloom.storage.identity import digest

from .message import (
    DIGITS,
    Classes,
    Count,
    Head,
    Site,
    Targets,
    Type,
)

Number = Annotated[float, Field(allow_inf_nan=False)]
Above = Annotated[float, Field(allow_inf_nan=False, gt=0)]


class Agreement(BaseModel):
    """examples, tests: of each client, 0 for one that never joined; shape, type: of one input of
    the model; targets: labels, tokens or numbers; columns: a digest of how rows become inputs;
    classes: how many, None for numbers; mean, deviation: of each feature.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    examples: list[Examples]
    tests: list[Examples]
    shape: list[Count]
    type: Type
    targets: Targets
    target_shape: list[Count]
    columns: Name = ""
    classes: Classes | None
    class_names: list[Name] = []
    mean: list[Number] = []
    deviation: list[Above] = []

    @property
    def digest(self) -> str:
        """By which sites compare what each of them was told."""
        return digest(self.model_dump(mode="json"), DIGITS)

    @property
    def digest_line(self) -> str:
        """A line with this digest, to be read aloud."""
        groups = " ".join(self.digest[i : i + 4] for i in range(0, DIGITS, 4))
        return f"all agreed on {groups}; sites compare it by telephone"

    def follows(self, before: Agreement) -> bool:
        """Whether it is the same, but for sites that came since: whoever had examples has as many,
        and all have the same shapes, classes and scale.
        """
        count = len(before.examples)
        if len(self.examples) < count or len(self.tests) != len(self.examples):
            return False
        clients = [i for i, examples in enumerate(before.examples) if examples]
        counts = [(self.examples[i], self.tests[i]) for i in clients]
        if counts != [(before.examples[i], before.tests[i]) for i in clients]:
            return False
        return self == before.model_copy(update={"examples": self.examples, "tests": self.tests})

    @property
    def roll(self) -> Roll:
        """The clients in the form that data have."""
        return Roll(torch.tensor(self.examples), self.classes)

    def stand_in(self, raw: Raw | None = None, tested: bool = True) -> FederatedData:
        """Data for a server that has none: zeros of the right shapes, which nobody trains on. raw:
        how the sites make inputs of their rows, before the common scale; tested: whether they
        measure the model on their test rows.
        """
        labels = self.targets != "numbers"
        kind = torch.int64 if labels else getattr(torch, self.type)
        return FederatedData(
            name="elsewhere",
            inputs=torch.zeros(3, *self.shape, dtype=getattr(torch, self.type)),
            targets=torch.zeros(3, *self.target_shape, dtype=kind),
            clients=Ragged.from_lists([[0]] * len(self.examples)),
            class_names=tuple(self.class_names),
            raw=self.scaled(raw),
            about={"tests_elsewhere": sum(self.tests) * tested},
        ).elsewhere(self.roll)

    def at_server(self, data: FederatedData) -> FederatedData:
        """A server's own data with the common scale."""
        raw, tests = self.scaled(data.raw), data.test_inputs
        if tests is not None:
            tests = self.scale(tests)
        return dataclasses.replace(data, test_inputs=tests, raw=raw).elsewhere(self.roll)

    def scale(self, inputs: Tensor) -> Tensor:
        """Inputs (n, features) less the common mean, divided by the common deviation."""
        if not self.mean:
            return inputs
        mean, by = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.deviation))
        return ((inputs.double() - mean) / by).to(inputs.dtype)

    def scaled(self, raw: Raw | None) -> Raw | None:
        """How samples become inputs of this scale, for an export. raw: how without it."""
        if not self.mean:
            return raw
        if not isinstance(raw, Columns | Preparation | None):
            return Undescribed()
        if not isinstance(raw, Preparation):
            names = (
                raw.names if raw is not None else map("feature {}".format, range(len(self.mean)))
            )
            raw = Preparation(tuple(Column(name, "number") for name in names))
        return raw.scaled(self.mean, self.deviation) or Undescribed()


def read_agreement(path: Path) -> Agreement | None:
    """The agreement of a file; None if there is none. Raises DataError."""
    try:
        return from_json(Agreement, path.read_bytes(), "agreement")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {reason(error)}") from None
    except WireError as error:
        raise DataError(f"'{path}' is damaged: {error}; delete it to join again") from None


# ------------------------------------------------------------------------------------- at a client
def site_of(data: FederatedData, question: Head) -> Site:
    """What a site's data (of one client) are like: no example, and no number of one."""
    one, targets, tests = data.ready(data.inputs[:1]), data.targets, data.test_inputs
    numbers = targets.is_floating_point()
    kind = "numbers" if numbers else "labels" if targets.ndim == 1 else "tokens"
    fields: dict[str, Any] = question.about
    fields |= {"type": str(one.dtype).removeprefix("torch."), "targets": kind}
    fields |= {"examples": len(data.inputs), "tests": 0 if tests is None else len(tests)}
    fields |= {"shape": list(one.shape[1:]), "target_shape": list(targets.shape[1:])}
    how = recipe(data.raw, data.transform, data.inputs)
    # without words, and without what a site found in its own rows
    fields |= {"columns": digest({k: v for k, v in how.items() if k not in ("prepared", "sites")})}
    fields |= {"classes": data.classes or 0, "class_names": list(data.class_names)}
    try:
        return Site(**fields)
    except ValidationError as error:
        where, said = first_of(error)
        raise DataError(f"these data cannot join: {where}: {said}") from None


def sums_of(data: FederatedData) -> bytes:
    """Sums of each feature and of its square, (2, features) float64, for the common mean. Raises
    DataError.
    """
    inputs = data.inputs
    if inputs.ndim != 2 or not inputs.is_floating_point() or data.transform is not None:
        raise DataError(
            f"standardise = true is for rows of numbers, and an input has {list(inputs.shape[1:])} "
            f"values of {inputs.dtype}; take standardise = false"
        )
    x = inputs.double()
    if isinstance(data.raw, Preparation):  # as in `table`, numbers have a scale and categories none
        x = x * torch.tensor(data.raw.numbers, dtype=x.dtype)
    return as_bytes(torch.stack([x.sum(0), (x * x).sum(0)])).numpy().tobytes()


def fitted(
    inputs: Tensor, targets: Tensor, names: Sequence[str], agreement: Agreement
) -> tuple[Tensor, Tensor]:
    """Inputs and targets with the common scale, and the common numbers of named classes."""
    if names:
        order = [agreement.class_names.index(name) for name in names]
        targets = torch.tensor(order)[targets]
    return agreement.scale(inputs), targets


# ------------------------------------------------------------------------------------ at the server
def agree(
    sites: Mapping[int, Site], population: int, sums: Mapping[int, bytes] | None = None
) -> Agreement:
    """The agreement of the clients' sites, by number. sums: of sums_of(), or none. Raises DataError
    naming a client that differs.
    """
    first_client, first = next(iter(sites.items()))
    for i, site in sites.items():
        _check_alike(site, first, f"client {i}", f"client {first_client}")
    names = first.class_names
    if any(site.class_names != names for site in sites.values()):
        names = sorted({name for site in sites.values() for name in site.class_names})
    numbers = first.targets == "numbers"
    classes = len(names) or max(site.classes for site in sites.values())
    total = sum(site.examples for site in sites.values())
    for i, raw in (sums or {}).items():
        _check_sums(raw, sites[i])
    mean, deviation = _pooled([*sums.values()], total) if sums else ([], [])
    return Agreement(
        examples=[sites[i].examples if i in sites else 0 for i in range(population)],
        tests=[sites[i].tests if i in sites else 0 for i in range(population)],
        shape=first.shape,
        type=first.type,
        targets=first.targets,
        target_shape=first.target_shape,
        columns=first.columns,
        classes=None if numbers else classes,
        class_names=names,
        mean=mean,
        deviation=deviation,
    )


def with_site(agreement: Agreement, client: int, site: Site) -> Agreement:
    """The agreement with a site that comes later, and must fit what the others agreed on: classes
    and scale stay. Raises DataError.
    """
    _check_alike(site, agreement, f"client {client}", "the federation")
    if new := sorted({*site.class_names} - {*agreement.class_names}):
        classes = ", ".join(agreement.class_names[:10])
        raise DataError(f"client {client} has the class '{new[0]}', and all agreed on {classes}")
    if agreement.classes is not None and site.classes > agreement.classes:
        raise DataError(
            f"client {client} has {site.classes} classes, and all agreed on {agreement.classes}"
        )
    counts = {}
    for name, count in (("examples", site.examples), ("tests", site.tests)):
        counts[name] = [*getattr(agreement, name)]
        counts[name] += [0] * (client + 1 - len(counts[name]))
        counts[name][client] = count
    return agreement.model_copy(update=counts)


def _check_alike(site: Site, first: Site | Agreement, name: str, other: str) -> None:
    """Raise DataError naming what a site's data have otherwise. name, other: the two, for it."""
    for field in ("shape", "type", "targets", "target_shape"):
        if getattr(site, field) != getattr(first, field):
            raise DataError(
                f"{name}'s data have {field} = {getattr(site, field)}, {other}'s "
                f"{getattr(first, field)}; all must be alike"
            )
    if first.columns not in ("", site.columns):  # empty: of an older fedloom
        raise DataError(
            f"{name} makes inputs of its rows by other rules than {other} (columns and their "
            "order, categories, fills, scales); all must be alike: see data.rules in docs/tables.md"
        )
    if not site.examples:
        raise DataError(f"{name} has no training examples; leave it out")
    if bool(site.class_names) != bool(first.class_names):
        raise DataError(
            f"{name} and {other} do not both name their classes, or both number them; give labels "
            "of one kind"
        )


def _check_sums(raw: bytes, site: Site) -> None:
    """Raise DataError unless these are sums_of() data of this shape."""
    why = ""
    if len(raw) != 16 * math.prod(site.shape) or not raw:
        why = f"its sums of features are no two rows of {math.prod(site.shape)} numbers"
    elif not torch.frombuffer(bytearray(raw), dtype=torch.float64).isfinite().all():
        why = "its sums of features are not finite; look for values that are not"
    if why:
        raise DataError(f"client {site.client} cannot join: {why}")


def _pooled(sums: Sequence[bytes], total: int) -> tuple[list[float], list[float]]:
    """Mean and deviation of each feature over all clients; a deviation of 0 counts as 1."""
    rows = [torch.frombuffer(bytearray(raw), dtype=torch.float64).view(2, -1) for raw in sums]
    first, second = torch.stack(rows).sum(0) / total
    variance = (second - first * first).clamp_min(0)
    deviations = [math.sqrt(v) or 1.0 for v in variance.tolist()]
    if not all(map(math.isfinite, [*first.tolist(), *deviations])):
        raise DataError("a client's sums of features are not finite; look for values that are not")
    return first.tolist(), deviations
