"""What a table costs here: the time of a step, measured once, times the steps; or arithmetic."""

from __future__ import annotations

import ast
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..config import Config, resolve
from ..engines.base import one_thread, processors
from ..errors import FedloomError
from ..models import make_model
from .arithmetic import SETS, TOKENS, work
from .entry import Entry, Protocol, Row
from .plan import changes_of
from .step_times import key_of, remember, remembered

# gradients and passes of a local step, FedAvg's: 1
FACTORS = {
    "fedntd": 1.33,
    "moon": 1.67,
    "fedmlb": 2.6,
    "fedsam": 2.0,
    "mofedsam": 2.0,
    "fedgamma": 2.0,
    "fedsmoo": 2.0,
    "fafed": 2.0,
    "stem": 2.0,
    # smaller networks at weak clients: a third in the mean over the papers' sizes
    "heterofl": 0.33,
    "fedrolex": 0.33,
    "scalefl": 0.33,
    "fjord": 0.33,
}
MACS = {"roberta_base": 5.4e9}  # of a forward pass of 64 tokens: its weights are a download
SPEED = 6e10  # FLOP a second of one processor, for estimates without a measurement
# Beside the arithmetic, of one processor, as the committed lines took (tests/unit/test_papers.py):
SAMPLE = 2e-5  # seconds of a sample: it is prepared, and small layers wait for memory
CALL = 1e-4  # seconds of a local step, for each tensor of weights
_EXAMPLES = 16  # at most, of a step that is timed


@dataclass(frozen=True)
class Cost:
    """Seconds of all runs of a table here. measured: False for arithmetic; parts that nothing can
    estimate are left out, and named in unknown.
    """

    seconds: float
    measured: bool
    unknown: tuple[str, ...] = ()


def factor(values: Mapping[str, Any]) -> float:
    """How many times FedAvg's step a step of this configuration costs."""
    names = [values["algorithm"]["name"], values["objective"]["name"]]
    names.append(values.get("submodel", {}).get("name", ""))
    found = 1.0
    for name in names:
        found *= FACTORS.get(name, 1.0)
    return found


def cost(entry: Entry, scale: str, seeds: int, timed: bool = True) -> Cost:
    """All runs of a table, each set of settings as often as the table shows it."""
    total, measured = 0.0, timed
    unknown: list[str] = []
    for protocol in entry.protocols:
        if scale == "cpu" and protocol.cpu is None:
            continue
        try:
            for rows in _alike(entry.rows):
                config = _config(protocol, rows[0], scale)
                one, was = seconds(config, timed)
                measured &= was
                plain = factor(config.values)
                total += seeds * sum(one * _factor(row, plain) for row in rows)
        except FedloomError:
            unknown.append(protocol.name)
    return Cost(total, measured, tuple(unknown))


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows with the same number of local steps; their times differ by a factor only."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        steps = next((w for w in row.changes.split() if w.startswith("local.steps=")), "")
        groups.setdefault(steps, []).append(row)
    return list(groups.values())


def _config(protocol: Protocol, row: Row, scale: str) -> Config:
    return resolve(protocol.recipe_at(scale), changes_of(protocol, row, scale))


def _factor(row: Row, first: float) -> float:
    """A row's factor, relative to that of the row whose time is known."""
    words = dict(word.split("=", 1) for word in row.changes.split())
    names = [words.get(key, "") for key in ("algorithm", "objective", "submodel")]
    found = 1.0
    for name in names:
        found *= FACTORS.get(name, 1.0)
    return found / first


def seconds(config: Config, timed: bool = True) -> tuple[float, bool]:
    """One run's seconds, and whether a step was measured for it."""
    done = work(config.values)
    train, test, measured = per_sample(config, timed)
    one_round = done.samples * (train + SAMPLE) + done.active * done.steps * CALL * _tensors(config)
    tests = done.evaluations * done.tests * (test + SAMPLE)
    whole = one_round * done.rounds * factor(config.values) + tests
    return whole / _share(config), measured


def _share(config: Config) -> int:
    """By how many processors the work is divided."""
    on_cpu = config.values["device"] in ("auto", "cpu") and not torch.cuda.is_available()
    return processors() if on_cpu else 1


def per_sample(config: Config, timed: bool) -> tuple[float, float, bool]:
    """Seconds of one sample in training and in a test, on one processor, and if it was measured."""
    values = config.values
    shape, batch = SETS[values["data"]["name"]][2], values["local"].get("batch") or _EXAMPLES
    shape = (values["data"].get("length") or shape[0],) if len(shape) == 1 else shape
    kind = (repr(values["model"]), shape, min(batch, _EXAMPLES) if timed else 0)
    if kind not in _KNOWN:
        _KNOWN[kind] = _per_sample(config, shape, batch, timed)
    return _KNOWN[kind]


_KNOWN: dict[Any, tuple[float, float, bool]] = {}  # of this process


def _per_sample(
    config: Config, shape: tuple[int, ...], batch: int, timed: bool
) -> tuple[float, float, bool]:
    name, model = config.values["model"]["name"], repr(config.values["model"])
    if not timed or name in MACS:
        flop = 2 * (MACS.get(name) or macs(config, shape))
        return 3 * flop / SPEED, flop / SPEED, False
    key = key_of(model, shape, min(batch, _EXAMPLES))
    found = remembered(key)
    if found is None:
        found = _timed(config, shape, batch)
        remember(key, found)
    return *found, True


def _inputs(config: Config, shape: tuple[int, ...], count: int) -> Tensor:
    values = config.values
    if values["data"]["name"] not in TOKENS:
        return torch.zeros(count, *shape)
    symbols = [values["model"].get(k) for k in ("vocabulary", "characters")]
    top = next((s for s in symbols if s), 2)
    return torch.arange(count * shape[0]).view(count, *shape) % top


@functools.cache
def _tensors_of(name: str, options: str) -> int:
    with torch.device("meta"):
        net = make_model(name, **ast.literal_eval(options))
    return len([*net.parameters()])


def _tensors(config: Config) -> int:
    """How many tensors of weights a model has; of one that must be fetched, about so many."""
    name = config.values["model"]["name"]
    return 200 if name in MACS else _tensors_of(name, repr(config.options("model")))


def macs(config: Config, shape: tuple[int, ...]) -> float:
    """Multiplications of a forward pass of one sample, counted by torch; nothing is computed."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.device("meta"), torch.no_grad():
        net = make_model(config.values["model"]["name"], **config.options("model")).eval()
        with counter:
            net(_inputs(config, shape, 1))
    return float(counter.get_total_flops()) / 2


def _timed(config: Config, shape: tuple[int, ...], batch: int) -> tuple[float, float]:
    """Seconds per sample of a gradient, and of a forward pass."""
    net = config.net().module
    with one_thread():
        few = _inputs(config, shape, 2)
        _step(net, few)  # the first pass has costs that no later one has
        started = time.perf_counter()
        _step(net, few)
        slow = time.perf_counter() - started > 0.5
        inputs = few if slow else _inputs(config, shape, min(batch, _EXAMPLES))
        train = min(_clock(lambda: _step(net, inputs)) for _ in range(1 if slow else 3))
        net.eval()
        with torch.no_grad():
            test = min(_clock(lambda: net(inputs)) for _ in range(1 if slow else 3))
    return train / len(inputs), test / len(inputs)


def _clock(do: Any) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


def _step(net: nn.Module, inputs: Tensor) -> None:
    """A gradient; the loss does not matter for the time."""
    out = net(inputs)
    outputs = out if isinstance(out, Tensor) else out[0]
    torch.autograd.grad(outputs.square().mean(), [p for p in net.parameters() if p.requires_grad])
