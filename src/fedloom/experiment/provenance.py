"""The description of a run in its directory before it begins: configuration, partition,
environment, fingerprint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import numbers
import os
import platform
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .._version import __version__
from ..core.arithmetic import plain_number
from ..core.commit import own_commit
from ..core.vector import as_bytes
from ..data import FederatedData
from ..engines.base import processors
from ..engines.scores import is_whole
from ..errors import CheckpointError
from ..evaluation.metrics import exported_metric
from ..server.rounds import Run
from ..storage.atomic import concerns, remedy, write_atomic
from ..storage.identity import bits_of, digest, fixed_parts, flatten
from ..storage.manifest import FIRST, deployed, resealed
from ..storage.run_directory import RunDirectory

_log = logging.getLogger(__name__)
_PIECE = 1 << 24  # bytes
_ROUNDING = ("fedloom", "torch", "processor", "instructions")  # with others bits may differ


def plain(value: Any) -> Any:
    """A value in a form for TOML and JSON; a dataclass (an algorithm, wrappers included) as its
    name and fields; arrays, modules and functions as their name and a mark(). None is left out.
    """
    value = plain_number(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"name": type(value).__name__} | plain(fields)
    return str(getattr(value, "__name__", None) or type(value).__name__) + mark(value)


def mark(value: Any) -> str:
    """A short hash of what a configuration cannot write out: " #..." of the content of an array or
    a module, " ~..." of the numbers and names in a function, which are not all that it does.

    >>> mark(lambda t: 0.5) == mark(lambda t: 0.5) != mark(lambda t: 0.1)
    True
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.itemsize <= 8:
        value = torch.as_tensor(value.astype(value.dtype.newbyteorder("="), order="C"))
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return f" #{_content([value])[:8]}"
    if isinstance(value, nn.Module):
        attributes = {k: v for k, v in vars(value).items() if k[0] != "_" and k != "training"}
        options = {k: v for k, v in attributes.items() if isinstance(v, bool | int | float | str)}
        state = [mark(v) for v in value.state_dict().values() if isinstance(v, torch.Tensor)]
        return f" #{digest([state, options])[:8]}"
    if isinstance(value, types.FunctionType):
        values = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        values += [c.cell_contents for c in value.__closure__ or () if _holds_plain(c)]
        content = [_constants(value.__code__, value.__doc__), *map(plain, values)]
        return f" ~{digest(content)[:8]}"
    return ""


def _holds_plain(cell: types.CellType) -> bool:
    try:
        return isinstance(plain_number(cell.cell_contents), bool | int | float | str)
    except ValueError:  # nothing is in it yet
        return False


def _constants(code: types.CodeType, doc: str | None = None) -> list[Any]:
    """The constants and names of a function, which two versions of Python have alike."""
    constants: list[Any] = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            constants.append(_constants(constant))
        elif isinstance(constant, frozenset):  # in another order in every process
            constants.append(sorted(map(repr, constant)))
        elif constant != doc:
            constants.append(repr(constant))
    return constants


def unmarked(config: Any, kinds: str = "#~") -> Any:
    """A configuration without its marks, or without those of one kind."""
    return json.loads(re.sub(f' [{kinds}][0-9a-f]{{8}}(?=")', "", json.dumps(config)))


_GIVEN = (
    *("rounds", "seed", "cohort", "sampling", "weighting", "nonfinite", "model_seed", "devices"),
    *("algorithm", "local", "evaluate", "churn", "submodel", "private", "choose", "availability"),
    *("clock",),
)


def configuration(exp: Any, run: Run) -> dict[str, Any]:
    """The complete configuration: from file and command line, or from Python objects, of which None
    is left out.
    """
    if exp.config is not None:
        engine = {"engine": exp.used_engine} if exp.choice or exp._old_engine else {}
        return dict(plain({**exp.config, **engine}))  # it goes on with what a rule chose
    link, weights, capacities = run.plan.link, exp.weights, exp.capacities
    model = exp.model if isinstance(exp.model, nn.Module) else run.net.module
    if weights is not None and not isinstance(weights, str | os.PathLike):
        weights = f"given #{_content(weights.values())[:8]}"
    out: dict[str, Any] = {key: getattr(exp, key) for key in _GIVEN} | {
        "source": "python",
        "name": exp.name or exp.algorithm.method,
        "engine": engine_text(run.engine),
        "model": {"name": type(model).__name__, "parameters": run.net.layout.d},
        "objective": run.plan.objective,
        "data": exp.data.describe(),
        "compress": link.up or None,
        "compress_down": link.codes_down or None,
        "dtype": None if run.net.dtype == torch.float32 else str(run.net.dtype)[6:],
        "weights": None if weights is None else str(weights),
        "aggregation": None if exp._aggregation.plain else exp._aggregation,
        **{key: getattr(exp, key) or None for key in ("label", "attack", "stages")},
    }
    out = plain(out)
    for table in ("local", "evaluate"):
        out[table].pop("name")
    if "submodel" in out:
        path = isinstance(capacities, str | os.PathLike)
        out["submodel"]["capacities"] = str(capacities) if path else plain(capacities)
    return out


def engine_text(engine: Any) -> str:
    """The engine's name with its numbers; of a user's own engine, its name."""
    return str(getattr(engine, "text", engine.name))


_ELSEWHERE = ("compress_down", "devices", "dtype", "weights")  # it has them by other names


def check_same(
    folder: RunDirectory,
    config: Mapping[str, Any],
    data: FederatedData,
    run: Run,
    but: Collection[str] = (),
) -> None:
    """Raise CheckpointError if the folder holds a run of another configuration. but: parts that may
    differ.
    """
    old = folder.read_object("fingerprint.json")
    new = fingerprint(config, data, run)
    parts = sorted(k for k in {*new, *old} - {*but} if old.get(k) != new.get(k))
    if parts and deployed(folder.path) and "engine" in parts:
        raise CheckpointError(
            f"'{folder.path}' is a federation's, which {folder.resume} goes on with"
        )
    if parts:
        raise CheckpointError(
            f"'{folder.path}' holds a run of another configuration: "
            f"{', '.join(parts)} differ; "
            "resume with the settings it was started with, or start in another folder"
        )
    recorded_config = flatten(folder.read_config()) if "~" in json.dumps(config) else {}
    for key, now in flatten(config).items():
        before = str(recorded_config.get(key))
        if " ~" in before and before != now and unmarked(before) == unmarked(now):
            _log.warning(
                "'%s': the function %s has other numbers or names in it than when the run began",
                *(folder.path, key),
            )


def fingerprint(config: Mapping[str, Any], data: FederatedData, run: Run) -> dict[str, str]:
    """{part: hash} of everything that decides the run's numbers; resume() compares it."""
    python = config.get("source") == "python"
    # a function may be another in words only: check_same() warns
    serialise: Callable[[Any], Any] = lambda value: unmarked(plain(value), "~")
    parts = {k: serialise(v) for k, v in fixed_parts(config).items()}
    parts = {k: v for k, v in parts.items() if not (python and k in _ELSEWHERE)}
    hashes = {k: digest(v) for k, v in parts.items()}
    hashes["engine"] = bits_of(engine_text(run.engine))
    cohorts, link = run.cohorts, run.plan.link
    if cohorts.churn is not None:  # in a part that every run has, so that its absence shows too
        hashes["cohort"] = digest([plain(cohorts.size), plain(cohorts.churn)])
    if cohorts.availability is not None:  # the file of a trace may have changed
        spans = None if cohorts.trace is None else cohorts.trace.spans
        hashes["cohort"] = digest([hashes["cohort"], serialise(cohorts.availability), spans])
    if run.fed.capacities:  # a file of them may have changed
        hashes["submodel"] = digest([hashes["submodel"], run.fed.capacities])
    if python:  # a configuration's metrics follow from its data and objective
        hashes["metrics"] = digest(list(run.fed.metrics))
    if run.evaluator.settings.validation:
        hashes["evaluate.validation"] = digest(run.evaluator.settings.validation)
    if link.codes_down:
        hashes["compress.down"] = digest(serialise(link.codes_down))
    if run.fed.devices is not None:
        hashes["devices"] = digest(serialise(run.fed.devices))
    hashes["layout"] = digest([run.net.layout.names, run.net.layout.shapes])
    module = run.net.module
    fixed: list[torch.Tensor] = [p for p in module.parameters() if not p.requires_grad]
    fixed += [b for b in module.buffers() if not b.is_floating_point()]
    hashes["weights"] = _content([run.net.init(), run.net.init_buffers(), *fixed])
    hashes["clients"] = data.clients.digest()[:12]
    return hashes | {"samples": _content(_samples(data))}


def _samples(data: FederatedData) -> list[torch.Tensor]:
    """All training and test samples, and the client test sets."""
    tests = data.test_clients
    lists = (None, None) if tests is None else (tests.offsets, tests.indices)
    arrays = (data.inputs, data.targets, data.test_inputs, data.test_targets, data.validation)
    missing = torch.empty(0)  # so that no array is taken for another
    return [missing if t is None else t for t in (*arrays, *lists)]


def _content(tensors: Iterable[torch.Tensor]) -> str:
    """A short hash of shapes, types and bytes; large arrays are read piece by piece, so that one in
    a file is not copied into memory.
    """
    state = hashlib.sha256()
    for t in tensors:
        state.update(f"{t.dtype} {list(t.shape)}".encode())
        size = t.element_size() * math.prod(t.shape[1:])
        for piece in torch.split(t, max(_PIECE // max(size, 1), 1)) if t.ndim else [t]:
            state.update(as_bytes(piece).numpy().data)
    return state.hexdigest()[:12]


_SECRET = re.compile(r"--?[\w-]*(token|password|secret|key)", re.IGNORECASE)


def _words(argv: Sequence[str]) -> Iterator[str]:
    """A command's words, without what follows an option that gives a secret.

    >>> " ".join(_words(["--token", "a1", "--port=9", "--api-key=b2"]))
    '--token ... --port=9 --api-key=...'
    """
    hidden = False
    for word in argv:
        name, equals, _ = word.partition("=")
        secret = _SECRET.fullmatch(name) is not None
        yield "..." if hidden else f"{name}=..." if secret and equals else word
        hidden = secret and not equals and not hidden


def _command(argv: Sequence[str]) -> str:
    """The command that was started, as typed.

    >>> _command(["/bin/fedloom", "run", "digits"])
    'fedloom run digits'
    """
    name = os.path.basename(argv[0])
    return " ".join(["python -m fedloom" if name == "__main__.py" else name, *_words(argv[1:])])


def environment() -> dict[str, str]:
    """Versions and hardware."""
    out = {
        "fedloom": __version__,
        "commit": own_commit() or "unknown",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # which kernels torch takes
        "processors": str(processors()),
        "command": _command(sys.argv),
    }
    if torch.cuda.is_available():
        out["gpu"] = torch.cuda.get_device_name()
    return out


def _processor() -> str:
    """The processor's name, or its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _environment(folder: RunDirectory, round: int) -> dict[str, str]:
    """The same, with the versions and the processor of the earlier rounds if they were others; a
    note says so.
    """
    now, before = environment(), {}
    if round:
        try:
            before = folder.read_object("environment.json")
        except CheckpointError as error:
            _log.warning("which versions made the rounds until now is not known: %s", error)
    differing = [name for name in _ROUNDING if before.get(name, now[name]) != now[name]]
    earlier = [before["earlier"]] if "earlier" in before else []
    if differing:
        then, today = (", ".join(f"{k} {e[k]}" for k in differing) for e in (before, now))
        earlier.append(f"{then} until round {round}")
        _log.warning(
            "'%s' was run with %s and goes on with %s: from here on its numbers may be rounded "
            "differently",
            *(folder.path, earlier[-1], today),
        )
    return now | ({"earlier": "; ".join(earlier)} if earlier else {})


@contextmanager
def explained_disk(folder: RunDirectory, files: str, then: str) -> Iterator[None]:
    """A disk that cannot take a folder's files as CheckpointError with the cure."""
    try:
        yield
    except OSError as error:
        if not concerns(error, folder.path):
            raise
        raise CheckpointError(
            f"'{folder.path}': {files} cannot be written: {error.strerror or error}; "
            f"{remedy(error)}, {then}"
        ) from error


def describe(config: Mapping[str, Any], data: FederatedData, run: Run) -> None:
    """Write the files that explain the run into its folder. Raises CheckpointError."""
    import tomli_w

    from ..data.heterogeneity import by_client
    from ..data.own.preparation import ranges
    from ..data.raw_inputs import recipe

    folder, means = run.checkpoints.folder, site_means(run)
    assert folder is not None
    partition = {
        **by_client(data),
        # for exports, even if the data are no longer available
        "inputs": recipe(data.raw, data.transform, data.inputs),
        "metric": exported_metric(run.fed.metrics, run.plan.objective),
        "outcome": data.outcome,
        "ranges": ranges(data),
        "na_values": data.about.get("na_values", []),
        "recode": data.about.get("recode", {}),
        # of a federation whose nodes measure the model: how many test samples they have
        "tests_elsewhere": data.about.get("tests_elsewhere", 0),
        **({"site_means": means} if means else {}),
    }
    environment = _environment(folder, run.state.round if run.state else 0)
    environment["device"] = str(run.net.device)
    with (
        explained_disk(folder, "the run directory", "or choose another folder"),
        resealed(folder.path, *FIRST),
    ):
        folder.write_json("partition.json", partition)
        folder.write_json("environment.json", environment)
        folder.write_json("fingerprint.json", fingerprint(config, data, run))
        # last: from now on the folder is a run that can be resumed
        write_atomic(folder.path / "config.toml", tomli_w.dumps(dict(config)))


def site_means(run: Run) -> list[str]:
    """Which metrics nobody has of all test rows: the nodes measure them on whole sets of rows."""
    if not run.fed.data.about.get("tests_elsewhere"):
        return []
    return [name for name, metric in run.fed.metrics.items() if is_whole(metric)]
