"""A model that `fedloom export` wrote, on raw samples: only torch and numpy are needed.

`python export.py --check FILE.npz` scores it on that file's arrays inputs and targets. Beside this
file lie the network (.pt2, by torch.export) and what the run said of it (.about.json): how inputs
are made, names of classes, the score, the version of torch.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.export
from torch import Tensor

BATCH = 500  # labels, or tokens, that are evaluated at once: as a run does
HERE = Path(__file__)


# ---------------------------------------------------------------------------- what is beside it
@cache
def about() -> dict[str, Any]:
    """What the run said of the model."""
    text = HERE.with_suffix(".about.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


@cache
def load() -> Callable[[Any], Any]:
    """The network in evaluation mode: prepared inputs -> outputs. Raises RuntimeError where the
    export has none or this torch is too old for it, FileNotFoundError where its file is gone.
    """
    file, wrote = HERE.with_suffix(".pt2"), about()["torch"]
    if wrote is None:
        raise RuntimeError("the export has no network: outputs(samples, network) takes your own")
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: it belongs beside the script")
    logging.getLogger("torch.export").setLevel(logging.ERROR)  # it warns of older files at length
    try:
        network: Any = torch.export.load(file).module()
    except Exception as error:  # of any type: torch promises none for another version's file
        raise RuntimeError(
            f"{file} was written by torch {wrote}, and torch {torch.__version__} cannot load it "
            f"({error!r}); install torch {wrote}, or export again"
        ) from error
    return partial(_by_token, network) if about()["state"] else network


def _by_token(network: Any, tokens: Tensor) -> Tensor:
    """What a recurrent network makes of tokens (B, T): its program is one step."""
    layers, hidden = about()["state"]
    zero = torch.zeros(layers, len(tokens), hidden, dtype=getattr(torch, about()["dtype"]))
    state, parts = (zero, zero), []
    for place in range(tokens.shape[1]):
        part, state = network((tokens[:, place : place + 1], state))
        parts.append(part)
    return torch.cat(parts, 1) if parts[0].ndim == 3 else parts[-1]


# ----------------------------------------------------------------------- from samples to inputs
def prepare(samples: Any, known: dict[str, Any] | None = None) -> Tensor:
    """Raw samples as the network takes them, a transform of your own being missing. known: another
    description than about().
    """
    known = known or about()
    made = KINDS[known["inputs"]["kind"]](samples, known["inputs"])
    return made.to(getattr(torch, known["dtype"])) if made.is_floating_point() else made


def _tensor(samples: Any) -> Tensor:
    return torch.as_tensor(np.asarray(samples).copy())


def _shaped(values: Tensor, how: dict[str, Any]) -> Tensor:
    """Values (n, ...), if that is the shape of samples."""
    shape, wanted = tuple(values.shape[1:]), tuple(how.get("shape", values.shape[1:]))
    if shape != wanted:
        raise ValueError(f"a sample has the shape {wanted}, got {shape}")
    return values


def _pixels(samples: Any, how: dict[str, Any]) -> Tensor:
    """Pictures of whole numbers (n, C, H, W), grey ones also (n, H, W)."""
    values, shape, dtype = _tensor(samples), how["shape"], getattr(torch, how["dtype"])
    if shape[0] == 1 and list(values.shape[1:]) == shape[1:]:
        values = values.unsqueeze(1)
    values = _shaped(values, how)
    if values.is_floating_point() and bool((values != values.round()).any()):
        raise ValueError(f"pixels are whole numbers from 0 to {how['scale']:g}: here are fractions")
    mean, std = (torch.tensor(how[key], dtype=dtype).view(-1, 1, 1) for key in ("mean", "std"))
    return values.to(dtype).div(how["scale"]).sub(mean).div(std)


def _numbers(samples: Any, how: dict[str, Any]) -> Tensor:
    """Numbers as they were stored; of a data frame the columns by their names."""
    named = how.get("columns") and hasattr(samples, "columns")
    values = _tensor(samples[how["columns"]] if named else samples)
    return _shaped(values.to(getattr(torch, how["dtype"])), how)


def _cells(samples: Any, how: dict[str, Any]) -> Tensor:
    """Rows of a table: a data frame, mappings from names of columns, or cells in their order."""
    made, rules = [], how["rules"]
    for row in samples.to_dict("records") if hasattr(samples, "to_dict") else samples:
        cells = [row[rule["name"]] for rule in rules] if isinstance(row, dict) else row
        each = zip(cells, rules, strict=True)
        made.append([number for cell, rule in each for number in _cell(cell, rule)])
    return torch.tensor(made, dtype=torch.float64).to(getattr(torch, how["dtype"]))


def _cell(value: Any, rule: dict[str, Any]) -> list[float]:
    """The numbers that a cell becomes."""
    name, kind, values = rule["name"], rule["kind"], rule["values"]
    if value is None or value != value or value in rule["empty"]:
        if rule["fill"] is None:
            raise ValueError(f"column {name!r}: a cell is empty, and in training none was")
        value = rule["fill"]
    if kind == "number":
        return [(float(value) - rule["mean"]) / rule["std"]]
    text = _category(value, rule["numeric"])
    if kind == "one_hot":
        return [float(text == known) for known in values]
    if text not in values:
        raise ValueError(f"column {name!r}: {text!r} is none of {', '.join(values)}")
    return [float(values.index(text))]


def _category(value: Any, numeric: bool) -> str:
    """A cell as a text; among numbers 1, "1.0" and " 01 " are "1"."""
    text = str(value).strip() if numeric else str(value)
    if numeric and text.lstrip("+-").isdecimal():
        return str(int(text))
    try:
        number = float(text) if numeric else value
    except ValueError:
        return str(value)
    return str(int(number)) if isinstance(number, float) and number.is_integer() else str(number)


def _texts(samples: Any, how: dict[str, Any]) -> Tensor:
    """Texts as numbers of their words, characters or tokens; arrays of such numbers stay."""
    samples = [samples] if isinstance(samples, str) else samples
    if len(samples) and not isinstance(samples[0], str):
        return _tensor(samples).long()
    return torch.tensor([_text(text, how) for text in samples], dtype=torch.int64)


def _text(text: str, how: dict[str, Any]) -> list[int]:
    kind, length, known = how["kind"], how.get("length", how["shape"][-1]), how.get("words", {})
    if kind == "subwords":
        ready = {"truncation": True, "max_length": length, "padding": "max_length"}
        return list(_tokeniser(how["source"])(text, **ready)["input_ids"])
    if kind == "running":
        return [known.get(word, known["<unk>"]) for word in text.split()]
    if kind == "characters":
        if len(text) != length:
            raise ValueError(f"a text has {length} characters, got {len(text)}")
        return [known.get(sign, len(known) - 1) for sign in text]
    words = re.findall(r"\w+(?:'\w+)?|[^\w\s]", text.lower())[:length]
    found = [known.get(word, known["<unk>"]) for word in words]
    return found + [known["<pad>"]] * (length - len(found))


@cache
def _tokeniser(source: str) -> Any:
    return importlib.import_module("transformers").AutoTokenizer.from_pretrained(source)


# how samples become inputs, by the kind that fedloom.data.raw_inputs.recipe names
KINDS: dict[str, Callable[[Any, dict[str, Any]], Tensor]] = {
    "pixels": _pixels,
    "numbers": _numbers,
    "cells": _cells,
    **dict.fromkeys(("words", "characters", "running", "subwords"), _texts),
    **dict.fromkeys(("own", "unknown", "cells_per_client"), lambda samples, how: _tensor(samples)),
}


# ---------------------------------------------------------------------------- using and checking
@torch.no_grad()
def outputs(samples: Any, network: Any = None) -> Tensor:
    """The network's outputs for raw samples (n, ...). network: another nn.Module than the exported,
    which is put into evaluation mode.
    """
    run = load() if network is None else network.eval()
    size = max(1, BATCH // about()["tokens"])
    starts = range(0, len(samples), size)
    parts = [run(prepare(samples[start : start + size])) for start in starts]
    return torch.cat([getattr(part, "logits", part) for part in parts])


def predict(samples: Any, network: Any = None) -> Any:
    """The likeliest class of each raw sample, by its name if it has one; outputs where there are no
    classes.
    """
    out, classes = outputs(samples, network), about()["classes"]
    if (about()["metric"] or {}).get("kind") != "accuracy":
        return out
    places = out.argmax(1).tolist()
    return [classes[place] for place in places] if classes else places


def score(samples: Any, targets: Any, network: Any = None) -> float:
    """The run's metric on raw samples and their targets, as the run measured it."""
    metric, total, count = about()["metric"], 0.0, 0
    if metric is None:
        raise ValueError(f"the metric {about()['name']!r} is code of the run's own")
    size = max(1, BATCH // about()["tokens"])
    for start in range(0, len(targets), size):
        wanted = _tensor(targets[start : start + size])
        each = _each(metric, outputs(samples[start : start + size], network), wanted)
        total, count = total + float(each.double().sum()), count + each.numel()
    return math.exp(total / count) if metric["kind"] == "perplexity" else total / count


def _each(metric: dict[str, Any], out: Tensor, wanted: Tensor) -> Tensor:
    """What each target adds to the mean."""
    kind, ignore = metric["kind"], metric.get("ignore")
    if kind == "squared error":
        return (out.reshape(wanted.shape) - wanted).square()
    if out.shape[:-1] == wanted.shape:  # a class for every token
        out = out.movedim(-1, 1)
    each = out.argmax(1) == wanted
    if kind == "perplexity":
        each = torch.nn.functional.cross_entropy(out, wanted, reduction="none")
    return each if ignore is None else each[wanted != ignore]


def agrees(found: float, samples: int) -> bool:
    """Whether a score on so many samples is what the run said; two classes may tie."""
    said, tie = about()["said"], about()["metric"]["kind"] == "accuracy"
    return bool(abs(found - said) <= 0.001 * max(1.0, abs(said)) + (1 / samples if tie else 0))


def check(file: str) -> bool:
    """Score the raw inputs and targets of an npz file -> whether that is what the run said."""
    with np.load(file, allow_pickle=False) as arrays:
        samples, targets = arrays["inputs"], arrays["targets"]
    found, said, count = score(samples, targets), about()["said"], about()["samples"]
    line = f"{about()['name']} {found:.6g} on {len(targets)} samples"
    if said is None:
        print(f"{line}; the run measured nothing here")
        return True
    same = agrees(found, len(targets))
    verdict = "the same" if same else "NOT THE SAME: are they the run's test samples, as published?"
    print(f"{line}; the run said {said:.6g} on {count or 'its'} test samples: {verdict}")
    return same


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--check":
        sys.exit(f"usage: python {sys.argv[0]} --check FILE.npz (arrays inputs and targets)")
    try:
        sys.exit(0 if check(sys.argv[2]) else 1)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        sys.exit(f"error: {sys.argv[2]} cannot be checked: {error}")
