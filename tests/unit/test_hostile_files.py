"""Files and settings that are damaged, enormous or in another encoding: one clear line each."""

import io
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
from fedloom.data.partition.without_labels import lists
from fedloom.data.published.files import read_json
from fedloom.errors import ConfigError, DataError
from fedloom.federation.capacities import levels_of
from fedloom.models import mlp
from support import refusals

TOML = resolve("digits").to_toml()
DIGITS = "9" * 5000


def refused(kind, call, *says):
    assert len(refusals.refused(call, *says, kind=kind)) < 500


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
        values = resolve(file).values
        assert values == {**resolve("digits").values, "name": values["name"]}


CAPACITIES = 'submodel.capacities="1e-999999999,1"'
LINES = {
    "digits": ["run", f"rounds={DIGITS}"],
    "digits in a table": ["run", "digits", f"local.lr={DIGITS}"],
    "fewer digits": ["run", "digits", f"rounds={DIGITS[:400]}"],
    "workers": ["run", "digits", f"engine=workers:{DIGITS}", "--dry-run"],
    "nesting": ["run", "digits", "cohort=" + "[" * 10_000],
    "keys": ["run", "digits", ".".join(["a"] * 10_000) + "=1"],
    "a long name": ["run", "x" * 5000],
    "a capacity": ["run", "digits", "submodel=fiarse", "submodel.capacities=1e999999999"],
    "a small capacity": ["run", "digits", "submodel=fiarse", CAPACITIES],
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
    result = CliRunner().invoke(cli, LINES[case])
    assert result.exit_code == 2, result.output
    assert result.output.startswith("error: ") and result.output.count("\n") == 1
    assert "Traceback" not in result.output and "unexpected" not in result.output


def test_a_key_with_one_value_twice_is_no_question():
    refuse_repeats(["seed=1", "local.lr=0.1", "seed=1", "local.lr=1e-1"])
    twice = lambda: refuse_repeats(["local.lr=0.1", "local.lr=0.2"])
    refused(ConfigError, twice, "local.lr=0.1 and local.lr=0.2", "keep one")


@pytest.mark.parametrize("name", ["seed", "rounds"])
def test_numbers_from_python_are_bounded_too(name):
    data = from_clients([(np.zeros((2, 3)), [0, 1])])
    parts = {"algorithm": FedAvg(), "model": lambda: mlp(3, classes=2), "data": data, "rounds": 1}
    refused(ConfigError, lambda: Experiment(**parts | {name: 10**5000}), name)


DEEP, LARGE = "[" * 100_000, "9" * 22
COUNT = lambda path: lists(str(path)).lists.count


@pytest.mark.parametrize(
    ("read", "kind", "content", "value", "wrong"),
    [
        (levels_of, ConfigError, b"0.5\n1\n", (0.5, 1.0), (DIGITS, "[1")),
        (COUNT, DataError, b"[[0, 2], [1]]", 2, (DEEP, f"[[{DIGITS}]]", f"[[{LARGE}]]")),
        (read_json, DataError, b'{"users": []}', {"users": []}, (DEEP, f"[{DIGITS}]")),
    ],
)
def test_small_files_are_read_with_a_mark_and_refused_in_one_line(
    read, kind, content, value, wrong, tmp_path
):
    file = tmp_path / "a.json"
    file.write_bytes(b"\xef\xbb\xbf" + content)
    assert read(file) == value
    for text in wrong:
        file.write_text(text)
        refused(kind, lambda: read(file), "a.json")


def test_capacities_of_the_command_line_are_read_or_refused():
    assert levels_of("1/64, 0.1 ,1e-1,1") == (1 / 64, 0.1, 0.1, 1.0)
    for text in ("1e999999999", "1/1e9999", f"{DIGITS}/3", f"1/{DIGITS}", "1/0", "1e999999999/2"):
        refused(ConfigError, lambda t=text: levels_of(t), text[:20])


def npy(array, **header):
    """The bytes of a .npy file, with another header if one is given."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), allow_pickle=True)
    raw = out.getvalue()
    if not header:
        return raw
    length = struct.unpack("<H", raw[8:10])[0]
    said = {"descr": "<f4", "fortran_order": False, "shape": (2, 3)} | header
    text = (header.get("text") or repr(said)) + "\n"
    return raw[:8] + struct.pack("<H", len(text)) + text.encode() + raw[10 + length :]


X, Y = np.zeros((2, 3), np.float32), np.array([0, 1])
LONG_SHAPE = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({DIGITS},)}}"
LIES = {
    "more rows": npy(X, shape=(2000, 3)),
    "fewer rows": npy(X, shape=(1, 3)),
    "a huge array": npy(X, shape=(10**12, 10**6)),
    "more than memory": npy(X, shape=(1 << 40,)),
    "more than counts": npy(X, shape=(1 << 62, 1 << 62)),
    "below zero": npy(X, shape=(-2, -3)),
    "a wider type": npy(X, descr="<f8"),
    "a type of text": npy(X, descr="<U1"),
    "a pickle": npy(np.array([{"a": 1}, None], dtype=object)),
    "a header of digits": npy(X, text=LONG_SHAPE),
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
    file = tmp_path / "ann" / "data.npz"
    file.parent.mkdir()
    archive(file, inputs=npy(X), targets=npy(Y))
    assert folders(path=tmp_path).population == 1
    whole = file.read_bytes()
    encrypted, packed, central = bytearray(whole), bytearray(whole), whole.index(b"PK\x01\x02")
    encrypted[6] |= 1
    encrypted[central + 8] |= 1
    packed[8] = packed[central + 10] = 77
    cut = [whole[:n] for n in (0, 3, 40, len(whole) // 2, len(whole) - 1)]
    for raw in (*cut, bytes(encrypted), bytes(packed), npy(X), whole[:60] + b"?" + whole[61:]):
        file.write_bytes(raw)
        refused(DataError, lambda: folders(path=tmp_path), "client ann")
    refused(DataError, lambda: from_clients([(X, np.array([0, 1 << 60]))]), "labels count")


def test_data_that_lie_are_one_line_from_the_command_line_too(tmp_path):
    (tmp_path / "ann").mkdir()
    archive(tmp_path / "ann" / "data.npz", inputs=LIES["a huge array"], targets=npy(Y))
    line = ["run", "digits", "data=folders", f"data.path={tmp_path}", "partition=natural"]
    result = CliRunner().invoke(cli, [*line, "--quiet", "--out", f"{tmp_path}/run"])
    assert result.exit_code == 2 and result.output.count("\n") == 1
    assert "Unable to allocate" in result.output
