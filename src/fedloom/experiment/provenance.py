"""What a run directory says about a run before it begins: configuration, partition, environment,
fingerprint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .._old_names import SUBMODELS
from .._version import __version__
from ..core.vector import as_bytes
from ..data import FederatedData
from ..data.raw_inputs import recipe
from ..engines.base import processors
from ..engines.metrics import told
from ..errors import CheckpointError
from ..storage.atomic import concerns, remedy, write_atomic
from ..storage.identity import bits_of, digest, fixed_parts
from ..storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from ..server.rounds import Loop
    from .experiment import Experiment


_log = logging.getLogger(__name__)
_PIECE = 1 << 24  # bytes


def settings(owner: Any) -> dict[str, Any]:
    """A frozen dataclass (an algorithm, wrappers included) as nested names and values."""
    out: dict[str, Any] = {"name": type(owner).__name__}
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if dataclasses.is_dataclass(value):
            out[field.name] = settings(value)
        elif value is not None:
            out[field.name] = plain(value)
    return out


def plain(value: Any) -> Any:
    """A value as TOML and JSON can hold it; a function by its name."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return settings(value)
    return getattr(value, "__name__", None) or type(value).__name__


def configuration(exp: Experiment, loop: Loop) -> dict[str, Any]:
    """The complete resolved configuration: the file's and command line's, or the Python objects'
    own words.
    """
    if exp.config is not None:
        # "auto" is no engine: what it chose is what the run goes on with
        chosen = {"engine": exp.engine} if exp.config.get("engine") == "auto" else {}
        return plain({**exp.config, **chosen})  # type: ignore[no-any-return]  # a mapping in, a mapping out
    local = {k: v for k, v in settings(exp.local).items() if k != "name"}
    evaluate = {k: v for k, v in settings(exp.evaluation).items() if k != "name"}
    model = exp.model if isinstance(exp.model, torch.nn.Module) else loop.net.module
    out = {
        "source": "python",
        "name": exp.name or exp.algorithm.method,
        "rounds": exp.rounds,
        "seed": exp.seed,
        "cohort": plain(exp.cohort),
        "sampling": exp.sampling,
        "weighting": plain(exp.weighting),
        "nonfinite": exp.nonfinite,
        "engine": engine_text(loop),
        "algorithm": settings(exp.algorithm),
        "model": {"name": type(model).__name__, "parameters": loop.net.layout.d},
        "objective": settings(exp.objective),
        "data": plain(exp.data.describe()),
        "local": local,
        "evaluate": evaluate,
        **({} if exp.turnover is None else {"turnover": settings(exp.turnover)}),
    }
    if exp.submodel is not None:
        out["submodel"] = settings(exp.submodel) | {"capacities": _shown(exp.capacities)}
    if loop.plan.link.up:
        out["compress"] = plain(loop.plan.link.up)
    return out


def _shown(capacities: Any) -> Any:
    """Capacities as TOML can hold them."""
    if isinstance(capacities, str | os.PathLike):
        return str(capacities)
    return plain(capacities if isinstance(capacities, Mapping) else list(capacities or ()))


def engine_text(loop: Loop) -> str:
    """The engine's name with its numbers; of a user's own engine, its name."""
    return str(getattr(loop.engine, "text", loop.engine.name))


_SCHEME = "2"  # of the fingerprint; the first one had no number, and looked at 256 inputs


def fingerprint(exp: Experiment, loop: Loop, scheme: str = _SCHEME) -> dict[str, str]:
    """{part: hash} of everything that decides the run's numbers; what resume() compares. scheme:
    by which it is made, "1" for one without a version.
    """
    config = configuration(exp, loop)
    if scheme == "1" and exp.config is None and exp.submodel is not None:
        was = {new: old for old, new in SUBMODELS.items()}  # what the class was called then
        name = config["submodel"]["name"]
        config["submodel"]["name"] = was.get(name, name)
    parts = {k: digest(v) for k, v in fixed_parts(config).items()}
    parts["engine"] = bits_of(engine_text(loop))
    if exp.turnover is not None:  # in a part that every run has, so that its absence shows too
        parts["cohort"] = digest([plain(exp.cohort), settings(exp.turnover)])
    if loop.fed.capacities:  # a file of them may have changed
        parts["submodel"] = digest([parts["submodel"], loop.fed.capacities])
    if exp.config is None:  # a configuration's metrics follow from its data and objective
        parts["metrics"] = digest(list(loop.fed.metrics))
    if exp.evaluation.validation:
        parts["evaluate.validation"] = digest(exp.evaluation.validation)
    if loop.plan.link.codes_down:
        parts["compress.down"] = digest(plain(loop.plan.link.codes_down))
    if loop.fed.devices is not None:
        parts["devices"] = digest(plain(loop.fed.devices))
    parts["layout"] = digest([loop.net.layout.names, loop.net.layout.shapes])
    fixed = [p for p in loop.net.module.parameters() if not p.requires_grad]
    parts["weights"] = _content([loop.net.init(), loop.net.init_buffers(), *fixed])
    parts["clients"] = exp.data.clients.digest()[:12]
    if scheme == "1":
        parts["samples"] = _content(_some_samples(exp.data))
        return parts
    parts["samples"] = _content(_samples(exp.data))
    parts["version"] = _SCHEME
    return parts


def _samples(data: FederatedData) -> list[torch.Tensor]:
    """Everything that is trained and tested on, and who tests on what."""
    tests = data.test_clients
    lists = (None, None) if tests is None else (tests.offsets, tests.indices)
    arrays = (data.inputs, data.targets, data.test_inputs, data.test_targets, data.validation)
    missing = torch.empty(0)  # so that no array is taken for another
    return [missing if t is None else t for t in (*arrays, *lists)]


def _some_samples(data: FederatedData) -> list[torch.Tensor]:
    """What the first scheme looked at: all targets, and inputs of 256 samples from all over."""
    out = []
    for inputs, targets in (
        (data.inputs, data.targets),
        (data.test_inputs, data.test_targets),
    ):
        if inputs is not None and targets is not None:
            out += [inputs[:: max(len(inputs) // 256, 1)], targets]
    return out


def _content(tensors: Iterable[torch.Tensor]) -> str:
    """A short hash of shapes, types and bytes; of large ones piece by piece, so that one in a file
    is not copied into memory.
    """
    state = hashlib.sha256()
    for t in tensors:
        state.update(f"{t.dtype} {list(t.shape)}".encode())
        size = t.element_size() * math.prod(t.shape[1:])
        for piece in torch.split(t, max(_PIECE // max(size, 1), 1)) if t.ndim else [t]:
            state.update(as_bytes(piece).numpy().data)
    return state.hexdigest()[:12]


def _program() -> str:
    """What was started, as one would type it."""
    name = os.path.basename(sys.argv[0])
    return "python -m fedloom" if name == "__main__.py" else name


def environment() -> dict[str, str]:
    """Versions and hardware."""
    out = {
        "fedloom": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processors": str(processors()),
        "command": " ".join([_program(), *sys.argv[1:]]),
    }
    if torch.cuda.is_available():
        out["gpu"] = torch.cuda.get_device_name()
    return out


def _environment(folder: RunDirectory, round: int) -> dict[str, str]:
    """The same, with the versions that made the rounds until now, if they were others; that is
    said, too.
    """
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


def describe(exp: Experiment, loop: Loop, folder: RunDirectory) -> None:
    """Write the files that explain the run. Raises CheckpointError."""
    try:
        _describe(exp, loop, folder)
    except OSError as error:
        if not concerns(error, folder.path):
            raise
        raise CheckpointError(
            f"the run directory '{folder.path}' cannot be written: {error.strerror or error}; "
            f"{remedy(error)}, or choose another folder"
        ) from error


def _describe(exp: Experiment, loop: Loop, folder: RunDirectory) -> None:
    import tomli_w

    data = exp.data
    labels = data.classes is not None and data.targets.ndim == 1
    folder.write_json(
        "partition.json",
        {
            # of tokens there are too many kinds for a table by client
            "counts": data.label_counts().tolist() if labels else None,
            "sizes": data.sizes.tolist(),
            "class_names": list(data.class_names),
            # what an export needs, also where the data are not at hand any more
            "inputs": recipe(data.raw, data.transform, data.inputs),
            "metric": told(loop.fed.metrics, loop.plan.objective),
        },
    )
    environment = _environment(folder, loop.round) | {"device": str(loop.net.device)}
    folder.write_json("environment.json", environment)
    folder.write_json("fingerprint.json", fingerprint(exp, loop))
    # last: from now on the folder is a run that can be resumed
    write_atomic(folder.path / "config.toml", tomli_w.dumps(configuration(exp, loop)))
