"""Published sets: the idx format, checksums, downloads from a local server, and the digits."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import hashlib
import http.server
import shutil
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from published import idx, refused

from fedloom.data import data_root, digits, iid
from fedloom.data.published import cache
from fedloom.data.published import images as sources
from fedloom.data.published.download import PublishedFile, fetch
from fedloom.data.published.files import read_idx
from fedloom.errors import DataError

# of an answer that is an error, or breaks off, pooch leaves the socket to be collected
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def gzipped(name, content, base):
    packed = gzip.compress(content, mtime=0)
    sums = [hashlib.md5(data).hexdigest() for data in (packed, content)]
    return packed, PublishedFile(name=name, md5=sums[0], md5_plain=sums[1], url=base + name)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A web server on this machine alone: yields its folder, its address, what was asked for, and
    after how many bytes it hangs up, answer by answer.
    """
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    folder, asked, cuts = tmp_path / "home", [], []
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            asked.append(self.path)

        def copyfile(self, source, output):
            output.write(source.read(cuts.pop(0) if cuts else -1))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/", asked, cuts
    server.shutdown()
    thread.join()
    server.server_close()
    gc.collect()


@pytest.fixture
def tiny(home):
    """An IdxSet of 5 + 3 images of 2 x 2 whose home is the local server."""
    folder, base, *_ = home
    images = np.arange(20, dtype=np.uint8).reshape(5, 2, 2)
    labels = np.array([0, 1, 2, 1, 0], dtype=np.uint8)
    files = []
    for old, array in zip(
        sources.MNIST.files, (images, labels, images[:3], labels[:3]), strict=True
    ):
        packed, file = gzipped(old.name, idx(array, 8), base)
        (folder / old.name).write_bytes(packed)
        files.append(file)
    return dataclasses.replace(sources.MNIST, files=tuple(files))


def test_images_are_turned_into_floats_once(tiny, tmp_path, monkeypatch):
    def loaded():
        data = sources.load(made, iid(2), 0, tmp_path / "root", download=True)
        return [data.inputs, data.targets, data.test_inputs, data.test_targets]

    seen, real = [], tiny.read
    made = dataclasses.replace(tiny, read=lambda *a: seen.append(1) or real(*a))
    one = loaded()
    want = sources.Pixels(255, 0.1307, 0.3081).store(np.arange(20).reshape(5, 1, 2, 2))
    assert torch.equal(one[0], want) and one[1].tolist() == [0, 1, 2, 1, 0]
    monkeypatch.setattr(cache, "LARGE", 0)  # mapped
    again = loaded()
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True)) and len(seen) == 1
    again[0].zero_()  # a mistake, which changes no file
    (file,) = (tmp_path / "root" / "mnist" / cache.FOLDER).glob("*/train_inputs.npy")
    whole = file.read_bytes()
    for damaged in (whole[:-1] + b"x", whole[:-1], b""):
        file.unlink()
        file.write_bytes(damaged)
        assert torch.equal(loaded()[0], want) and file.read_bytes() == whole
    assert len(seen) == 4
    # a folder that is only read
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "own"))
    shutil.rmtree(file.parent.parent)
    (tmp_path / "root" / "mnist" / cache.FOLDER).write_text("in the way of the folder")
    for _ in range(2):
        assert torch.equal(loaded()[0], want) and len(seen) == 5
    assert list((tmp_path / "own" / "prepared").glob("*/floats-*/*.npy"))
    shutil.rmtree(tmp_path / "own" / "prepared")
    monkeypatch.setenv("FEDLOOM_CACHE", "")
    assert torch.equal(loaded()[0], want) and not list(tmp_path.glob("own/*"))


# ---- idx


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(8, "u1"), (9, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_of_every_type_are_read(tmp_path, code, dtype, ending):
    array = np.arange(-6, 6).reshape(2, 3, 2).astype(dtype)
    raw = idx(array, code)
    path = tmp_path / f"x-idx{ending}"
    path.write_bytes(gzip.compress(raw, mtime=0) if ending else raw)
    got = read_idx(path)
    assert np.array_equal(got, array) and got.dtype.isnative and got.shape == array.shape


GOOD = idx(np.arange(6, dtype=np.uint8).reshape(2, 3), 8)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a", GOOD[:-1], r"17 bytes.*\(2, 3\).*18"),
        ("a", GOOD + b"x", "19 bytes"),
        ("a", b"", "begins with nothing"),
        ("a", b"\1" + GOOD[1:], "no idx file"),
        ("a", GOOD[:2] + b"\7" + GOOD[3:], "no idx file"),
        ("a", GOOD[:6], "no idx file"),
        ("a.gz", GOOD, "cannot be read"),
        ("a.gz", gzip.compress(GOOD, mtime=0)[:-9], "cannot be read"),
        ("a.gz", gzip.compress(GOOD, mtime=0)[:12] + b"\xff" * 20, "cannot be read"),
        ("missing", None, "cannot be read"),
        # a header that asks for 2^64 bytes asks for no memory
        ("a", b"\0\0\x08\2" + b"\xff" * 8, "get the file again"),
    ],
)
def test_idx_files_that_are_not_whole_are_refused(tmp_path, name, content, says):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=says) as error:
        read_idx(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


# ---- where the files are


def test_the_root_is_the_argument_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "set"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert data_root(tmp_path) == tmp_path
    assert data_root("~/here") == tmp_path / "me" / "here"
    assert data_root() == tmp_path / "set"
    monkeypatch.setenv("FEDLOOM_DATA", "")
    assert data_root() == tmp_path / "cache" / "fedloom"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root(None) == tmp_path / "me" / ".cache" / "fedloom"


# ---- fetching


def test_a_missing_file_is_downloaded_once(home, tmp_path):
    folder, base, asked, _ = home
    packed, file = gzipped("a.gz", b"content" * 30_000, base)
    (folder / "a.gz").write_bytes(packed)
    target = tmp_path / "new" / "set"
    for _ in range(2):
        assert fetch(file, target).read_bytes() == packed
    assert asked == ["/a.gz"]
    assert [path.name for path in target.iterdir()] == ["a.gz"]
    (like := target / "like").touch()
    assert (target / "a.gz").stat().st_mode == like.stat().st_mode, "it follows the umask"


def test_a_connection_that_breaks_off_is_tried_again_and_leaves_nothing(home, tmp_path):
    folder, base, asked, cuts = home
    packed, file = gzipped("a.gz", b"content", base)
    (folder / "a.gz").write_bytes(packed)
    cuts += [5] * 3
    refused(lambda: fetch(file, tmp_path / "set"), "5 bytes read", file.md5)
    assert len(asked) == 3 and list((tmp_path / "set").iterdir()) == []
    cuts += [5, 9]
    assert fetch(file, tmp_path / "set").read_bytes() == packed and len(asked) == 6


def test_an_unpacked_copy_will_do(tmp_path):
    _, file = gzipped("a.gz", b"content", "http://127.0.0.1:9/")
    (tmp_path / "a").write_bytes(b"content")
    assert fetch(file, tmp_path) == tmp_path / "a"
    (tmp_path / "a").write_bytes(b"contents")
    got = hashlib.md5(b"contents").hexdigest()
    refused(lambda: fetch(file, tmp_path), tmp_path / "a", got, file.md5_plain)


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_a_truncated_file_is_named_with_both_checksums(tmp_path, cut):
    packed, file = gzipped("a.gz", b"content", "http://127.0.0.1:9/")
    (tmp_path / "a.gz").write_bytes(packed[:cut])
    got = hashlib.md5(packed[:cut]).hexdigest()
    refused(lambda: fetch(file, tmp_path), tmp_path / "a.gz", got, file.md5, file.url)
    assert (tmp_path / "a.gz").exists()  # the user's file is the user's to delete


def test_a_download_that_is_another_file_leaves_nothing(home, tmp_path):
    folder, base, *_ = home
    packed, file = gzipped("a.gz", b"content", base)
    (folder / "a.gz").write_bytes(packed + b"x")
    target = tmp_path / "set"
    got = hashlib.md5(packed + b"x").hexdigest()
    refused(lambda: fetch(file, target), "a.gz", file.url, got, file.md5)
    assert list(target.iterdir()) == []


def test_download_false_asks_nobody(home, tmp_path):
    _, base, asked, _ = home
    file = gzipped("a.gz", b"content", base)[1]
    refused(lambda: fetch(file, tmp_path / "set", download=False), "download is off", file.md5)
    assert asked == [] and not (tmp_path / "set").exists()


# ---- MNIST-like sets


def test_a_set_is_fetched_decoded_and_normalised(tiny, home, tmp_path):
    data = sources.load(tiny, iid(2), 0, tmp_path, True)
    assert sorted(home[2]) == sorted("/" + file.name for file in tiny.files)
    assert sorted(p.name for p in (tmp_path / "mnist").iterdir()) == sorted(
        [cache.FOLDER, *(file.name for file in tiny.files)]
    )
    pixels = torch.arange(20.0).view(5, 1, 2, 2)
    expected = (pixels / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(data.inputs, expected)
    torch.testing.assert_close(data.test_inputs, expected[:3])
    assert data.targets.tolist() == [0, 1, 2, 1, 0] and data.test_targets.tolist() == [0, 1, 2]
    assert data.sizes.tolist() == [3, 2] and data.about["partition"] == iid(2).about()
    assert not any(str(tmp_path) in str(value) for value in data.about.values())


def test_images_and_labels_that_do_not_match_are_refused(tiny, tmp_path, home):
    images, _, *rest = tiny.files
    swapped = dataclasses.replace(tiny, files=(images, images, *rest))
    refused(lambda: sources.load(swapped, iid(2), 0, tmp_path, True), "(5, 2, 2)")


# ---- digits


def test_digits_have_every_image_once_in_the_fixed_stratified_split():
    from sklearn.datasets import load_digits

    original = load_digits()
    data = digits()
    assert data.inputs.shape[1:] == (1, 8, 8) and data.inputs.dtype == torch.float32
    assert data.inputs.min() == 0 and data.inputs.max() == 1
    everything = torch.cat([data.inputs, data.test_inputs]).view(1797, 64) * 16
    rows = sorted(map(tuple, everything.int().tolist()))
    assert rows == sorted(map(tuple, original.data.astype(int).tolist()))
    counts = np.bincount(original.target)
    assert torch.bincount(data.test_targets).tolist() == [round(0.2 * n) for n in counts]
    assert data.population == 50 and data.classes == 10


def test_the_test_set_of_the_digits_does_not_depend_on_the_seed_but_the_split_does():
    first, other = digits(seed=0), digits(seed=1)
    assert torch.equal(first.test_inputs, other.test_inputs)
    assert torch.equal(first.inputs, other.inputs)
    assert first.clients.digest() != other.clients.digest()


def test_the_share_of_the_digits_is_kept():
    assert digits(iid(5), test_share=0).test_inputs is None
    assert digits(iid(5), test_share=0).sizes.sum() == 1797
    assert digits(iid(5), test_share=0.999).label_counts().sum(0).tolist() == [1] * 10
    for share in (1, -0.1, float("nan")):
        refused(lambda share=share: digits(test_share=share), "test_share must be in [0, 1)")


def test_without_scikit_learn_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    refused(digits, "pip install", "[digits]'")


def test_the_digits_are_the_same_where_scikit_learn_keeps_its_file_elsewhere(monkeypatch):
    want = digits()
    module = sys.modules["fedloom.data.published.images"]
    monkeypatch.setattr(module, "find_spec", lambda name: SimpleNamespace(origin="/gone/x.py"))
    assert torch.equal(digits().inputs, want.inputs)
    assert torch.equal(digits().targets, want.targets)
