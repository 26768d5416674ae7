"""A model that `fedloom export` wrote, on raw samples: only torch and numpy are needed.

python predict.py patients.csv --out scores.csv    probabilities and class of every row
"""

from __future__ import annotations

import argparse
import csv
import importlib
import io
import json
import logging
import pickle
import re
import runpy
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

Site = str | None  # a site by its name, or the file of its numbers
BATCH = 500  # labels, or tokens, that are evaluated at once: as a run does
HERE = Path(__file__).parent
NOT_OURS = "damaged, or not what `fedloom export` wrote: copy it again, or export again"
PLAIN: dict[str, Any] = {"kind": "number", "fill": None, "mean": 0.0, "std": 1.0}  # as it is
BY_HAND = "make it yourself, load the weights, and call outputs(samples, network)"
# parts of an archive, and what texts of a program may be
PARTS = r"(archive/)?(data/(weights/weight|constants/tensor)_\d+|(\.data/)?\w+|"
PARTS += r"(data/\w+/|models/)?(model(_\w+_config)?|serialized_\w+)\.(pt|json))"
CALL = r"torch\.ops\.aten\.(?!save\b|from_file\b)\w+\.\w+|_operator\.[a-z_]{2,9}|math\.\w+"
CALL += r"|torch\._?sym_\w+|torch\.ops\.higher_order\.(cond|wrap_with_\w+)"
SUM = r"([A-Z]\w*\(|[A-Za-z]\w*(?!\w|\s*\()|\d+\.?\d*(?![\d.])|'[\w.+-]*'|\)(?!\s*\()"
SUM += r"|[\s+*/%(,=<>!&|~-])*"
TREE = r"[a-z]+|builtins\.(tuple|list|dict)"  # a device, or a collection
KEYS = r'null|\[("\w*",? ?)*\]'  # of a collection
ALLOWED = {"target": CALL, "as_operator": CALL, "expr_str": SUM, "type": TREE, "context": KEYS}
ALLOWED["use_pickle"] = ""


@cache
def about() -> dict[str, Any]:
    """What the run said of the model. Raises ValueError where the file is not whole."""
    facts: dict[str, Any] = {}
    with suppress(ValueError, TypeError):
        facts = dict(json.loads((HERE / "about.json").read_text(encoding="utf-8")))
    if not facts.keys() >= {"torch", "state", "inputs", "dtype", "tokens", "outcome"}:
        raise ValueError(f"{HERE / 'about.json'} is {NOT_OURS}")
    return facts


@cache
def load() -> Callable[[Any], Any]:
    """The network: prepared inputs -> outputs. Raises RuntimeError, or FileNotFoundError."""
    file, wrote, installed = HERE / "model.pt2", about()["torch"], torch.__version__
    if wrote is None:
        raise RuntimeError("the export has no network: outputs(samples, network) takes your own")
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: it belongs beside the script")
    logging.getLogger("torch.export").setLevel(logging.CRITICAL)  # it warns of older files, and
    try:  # says at length what is raised
        with warnings.catch_warnings():  # torch 2.11 reads its own file with a warning
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            network: Any = torch.export.load(harmless(file)).module()
    except pickle.UnpicklingError as error:
        raise RuntimeError(f"{file} is refused: it {refusal(error)}; {BY_HAND}") from error
    except Exception as error:  # of any type: torch promises none for another version's file
        old = f", or install torch {wrote}, which wrote it: this is {installed}"
        raise RuntimeError(f"{file} is {NOT_OURS}{'' if wrote == installed else old}") from error
    return partial(_by_token, network) if about()["state"] else network


def refusal(error: Exception) -> str:
    """Why a network is not loaded: what it calls outside of torch's mathematics, if it does."""
    key, _, name = str(error).partition(": ")
    text = f"calls {name}, and only operators of torch.ops.aten are run, since others "
    return f"{text if key in ('target', 'as_operator') else ''}may run code"


def harmless(file: Path | io.BytesIO) -> io.BytesIO:
    """The archive, written anew, if nothing runs code when torch loads it; or UnpicklingError."""
    rewritten = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(rewritten, "w") as new:
        for name in dict.fromkeys(old.namelist()):
            part = old.read(name)
            if not re.fullmatch(PARTS, name):
                raise pickle.UnpicklingError(name)
            if name.endswith(".json"):
                part = json.dumps(json.loads(part, object_hook=_plain)).encode()
            elif name.endswith(".pt"):
                torch.load(io.BytesIO(part), weights_only=True)
            new.writestr(name, part)
    return io.BytesIO(rewritten.getvalue())


def _plain(part: dict[str, Any]) -> dict[str, Any]:
    """A part of a network's program if it calls torch's mathematics alone. Raises as above."""
    for key, allowed in ALLOWED.items():
        if not re.fullmatch(f"({allowed})?", str(part.get(key) or "")):
            raise pickle.UnpicklingError(f"{key}: {part.get(key)}")
    for key in {"in_spec", "out_spec"} & part.keys():
        json.loads(part[key] or "null", object_hook=_plain)
    return part | {"guards_code": []} if "guards_code" in part else part


def _by_token(network: Any, tokens: Tensor) -> Tensor:
    """What a recurrent network makes of tokens (B, T): its program is one step."""
    layers, hidden = about()["state"]
    zero = torch.zeros(layers, len(tokens), hidden, dtype=getattr(torch, about()["dtype"]))
    state, parts = (zero, zero), []
    for position in range(tokens.shape[1]):
        part, state = network((tokens[:, position : position + 1], state))
        parts.append(part)
    return torch.cat(parts, 1) if parts[0].ndim == 3 else parts[-1]


def prepare(
    samples: Any, facts: Any = None, site: Site = None, strict: bool = False, first: int = 1
) -> Tensor:
    """Raw samples as the network takes them, without a transform of your own. site: whose numbers
    prepare columns, its name or a file; strict: an unknown category is an error, unless its rule
    has `others`; first: the first row's number; facts: in place of about()."""
    facts = facts or about()
    recipe = facts["inputs"] | {"strict": strict, "first": first}
    if "rules" in recipe:
        recipe["rules"] = at_site(recipe, site)
    inputs: Tensor = KINDS[recipe["kind"]](samples, recipe)
    return inputs.to(getattr(torch, facts["dtype"])) if inputs.is_floating_point() else inputs


def at_site(recipe: dict[str, Any], site: Site) -> list[dict[str, Any]]:
    """The rules of columns, with the site's own numbers. Raises ValueError where these miss."""
    if (sites := recipe.get("sites")) is None:
        return list(recipe["rules"])
    if site is None or not (site in sites or Path(site).is_file()):
        choices = f"one of {', '.join(sites)}, or " if sites else ""
        problem = "" if site is None else f", and {site!r} is none"
        advice = f"{problem}: give --site, {choices}the file preparation.json of the site's node"
        raise ValueError(f"every site prepared its columns by its own rows{advice}")
    numbers = sites[site] if site in sites else json.loads(Path(site).read_text(encoding="utf-8"))
    return [rule | numbers.get(rule["name"], {}) for rule in recipe["rules"]]


def _tensor(samples: Any) -> Tensor:
    if (array := np.asarray(samples)).dtype.kind not in "biuf":
        raise ValueError("samples are no numbers, and nothing here says how they become some")
    return torch.as_tensor(array.copy())


def _shaped(values: Tensor, recipe: dict[str, Any]) -> Tensor:
    """Values (n, ...), if that is the shape of samples."""
    if (shape := tuple(values.shape[1:])) != (expected := tuple(recipe.get("shape", shape))):
        raise ValueError(f"a sample has the shape {expected}, got {shape}")
    return values


def _pixels(samples: Any, recipe: dict[str, Any]) -> Tensor:
    """Pictures of whole numbers (n, C, H, W), grey ones also (n, H, W)."""
    values, shape, dtype = _tensor(samples), recipe["shape"], getattr(torch, recipe["dtype"])
    if shape[0] == 1 and list(values.shape[1:]) == shape[1:]:
        values = values.unsqueeze(1)
    values = _shaped(values, recipe)
    if values.is_floating_point() and bool((values != values.round()).any()):
        raise ValueError(
            f"pixels are whole numbers from 0 to {recipe['scale']:g}: here are fractions"
        )
    mean, std = (torch.tensor(recipe[key], dtype=dtype).view(-1, 1, 1) for key in ("mean", "std"))
    return values.to(dtype).div(recipe["scale"]).sub(mean).div(std)


def _numbers(samples: Any, recipe: dict[str, Any]) -> Tensor:
    """Numbers as they were stored; of a table the columns by their names."""
    rows = isinstance(samples, list) and samples and isinstance(samples[0], dict)
    if recipe.get("columns") and (rows or hasattr(samples, "columns")):
        return _cells(samples, recipe | {"rules": [PLAIN | {"name": n} for n in recipe["columns"]]})
    return _shaped(_tensor(samples).to(getattr(torch, recipe["dtype"])), recipe)


def _cells(samples: Any, recipe: dict[str, Any]) -> Tensor:
    """Rows of a table: a data frame, mappings from names of columns, or cells in their order."""
    rows, rules = _rows(samples), recipe["rules"]
    by_name, columns = len(rows) > 0 and isinstance(rows[0], dict), []
    for number, row in enumerate(rows, recipe.get("first", 1)):
        if not by_name and len(row) != len(rules):
            raise ValueError(f"row {number} has {len(row)} cells, and the model takes {len(rules)}")
        if missing := [rule["name"] for rule in rules if by_name and rule["name"] not in row]:
            raise ValueError(f"no column {missing[0]!r}; there are {', '.join(row)}")
    for i, rule in enumerate(rules):
        cells = _column(rows, rule["name"] if by_name else i)
        try:
            columns.append(tables().inputs(cells, rule, recipe.get("strict", False)))
        except tables().CellError as error:
            number = recipe.get("first", 1) + error.row
            raise ValueError(f"column {rule['name']!r}, row {number}: {error}") from None
    return torch.from_numpy(np.concatenate(columns, axis=1)).to(getattr(torch, recipe["dtype"]))


@cache
def tables() -> Any:
    """What makes numbers of a table's cells: fedloom's own file, of which a copy lies here."""
    if __package__:
        return importlib.import_module("fedloom.data.own.cells")
    if not (file := HERE / "cells.py").is_file():
        raise FileNotFoundError(f"{file} is missing: it belongs beside the script")
    return SimpleNamespace(**runpy.run_path(str(file)))


def _rows(samples: Any) -> Any:
    return samples.to_dict("records") if hasattr(samples, "to_dict") else samples


def _column(rows: Any, key: Any) -> Any:
    return np.fromiter((row[key] for row in rows), object, len(rows))


def _texts(samples: Any, recipe: dict[str, Any]) -> Tensor:
    """Texts as numbers of their words, characters or tokens; arrays of such numbers stay."""
    samples = [samples] if isinstance(samples, str) else samples
    if len(samples) and not isinstance(samples[0], str):
        return _tensor(samples).long()
    return torch.tensor([_text(text, recipe) for text in samples], dtype=torch.int64)


def _text(text: str, recipe: dict[str, Any]) -> list[int]:
    kind, numbers = recipe["kind"], recipe.get("words", {})
    length = recipe.get("length", recipe["shape"][-1])
    if kind == "subwords":
        ready = {"truncation": True, "max_length": length, "padding": "max_length"}
        return list(_tokeniser(recipe["source"])(text, **ready)["input_ids"])
    if kind == "running":
        return [numbers.get(word, numbers["<unk>"]) for word in text.split()]
    if kind == "characters":
        if len(text) != length:
            raise ValueError(f"a text has {length} characters, got {len(text)}")
        return [numbers.get(sign, len(numbers) - 1) for sign in text]
    words = re.findall(r"\w+(?:'\w+)?|[^\w\s]", text.lower())[:length]
    codes = [numbers.get(word, numbers["<unk>"]) for word in words]
    return codes + [numbers["<pad>"]] * (length - len(codes))


@cache
def _tokeniser(source: str) -> Any:
    return importlib.import_module("transformers").AutoTokenizer.from_pretrained(source)


# how samples become inputs, by the kind that fedloom.data.raw_inputs.recipe names
KINDS: dict[str, Any] = dict.fromkeys(("own", "unknown"), lambda samples, _: _tensor(samples))
KINDS |= {"pixels": _pixels, "numbers": _numbers, "cells": _cells, "cells_per_client": _cells}
KINDS |= dict.fromkeys(("words", "characters", "running", "subwords"), _texts)


@torch.no_grad()
def outputs(samples: Any, network: Any = None, site: Site = None, strict: bool = False) -> Tensor:
    """The outputs for raw samples (n, ...) of the network, or another; else as prepare()."""
    run = load() if network is None else network.eval()
    size = max(1, BATCH // about()["tokens"])
    starts = range(0, len(samples), size)
    parts = [run(prepare(samples[a : a + size], None, site, strict, a + 1)) for a in starts]
    return torch.cat([getattr(part, "logits", part) for part in parts])


def chances(out: Tensor) -> Any:
    """Probabilities (n, classes) of outputs, None without classes; one output is the second's."""
    if about()["outcome"] in ("classes", "marks") and out[:1].numel() == 1:
        one = out.reshape(-1).sigmoid()
        return torch.stack([1 - one, one], 1)
    return out.softmax(1) if about()["outcome"] == "classes" else None


def class_numbers(out: Tensor) -> Tensor:
    """The class of each output by its number: of two the second where it is above the threshold."""
    likely, threshold = chances(out), float(about()["threshold"])
    if likely is None or likely.shape[1] != 2:
        return out.argmax(1)
    usual = threshold == 0.5 and out.shape == likely.shape  # the same up to rounding
    return out.argmax(1) if usual else (likely[:, 1] > threshold).long()


def predict(samples: Any, network: Any = None, site: Site = None) -> Any:
    """Each raw sample's class, or its pixels' (n, H, W), or outputs. Odd cells: ValueError."""
    out, names = outputs(samples, network, site, strict=True), about()["classes"]
    if chances(out) is None:
        return out.argmax(1) if about()["outcome"] == "pixels" else out
    return [names[number] if names else number for number in class_numbers(out).tolist()]


def outside(samples: Any) -> list[str]:
    """A line for each column with numbers or values that the model was not trained on."""
    rows, lines = _rows(samples), []
    if not len(rows) or not isinstance(rows[0], dict):
        return []
    rules = {rule["name"]: rule for rule in about()["inputs"].get("rules", ())}

    def nonempty(name: str) -> Any:
        rule = rules.get(name, PLAIN)
        cells = tables().recoded(_column(rows, name), rule)
        return cells[~tables().empty(cells, rule.get("empty", ()))]

    for name, (low, high) in about()["ranges"].items():
        rounding, numbers = 1e-6 * max(abs(low), abs(high)), tables().finite_numbers(nonempty(name))
        if count := int(((numbers < low - rounding) | (numbers > high + rounding)).sum()):
            finding = f"{count} of {len(rows)} rows outside {low:g} to {high:g}, those that it was"
            lines.append(f"column {name!r}: {finding} trained on")
    for name in (name for name, rule in rules.items() if rule.get("others")):
        cells, values = nonempty(name), rules[name]["values"]
        strange = cells[tables().category_codes(cells, rules[name]) < 0]
        if len(strange):
            finding = f"{len(strange)} of {len(rows)} rows, as {strange[0]!r}, are none of"
            lines.append(f"column {name!r}: {finding} {', '.join(values)}")
    return lines


def _array(file: str) -> Any:
    """The array of a .npy, or inputs of a .npz. Raises ValueError."""
    with suppress(EOFError, ValueError, zipfile.BadZipFile, zlib.error), open(file, "rb") as stream:
        content = np.load(stream, allow_pickle=False)
        return content if isinstance(content, np.ndarray) else content["inputs"]
    raise ValueError("it is cut, or no .npy or .npz file of numbers; copy it again")


def picture(file: str, recipe: dict[str, Any]) -> Any:
    """A picture file as an array (1, C, H, W), resized as in training. recipe: of the inputs."""
    if (recipe["kind"], recipe.get("scale")) != ("pixels", 255):
        raise ValueError("the model was not trained on picture files; give a .npy")
    try:
        image = importlib.import_module("PIL.Image")
        with image.open(file) as photo:
            if photo.mode[0] in "IF" or (photo.format == "TIFF" and photo.n_frames > 1):
                raise ValueError("it has more than 8 bits a pixel, or several pages")
            grey = "L" if photo.mode in ("1", "L", "LA", "La") else "RGB"
            photo = photo.resize(recipe["shape"][:0:-1]) if recipe.get("resized") else photo
            return np.atleast_3d(photo.convert(grey)).transpose(2, 0, 1)[None]
    except ImportError:
        raise ValueError("pictures need pillow: pip install pillow") from None
    except (SyntaxError, image.DecompressionBombError) as error:
        raise ValueError(f"it is no whole picture: {error}") from None


def read(file: str) -> Any:
    """Rows of a .csv, lines of a .txt, arrays of a .npy, .npz or picture file, or ValueError."""
    if (path := Path(file)).suffix in (".npy", ".npz"):
        return _array(file)
    if re.fullmatch(r"\.(png|jpe?g|bmp|gif|webp|p[gp]m|tiff?)", path.suffix.lower()):
        return picture(file, about()["inputs"])
    encoding = (reading := about()["reading"]).get("encoding", "utf-8")
    try:
        text = path.read_text(encoding="utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError:
        raise ValueError(f"it is not {encoding.upper()}; save it so") from None
    if path.suffix == ".txt":
        return text.splitlines()
    sep, names = reading.get("sep", ","), reading.get("names") or ()
    rows = [row for row in csv.reader(text.splitlines(keepends=True), delimiter=sep) if row]
    heads = [*names] or [head.strip() for head in (rows.pop(0) if rows else ())]
    if not rows:
        raise ValueError("it has no rows below a header")
    if len(heads) == 1 and any(mark in heads[0] for mark in ";,\t"):
        raise ValueError(f"its cells are not separated by {sep!r}; save it so")
    if repeated := [head for head in heads if heads.count(head) > 1]:
        raise ValueError(f"two columns are called {repeated[0]!r}")
    for number, row in enumerate(rows, 1):
        if len(row) != len(heads):
            raise ValueError(f"row {number} has {len(row)} cells, and the header {len(heads)}")
    if reading.get("decimal") == ",":
        rows = [[re.sub(r"^\s*([+-]?\d*),(\d+)\s*$", r"\1.\2", c) for c in row] for row in rows]
    return [dict(zip(heads, row, strict=True)) for row in rows]


def scored(samples: Any, site: Site = None) -> Iterator[list[Any]]:
    """A header, and each sample's number, chances and class, or each pixel's class, or outputs."""
    out = outputs(samples, None, site, strict=True)
    likely, names = chances(out), about()["classes"]
    if about()["outcome"] == "pixels":
        yield ["row", "y", "x", "class"]
        classes = np.ndenumerate(class_numbers(out))
        yield from ([n + 1, *position, names[c] if names else c] for (n, *position), c in classes)
    elif likely is None:
        values = out.flatten(1) if out.ndim > 1 else out[:, None]
        yield ["row", *(f"output_{i}" for i in range(values.shape[1]))]
        yield from ([number, *row] for number, row in enumerate(values.tolist(), 1))
    else:
        names = names or list(map(str, range(likely.shape[1])))
        yield ["row", *(f"probability_{name}" for name in names), "class"]
        both = zip(likely.tolist(), class_numbers(out).tolist(), strict=True)
        for number, (row, place) in enumerate(both, 1):
            yield [number, *(f"{chance:.6g}" for chance in row), names[place]]


def main() -> int:
    """The command line -> the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("samples", help="a .csv, .txt, .npy, .npz or picture file")
    parser.add_argument("--out", help="the file of scores, CSV (default: they are printed)")
    parser.add_argument("--site", help="whose numbers prepare the columns: a name, or a file")
    args = parser.parse_args()
    try:
        samples, out = read(args.samples), args.out
        lines = list(scored(samples, args.site))
        with open(out, "w", encoding="utf-8", newline="") if out else nullcontext(sys.stdout) as to:
            csv.writer(to, lineterminator="\n").writerows(lines)
        sys.stderr.writelines(f"warning: {args.samples}, {line}\n" for line in outside(samples))
        return 0
    except (OSError, LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        print(f"error: {args.samples}: {reason}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
