"""The description of a run in its directory before it begins: configuration, partition,
environment, fingerprint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
import platform
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from .._old_names import SUBMODELS
from .._version import __version__
from ..core.commit import own_commit
from ..core.vector import as_bytes
from ..data import FederatedData
from ..data.heterogeneity import by_client
from ..data.raw_inputs import recipe
from ..engines.base import processors
from ..engines.metrics import told
from ..errors import CheckpointError
from ..server.rounds import Loop
from ..storage.atomic import concerns, remedy, write_atomic
from ..storage.identity import bits_of, digest, fixed_parts
from ..storage.run_directory import RunDirectory

_log = logging.getLogger(__name__)
_PIECE = 1 << 24  # bytes


def plain(value: Any) -> Any:
    """A value in a form for TOML and JSON; a dataclass (an algorithm, wrappers included) as its
    name and fields, a function as its name. None is left out.
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"name": type(value).__name__} | plain(fields)
    return getattr(value, "__name__", None) or type(value).__name__


_SHOWN = ("rounds", "seed", "cohort", "sampling", "weighting", "nonfinite")
_PARTS = (
    "algorithm",
    "local",
    "evaluate",
    "turnover",
    "submodel",
    "private",
    "choose",
    "availability",
    "clock",
)


def in_words(exp: Any, **more: Any) -> dict[str, Any]:
    """The settings of an experiment that was made of Python objects; more: those that the objects
    do not tell. None is left out.
    """
    out: dict[str, Any] = {"source": "python"}
    out |= {k: getattr(exp, k) for k in (*_SHOWN, *_PARTS)} | more
    out |= {"label": exp.label} if exp.label else {}
    if exp.attack is not None:
        out["attack"] = exp.attack
    if not exp._aggregation.plain:
        out["aggregation"] = exp._aggregation
    out = plain(out)
    for table in ("local", "evaluate"):
        out[table].pop("name")
    if "submodel" in out:
        given = exp.capacities
        path = isinstance(given, str | os.PathLike)
        out["submodel"]["capacities"] = str(given) if path else plain(given)
    return out


def configuration(exp: Any, loop: Loop) -> dict[str, Any]:
    """The complete configuration: from file and command line, or from Python objects."""
    if exp.config is not None:
        # "auto" is no engine: what it chose is what the run goes on with
        chosen = {"engine": exp.engine} if exp.config.get("engine") == "auto" else {}
        return dict(plain({**exp.config, **chosen}))
    model = exp.model if isinstance(exp.model, nn.Module) else loop.net.module
    return in_words(
        exp,
        name=exp.name or exp.algorithm.method,
        engine=engine_text(loop.engine),
        model={"name": type(model).__name__, "parameters": loop.net.layout.d},
        objective=loop.plan.objective,
        data=exp.data.describe(),
        compress=loop.plan.link.up or None,
    )


def engine_text(engine: Any) -> str:
    """The engine's name with its numbers; of a user's own engine, its name."""
    return str(getattr(engine, "text", engine.name))


_SCHEME = "2"  # of the fingerprint; the first one had no number, and looked at 256 inputs


def check_same(
    folder: RunDirectory,
    config: Mapping[str, Any],
    data: FederatedData,
    loop: Loop,
    but: Collection[str] = (),
) -> None:
    """Raise CheckpointError if the folder holds a run of another configuration. but: parts that may
    differ.
    """
    known = folder.read_object("fingerprint.json")
    own = fingerprint(config, data, loop, known.get("version", "1"))
    other = sorted(k for k in {*own, *known} - {*but} if known.get(k) != own.get(k))
    if other and folder.deployed and "engine" in other:
        raise CheckpointError(
            f"'{folder.path}' is a federation's, which {folder.resume} goes on with"
        )
    if other:
        raise CheckpointError(
            f"'{folder.path}' holds a run of another configuration: {', '.join(other)} differ; "
            "resume with the settings it was started with, or start in another folder"
        )


def fingerprint(
    config: Mapping[str, Any], data: FederatedData, loop: Loop, scheme: str = _SCHEME
) -> dict[str, str]:
    """{part: hash} of everything that decides the run's numbers; resume() compares it. scheme: its
    version, "1" for one without a version.
    """
    parts, python = fixed_parts(config), config.get("source") == "python"
    if scheme == "1" and python and "submodel" in parts:
        was = {new: old for old, new in SUBMODELS.items()}  # what the class was called then
        name = parts["submodel"]["name"]
        parts["submodel"] = parts["submodel"] | {"name": was.get(name, name)}
    hashes = {k: digest(v) for k, v in parts.items()}
    hashes["engine"] = bits_of(engine_text(loop.engine))
    cohorts, link = loop.cohorts, loop.plan.link
    if cohorts.turnover is not None:  # in a part that every run has, so that its absence shows too
        hashes["cohort"] = digest([plain(cohorts.size), plain(cohorts.turnover)])
    if cohorts.availability is not None:  # the file of a trace may have changed
        spans = None if cohorts.trace is None else cohorts.trace.spans
        hashes["cohort"] = digest([hashes["cohort"], plain(cohorts.availability), spans])
    if loop.fed.capacities:  # a file of them may have changed
        hashes["submodel"] = digest([hashes["submodel"], loop.fed.capacities])
    if python:  # a configuration's metrics follow from its data and objective
        hashes["metrics"] = digest(list(loop.fed.metrics))
    if loop.evaluation.validation:
        hashes["evaluate.validation"] = digest(loop.evaluation.validation)
    if link.codes_down:
        hashes["compress.down"] = digest(plain(link.codes_down))
    if loop.fed.devices is not None:
        hashes["devices"] = digest(plain(loop.fed.devices))
    hashes["layout"] = digest([loop.net.layout.names, loop.net.layout.shapes])
    fixed = [p for p in loop.net.module.parameters() if not p.requires_grad]
    hashes["weights"] = _content([loop.net.init(), loop.net.init_buffers(), *fixed])
    hashes["clients"] = data.clients.digest()[:12]
    if scheme == "1":
        return hashes | {"samples": _content(_some_samples(data))}
    return hashes | {"samples": _content(_samples(data)), "version": _SCHEME}


def _samples(data: FederatedData) -> list[torch.Tensor]:
    """All training and test samples, and the client test sets."""
    tests = data.test_clients
    lists = (None, None) if tests is None else (tests.offsets, tests.indices)
    arrays = (data.inputs, data.targets, data.test_inputs, data.test_targets, data.validation)
    missing = torch.empty(0)  # so that no array is taken for another
    return [missing if t is None else t for t in (*arrays, *lists)]


def _some_samples(data: FederatedData) -> list[torch.Tensor]:
    """The samples of the first scheme: all targets, and the inputs of 256 samples."""
    out = []
    for inputs, targets in (
        (data.inputs, data.targets),
        (data.test_inputs, data.test_targets),
    ):
        if inputs is not None and targets is not None:
            out += [inputs[:: max(len(inputs) // 256, 1)], targets]
    return out


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


def _program() -> str:
    """The command that was started, as typed."""
    name = os.path.basename(sys.argv[0])
    return "python -m fedloom" if name == "__main__.py" else name


_SECRET = re.compile(r"--?[\w-]*(token|password|secret|key)", re.IGNORECASE)


def _words(argv: Sequence[str]) -> Iterator[str]:
    """A command's words, without what follows an option that gives a secret.

    >>> " ".join(_words(["--token", "a1", "--port=9", "--api-key=b2"]))
    '--token ... --port=9 --api-key=...'
    """
    hidden = False
    for word in argv:
        name, given, _ = word.partition("=")
        secret = _SECRET.fullmatch(name) is not None
        yield "..." if hidden else f"{name}=..." if secret and given else word
        hidden = secret and not given and not hidden


def environment() -> dict[str, str]:
    """Versions and hardware."""
    out = {
        "fedloom": __version__,
        "commit": own_commit() or "unknown",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processors": str(processors()),
        "command": " ".join([_program(), *_words(sys.argv[1:])]),
    }
    if torch.cuda.is_available():
        out["gpu"] = torch.cuda.get_device_name()
    return out


def _environment(folder: RunDirectory, round: int) -> dict[str, str]:
    """The same, with the versions of the earlier rounds if they were others; a note says so."""
    now, before = environment(), {}
    if round:
        try:
            before = folder.read_object("environment.json")
        except CheckpointError as error:
            _log.warning("which versions made the rounds until now is not known: %s", error)
    other = [name for name in ("fedloom", "torch") if before.get(name, now[name]) != now[name]]
    was = ", ".join(f"{name} {before[name]}" for name in other)
    if other:
        _log.warning(
            "'%s' was run with %s until round %d and goes on with %s: from here on its numbers may "
            "be rounded differently",
            folder.path,
            was,
            round,
            ", ".join(f"{name} {now[name]}" for name in other),
        )
    earlier = [before.get("earlier"), f"{was} until round {round}" if other else None]
    return now | ({"earlier": "; ".join(filter(None, earlier))} if any(earlier) else {})


def describe(config: Mapping[str, Any], data: FederatedData, loop: Loop) -> None:
    """Write the files that explain the run into its folder. Raises CheckpointError."""
    folder = loop.folder
    assert folder is not None
    try:
        _describe(config, data, loop, folder)
    except OSError as error:
        if not concerns(error, folder.path):
            raise
        raise CheckpointError(
            f"the run directory '{folder.path}' cannot be written: {error.strerror or error}; "
            f"{remedy(error)}, or choose another folder"
        ) from error


def _describe(
    config: Mapping[str, Any], data: FederatedData, loop: Loop, folder: RunDirectory
) -> None:
    import tomli_w

    folder.write_json(
        "partition.json",
        {
            **by_client(data),
            # for exports, even if the data are no longer available
            "inputs": recipe(data.raw, data.transform, data.inputs),
            "metric": told(loop.fed.metrics, loop.plan.objective),
        },
    )
    environment = _environment(folder, loop.round) | {"device": str(loop.net.device)}
    folder.write_json("environment.json", environment)
    folder.write_json("fingerprint.json", fingerprint(config, data, loop))
    # last: from now on the folder is a run that can be resumed
    write_atomic(folder.path / "config.toml", tomli_w.dumps(dict(config)))
