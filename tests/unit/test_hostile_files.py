"""Files and settings that are damaged, enormous or in another encoding: one clear line each."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import numpy as np
import pytest
from click.testing import CliRunner

from fedloom import Experiment
from fedloom.algorithm import FedAvg
from fedloom.cli.__main__ import cli
from fedloom.config import resolve
from fedloom.config.overrides import refuse_repeats
from fedloom.data import from_clients
from fedloom.data.client_indices import read_arrays
from fedloom.data.own.folders import folders
from fedloom.data.own.tables import table
from fedloom.data.partition.without_labels import lists
from fedloom.data.published.files import read_idx, read_json
from fedloom.errors import ConfigError, DataError
from fedloom.federation.capacities import levels_of
from fedloom.models import mlp

TOML = resolve("digits").to_toml()
DIGITS = "9" * 5000


def refused(kind, call, *said):
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500, text
    for part in said:
        assert part in text
    return text


# --------------------------------------------------------------------------------------- settings
FILES = {
    "deep arrays": (b"a = " + b"[" * 10_000, "nested deeper"),
    "deep arrays that end": (b"a = " + b"[" * 10_000 + b"]" * 10_000, "nested deeper"),
    "deep tables": (b"a = " + b"{x = " * 10_000 + b"1" + b"}" * 10_000, "nested deeper"),
    "a long key": (b".".join([b"a"] * 1000) + b" = 1", "nested deeper"),
    "a long header": (b"[" + b".".join([b"a"] * 1000) + b"]\nx = 1", "nested deeper"),
    "a number of 5,000 digits": (f"rounds = {DIGITS}".encode(), "digits"),
    "one of 4,000": (f"rounds = {DIGITS[:4000]}".encode(), "4000 digits"),
    "UTF-16": (TOML.encode("utf-16"), "UTF-16 text; save it as UTF-8"),
    "UTF-32": (TOML.encode("utf-32"), "UTF-32 text; save it as UTF-8"),
    "Latin-1": (TOML.encode() + "# é".encode("latin-1"), "not UTF-8 text: byte 0xe9"),
    "no text": (bytes(range(256)), "not"),
    "zeros": (b"rounds = \0\0", "not TOML"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_of_settings_that_cannot_be_used_is_one_line(case, tmp_path):
    raw, said = FILES[case]
    file = tmp_path / "run.toml"
    file.write_bytes(raw)
    refused(ConfigError, lambda: resolve(file), "run.toml", said)


def test_a_byte_order_mark_and_lines_of_any_kind_are_read(tmp_path):
    file = tmp_path / "run.toml"
    for raw in (b"\xef\xbb\xbf" + TOML.encode(), TOML.replace("\n", "\r\n").encode()):
        file.write_bytes(raw)
        assert resolve(file).values == {
            **resolve("digits").values,
            "name": resolve(file).values["name"],
        }


LINES = {
    "digits": ["run", f"rounds={DIGITS}"],
    "digits in a table": ["run", "digits", f"local.lr={DIGITS}"],
    "fewer digits": ["run", "digits", f"rounds={DIGITS[:400]}"],
    "workers": ["run", "digits", f"engine=workers:{DIGITS}", "--dry-run"],
    "nesting": ["run", "digits", "cohort=" + "[" * 10_000],
    "keys": ["run", "digits", ".".join(["a"] * 10_000) + "=1"],
    "a long name": ["run", "x" * 5000],
    "a capacity": ["run", "digits", "submodel=fiarse", "submodel.capacities=1e999999999"],
    "a small capacity": [
        "run",
        "digits",
        "submodel=fiarse",
        'submodel.capacities="1e-999999999,1"',
    ],
    "a size": ["run", "digits", "submodel=fiarse", "evaluate.sizes=['1e999999999']"],
    "a ratio": ["run", "digits", "compress=topk:1e999999999", "--dry-run"],
    "epochs": ["run", "digits", "local.epochs=1e18", "rounds=1", "--out", "epochs"],
    "steps": ["run", "digits", f"local.steps={10**18}", "rounds=1", "--out", "steps"],
    "a long name of a run": ["run", "digits", f"name={'n' * 300}", "rounds=1"],
    "a long folder": ["run", "digits", "rounds=1", "--out", "n" * 300],
    "a long site": ["deploy", "new", "digits", "--clients", f"{'n' * 300},b", "--out", "fed"],
    "two values": ["run", "digits", "seed=1", "seed=2"],
    "two values of a name": ["run", "digits", "algorithm=fedavg", "algorithm.name=fedprox"],
    "two values of a partition": ["run", "digits", "partition.alpha=1", "data.partition.alpha=2"],
}


@pytest.mark.parametrize("case", LINES)
def test_a_line_that_cannot_be_used_is_one_line_too(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(cli, LINES[case])
    assert found.exit_code == 2, found.output
    assert found.output.startswith("error: ") and found.output.count("\n") == 1
    assert "Traceback" not in found.output and "unexpected" not in found.output


def test_a_key_with_one_value_twice_is_no_question():
    refuse_repeats(["seed=1", "local.lr=0.1", "seed=1", "local.lr=1e-1"])
    said = refused(ConfigError, lambda: refuse_repeats(["local.lr=0.1", "local.lr=0.2"]))
    assert "local.lr=0.1 and local.lr=0.2" in said and "keep one" in said


def test_numbers_from_python_are_bounded_too():
    data = from_clients([(np.zeros((2, 3)), [0, 1])])
    parts = {"algorithm": FedAvg(), "model": lambda: mlp(3, classes=2), "data": data}
    for name in ("seed", "rounds"):
        refused(
            ConfigError, lambda n=name: Experiment(**(parts | {"rounds": 1, n: 10**5000})), name
        )


def test_capacities_and_lists_are_read_with_a_mark_and_refused_in_one_line(tmp_path):
    file = tmp_path / "capacities.json"
    file.write_bytes(b"\xef\xbb\xbf[0.5, 1]")
    assert levels_of(file) == (0.5, 1.0)
    assert levels_of("1/64, 0.1 ,1e-1,1") == (1 / 64, 0.1, 0.1, 1.0)
    for text in ("1e999999999", "1/1e9999", f"{DIGITS}/3", f"1/{DIGITS}", "1/0", "1e999999999/2"):
        refused(ConfigError, lambda t=text: levels_of(t), text[:20])
    for text in ("[" * 10_000, f"[{DIGITS}]", "[1"):
        file.write_text(text)
        refused(ConfigError, lambda: levels_of(file), "capacities.json")
    split = tmp_path / "split.txt"
    split.write_bytes(b"\xef\xbb\xbf[[0, 2], [1]]")
    assert lists(str(split)).lists.count == 2
    for text in ("[" * 10_000, f"[[{DIGITS}]]", "[[9999999999999999999999]]"):
        split.write_text(text)
        refused(DataError, lambda: lists(str(split)), "split.txt")
    for text in ("[" * 100_000, f"[{DIGITS}]"):
        file.write_text(text)
        refused(DataError, lambda: read_json(file), "capacities.json")
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps({"users": []}).encode())
    assert read_json(file) == {"users": []}


# ----------------------------------------------------------------------------------------- tables
def test_a_table_with_a_mark_is_read(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(b"\xef\xbb\xbflabel,x,who\r\n0,1.5,a\r\n1,2.5,b\r\n")
    assert table(path=file, client="who").population == 2


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (f"0,{DIGITS},a", "row 2: '999"),
        ("0,1e39,a", "no finite number"),
        (f"{DIGITS},1,a", "row 2"),
        ("99999999999,1,a", "labels count the classes"),
        ("0,²,a", "no finite number"),
    ],
)
def test_a_table_with_a_number_beyond_use_is_one_line(row, said, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(f"label,x,who\n1,2,b\n{row}\n")
    refused(DataError, lambda: table(path=file, client="who"), said)


def test_names_that_look_like_numbers_are_sorted_as_names(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(f"label,x,who\n1,2,{DIGITS}\n0,1,²\n")
    assert table(path=file, client="who").population == 2


# ----------------------------------------------------------------------------------------- arrays
def npy(array, **header):
    """The bytes of a .npy file, with another header if one is given."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), allow_pickle=True)
    raw = out.getvalue()
    if not header:
        return raw
    length = struct.unpack("<H", raw[8:10])[0]
    text = header.get("text") or repr(
        {"descr": "<f4", "fortran_order": False, "shape": (2, 3)} | header
    )
    text = text + "\n"
    return raw[:8] + struct.pack("<H", len(text)) + text.encode() + raw[10 + length :]


X, Y = np.zeros((2, 3), np.float32), np.array([0, 1])
LIES = {
    "more rows": npy(X, shape=(2000, 3)),
    "fewer rows": npy(X, shape=(1, 3)),
    "a huge array": npy(X, shape=(10**12, 10**6)),
    "more than memory": npy(X, shape=(1 << 40,)),
    "more than counts": npy(X, shape=(1 << 62, 1 << 62)),
    "below zero": npy(X, shape=(-2, -3)),
    "unknown size": npy(X, shape=(-1, 3)),
    "a wider type": npy(X, descr="<f8"),
    "a type of text": npy(X, descr="<U1"),
    "a pickle": npy(np.array([{"a": 1}, None], dtype=object)),
    "a header of digits": npy(
        X, text=f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({DIGITS},)}}"
    ),
    "a deep header": npy(X, text="(" * 5000),
    "a long header": npy(X, text="#" * 60_000),
    "no header": b"\x93NUMPY\x01\x00",
    "another version": b"\x93NUMPY\x09\x00" + npy(X)[8:],
    "nothing": b"",
    "no array": b"hello",
}


def archive(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, raw in members.items():
            out.writestr(f"{name}.npy", raw)


@pytest.mark.parametrize("case", LIES)
def test_an_array_that_lies_is_refused_before_memory_is_asked_for(case, tmp_path):
    client = tmp_path / "ann"
    client.mkdir()
    archive(client / "data.npz", inputs=LIES[case], targets=npy(Y))
    refused(DataError, lambda: folders(path=tmp_path), "client ann", "inputs")
    (client / "data.npz").unlink()
    (client / "inputs.npy").write_bytes(LIES[case])
    (client / "targets.npy").write_bytes(npy(Y))
    refused(DataError, lambda: folders(path=tmp_path), "client ann")
    archive(tmp_path / "split.npz", offsets=LIES[case], indices=npy(Y))
    refused(DataError, lambda: read_arrays(tmp_path / "split.npz"), "split.npz")


def test_archives_that_are_no_whole_archives_are_refused(tmp_path):
    client = tmp_path / "ann"
    client.mkdir()
    file = client / "data.npz"
    archive(file, inputs=npy(X), targets=npy(Y))
    assert folders(path=tmp_path).population == 1
    whole = file.read_bytes()
    encrypted = bytearray(whole)
    encrypted[6] |= 1
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
    packed = bytearray(whole)
    packed[8] = packed[whole.index(b"PK\x01\x02") + 10] = 77
    wrong = {n: whole[:n] for n in (0, 3, 40, len(whole) // 2, len(whole) - 1)}
    for raw in (
        *wrong.values(),
        bytes(encrypted),
        bytes(packed),
        npy(X),
        whole[:60] + b"?" + whole[61:],
    ):
        file.write_bytes(raw)
        refused(DataError, lambda: folders(path=tmp_path), "client ann")


def test_labels_beyond_counting_are_refused(tmp_path):
    refused(DataError, lambda: from_clients([(X, np.array([0, 1 << 60]))]), "labels count")


def test_an_idx_file_of_a_hundred_dimensions_is_refused(tmp_path):
    file = tmp_path / "x"
    file.write_bytes(bytes([0, 0, 8, 100]) + struct.pack(">100I", *[1] * 100) + b"\0")
    refused(DataError, lambda: read_idx(file), "100 dimensions")


def test_data_that_lie_are_one_line_from_the_command_line_too(tmp_path):
    (tmp_path / "ann").mkdir()
    archive(tmp_path / "ann" / "data.npz", inputs=LIES["a huge array"], targets=npy(Y))
    line = ["run", "digits", "data=folders", f"data.path={tmp_path}", "partition=natural"]
    found = CliRunner().invoke(cli, [*line, "--quiet", "--out", f"{tmp_path}/run"])
    assert found.exit_code == 2 and found.output.count("\n") == 1
    assert "its header says shape (1000000000000, 1000000)" in found.output
