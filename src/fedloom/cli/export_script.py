"""Python code for an exported model and its inputs, with torch alone if possible.

Text from a run's folder (names, classes, file names) appears in it as a quoted value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.errors import CheckpointError

from .export_templates import BLOCKS, CHECK, EACH, PREPARE, USE

if TYPE_CHECKING:
    from torch import nn


BATCH = 500  # labels, or tokens, that are evaluated at once: as a run does
_DTYPES = ("float32", "float64", "int64")


@dataclass(frozen=True)
class Use:
    """What a script needs besides the model.

    inputs: from recipe() in fedloom.data.raw_inputs; metric: from told() in
    fedloom.engines.metrics, and its name; classes: names; said: the run's score, on so many
    samples; words: the file with the vocabulary, beside the script; tokens: of a target; dtype: of
    the weights.
    """

    inputs: Mapping[str, Any] = field(default_factory=lambda: {"kind": "unknown"})
    metric: Mapping[str, Any] | None = None
    name: str = "loss"
    classes: tuple[str, ...] = ()
    said: float | None = None
    samples: int = 0
    words: str = ""
    tokens: int = 1
    dtype: str = "float32"


def script(
    built: str | None, file: str, kind: str, run: Path, round: int, use: Use | None = None
) -> str:
    """Python that makes the model, by the expression `built`, loads the file, and runs it on raw
    inputs. Raises CheckpointError where the run's description of its inputs is damaged.
    """
    use = use or Use()
    try:
        ready = [_constants(use), _prepare(use) + _running(use)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"'{run / 'partition.json'}' is damaged, so how inputs are made is not known "
            f"({error!r}); put back the file as it was"
        ) from None
    head = _head(built, kind, use)
    blocks = "".join(BLOCKS[name] for name in BLOCKS if built and f"{name}(" in built)
    about = ascii(f"The model of {run.name} after round {round}.")
    parts = [about, head, ready[0], blocks.strip("\n"), _load(built, file, kind, use), ready[1]]
    return "\n\n\n".join(part for part in parts if part).replace("\n\n\n", "\n\n", 2)


def _head(built: str | None, kind: str, use: Use) -> str:
    """The imports of a script."""
    built, metric = built or "", (use.metric or {}).get("kind")
    own = built.startswith("MODELS")
    wanted = {
        "import json": bool(use.words),
        "import math": "Encoder(" in built or metric == "perplexity",
        "import re": use.inputs["kind"] == "words",
        "import sys": metric is not None,
        "from collections import OrderedDict": "OrderedDict(" in built,
        "from pathlib import Path": True,
        "": True,
        "import numpy as np": True,
        "import torch": True,
        "from safetensors.torch import load_model": kind == "safetensors",
        "from torch import nn": not own,
        "from transformers import AutoTokenizer": "source" in use.inputs,
        "from fedloom.models import MODELS": own,
    }
    return "\n".join(line for line, there in wanted.items() if there)


def _load(built: str | None, file: str, kind: str, use: Use) -> str:
    """Python that makes the model and gives it its weights."""
    made = (built or "...  # the nn.Module that the run was started with").replace("\n", "\n    ")
    cast = f"\n    model.to(torch.{use.dtype})" if use.dtype != "float32" else ""
    put = "model.load_state_dict(torch.load(file, weights_only=True))"
    put = "load_model(model, file)" if kind == "safetensors" else put
    return f'''def load():
    """The model with its weights, in evaluation mode."""
    model = {made}{cast}
    file = Path(__file__).with_name({file!a})
    {put}
    return model.eval()'''


def _constants(use: Use) -> str:
    """Class names, vocabulary and the score, each as a value."""
    own, lines = tuple(use.inputs.get("words", ())), []
    if use.words:
        file = f"Path(__file__).with_name({use.words!a})"
        lines.append(f"WORDS = {{w: i for i, w in enumerate(json.loads({file}.read_text()))}}")
    if use.classes:
        same = use.classes == own
        lines.append(f"CLASSES = {'list(WORDS)' if same else ascii(list(use.classes))}")
    if "shape" in use.inputs:
        lines.append(f"SHAPE = {tuple(int(n) for n in use.inputs['shape'])!a}  # of a sample")
    if use.inputs["kind"] == "pixels":
        lines += [
            f"{name.upper()} = {[float(v) for v in use.inputs[name]]}" for name in ("mean", "std")
        ]
    if use.inputs.get("columns"):
        lines.append(f"COLUMNS = {list(use.inputs['columns'])!a}  # in this order")
    if use.inputs["kind"] == "cells":
        from fedloom.data.own.preparation import EMPTY

        rules = "".join(f"    {_rule(rule)!a},\n" for rule in use.inputs["rules"])
        lines += [f"RULES = [\n{rules}]", f"EMPTY = {sorted(EMPTY)!a}  # a missing cell"]
    if "source" in use.inputs:
        source = ascii(str(use.inputs["source"]))
        lines.append(f"TOKENISER = AutoTokenizer.from_pretrained({source})")
    if use.metric:
        lines.append(f"SAID, SAMPLES = {use.said!r}, {use.samples}  # {use.name} of the run")
    return "\n".join(lines)


def _rule(rule: Mapping[str, Any]) -> tuple[Any, ...]:
    """How a column becomes numbers: kind, what stands for a missing cell, mean, std, values, and
    whether these are numbers.
    """
    from fedloom.data.own.preparation import KINDS, Column

    values, fill = [str(value) for value in rule["values"]], rule["fill"]
    if rule["kind"] not in KINDS or not isinstance(fill, str | float | None):
        raise ValueError(f"the rule of column {rule['name']}")
    numeric = Column("", rule["kind"], tuple(values), fill).numeric
    return rule["kind"], fill, float(rule["mean"]), float(rule["std"]), values, numeric


def _prepare(use: Use) -> str:
    """Python that makes the model's inputs of published samples."""
    how = use.inputs
    shape, dtype = tuple(int(n) for n in how.get("shape", ())), str(how.get("dtype", "float32"))
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype}")
    kind, values = how["kind"], {"dtype": dtype, "cast": "", "shape": ""}
    if use.dtype != dtype and dtype != "int64":
        values["cast"] = f".to(torch.{use.dtype})"
    if kind == "pixels":
        scale = float(how["scale"])
        values["scale"] = repr(int(scale) if scale.is_integer() else scale)
        values["shape"] = f"(n, {', '.join(map(str, shape))})"
        values["grey"] = f", also (n, {', '.join(map(str, shape[1:]))})," if shape[0] == 1 else ""
    elif kind == "numbers":
        values["about"] = "Numbers as they were stored" + (
            ", one for each of COLUMNS." if how.get("columns") else "."
        )
        values["named"] = ""
        if how.get("columns"):
            frame = 'inputs = inputs[COLUMNS] if hasattr(inputs, "columns") else inputs'
            values["named"] = f"\n    {frame}  # of a data frame"
    elif kind in ("words", "subwords", "characters", "running"):
        values["length"] = str(int(how.get("length", shape[-1])))
        values["about"] = "Texts as the numbers that the model takes"
    elif kind == "own":
        values["transform"] = ascii(str(how["transform"]))
    return PREPARE[kind].format(**values)


def _running(use: Use) -> str:
    """Python that runs the model on raw inputs, and checks it where the metric can be exported."""
    kind = None if use.metric is None else use.metric["kind"]
    batch = max(1, BATCH // use.tokens)
    about, body = "As outputs().", "return outputs(inputs)"
    if kind == "accuracy":
        about, body = "The likeliest class of each input.", "places = outputs(inputs).argmax(1)"
        named = "[CLASSES[i] for i in places.tolist()]" if use.classes else "places.tolist()"
        body += f"\n    return {named}"
    text = USE.format(batch=batch, about=about, body=body)
    if use.metric is None:
        return text + "\n\nmodel = load()\n"
    ignore = use.metric.get("ignore")
    told = "" if ignore is None else f"[wanted != {int(ignore)}]"
    final = "math.exp(total / count)" if kind == "perplexity" else "total / count"
    each = EACH[str(kind)].format(told=told)
    tie = " + 1 / len(targets)  # two classes may tie" if kind == "accuracy" else ""
    values = {"metric": _word(use.name), "batch": batch, "each": each, "final": final, "tie": tie}
    return text + CHECK.format(**values)


def _word(name: str) -> str:
    """A metric's name inside of code: letters, digits and underscores."""
    return "".join(c for c in name if c.isascii() and (c.isalnum() or c in " _-")) or "metric"


def call(run: Path) -> str:
    """Python that makes the model that a run's configuration names."""
    from fedloom.config import from_run
    from fedloom.config.validation import live

    table = from_run(run, ["device=cpu"], own=True).values["model"]
    options = live({k: v for k, v in table.items() if k != "name"})
    return f'MODELS["{table["name"]}"]({", ".join(f"{k}={v!a}" for k, v in options.items())})'


def architecture(module: nn.Module, indent: str = "") -> str | None:
    """Python that makes a module of torch's own layers in Sequentials and in our blocks; None for
    any other.

    >>> from torch import nn
    >>> architecture(nn.Linear(2, 1))
    'nn.Linear(in_features=2, out_features=1, bias=True)'
    """
    from torch import nn

    from fedloom.models import MultiExit, Residual
    from fedloom.models.recurrent import RecurrentNet
    from fedloom.models.transformer import Encoder, Tokens

    kind, inner = type(module), indent + "    "
    if kind is Residual or kind is MultiExit:
        return _block(module, indent)
    if kind in (Tokens, Encoder, RecurrentNet):
        return _of_text(module, indent)
    if kind is nn.Sequential:
        parts = [(name, architecture(child, inner)) for name, child in module.named_children()]
        if any(part is None for _, part in parts):
            return None
        body = "\n".join(f"{inner}({name!a}, {part})," for name, part in parts)
        return f"nn.Sequential(OrderedDict([\n{body}\n{indent}]))"
    own = kind.__module__.startswith("torch.nn.modules")
    if not own or getattr(nn, kind.__name__, None) is not kind or list(module.children()):
        return None
    text = f"nn.{module!r}"
    return text if _makes(text, module) else None


def _block(module: Any, indent: str) -> str | None:
    """Python that makes a residual block, or a model with exits."""
    from fedloom.models import Residual

    inner = indent + "    "
    if isinstance(module, Residual):
        body = architecture(module.body, inner)
        other = "None" if module.shortcut is None else architecture(module.shortcut, inner)
        if body is None or other is None:
            return None
        return f"Residual(\n{inner}{body},\n{inner}{other},\n{indent})"
    deeper, tables = inner + "    ", []
    for names, prefix in ((module.stages, ""), (module.exits, "exit_")):
        parts = {n: architecture(module.get_submodule(prefix + n), deeper) for n in names}
        if None in parts.values():
            return None
        rows = "\n".join(f"{deeper}{n!a}: {part}," for n, part in parts.items())
        tables.append(f"{inner}{{\n{rows}\n{inner}}},")
    return "MultiExit(\n" + "\n".join(tables) + f"\n{indent})"


def _of_text(module: Any, indent: str) -> str | None:
    """Python that makes a part of our networks for texts."""
    from fedloom.models.recurrent import RecurrentNet
    from fedloom.models.transformer import Tokens

    if isinstance(module, Tokens):
        sizes = module.weights.num_embeddings, *module.places.shape, module.padding
        return f"Tokens{sizes}"
    if not isinstance(module, RecurrentNet):
        width, heads = module.attention.enter.in_features, module.attention.heads
        return f"Encoder({width}, {heads}, {module.norm is not None})"
    inner = indent + "    "
    parts = [architecture(part, inner) for part in (module.embedding, module.head)]
    layers: list[Any] = [module.get_submodule(name) for name in module.recurrent]
    if None in parts or not all(layer.lstm.bias for layer in layers):
        return None
    layers_of = [(each.lstm.input_size, each.lstm.hidden_size, each.last) for each in layers]
    tied = module.head.weight is module.embedding.get_submodule("weights").weight
    rows = "".join(f"{inner}{row},\n" for row in (parts[0], layers_of, parts[1], tied))
    return f"RecurrentNet(\n{rows}{indent})"


def _makes(text: str, module: nn.Module) -> bool:
    """True if this text makes such a module: a layer's repr need not be its constructor."""
    from torch import nn

    try:
        made = eval(text, {"nn": nn})
    except (
        Exception
    ):  # a repr may be any text; if no module can be made from it, it is exported otherwise
        return False
    shapes = {k: v.shape for k, v in module.state_dict().items()}
    return (
        repr(made) == repr(module) and {k: v.shape for k, v in made.state_dict().items()} == shapes
    )
