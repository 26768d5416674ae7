"""Published files: where they are, downloads from a local server, checksums, idx and archives."""

import dataclasses
import gc
import gzip
import hashlib
import http.server
import io
import shutil
import threading
import zipfile

import numpy as np
import pytest
import torch
from published import idx, write

from fedloom.data import data_root, iid
from fedloom.data.published import files as cache
from fedloom.data.published import images as sources
from fedloom.data.published.download import PublishedFile, fetch, fetch_archive
from fedloom.data.published.files import read_idx
from support.downloads import FromFiles
from support.refusals import refused

# of an answer that is an error, or breaks off, pooch leaves the socket to be collected
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def md5(content):
    return hashlib.md5(content).hexdigest()


def gzipped(content=b"content", base="http://127.0.0.1:9/", name="a.gz"):
    packed = gzip.compress(content, mtime=0)
    file = PublishedFile(name=name, md5=md5(packed), md5_plain=md5(content), url=base + name)
    return packed, file


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A web server on this machine alone: yields its folder, its address, what was asked for, and
    after how many bytes it hangs up, answer by answer.
    """
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    folder, requests, cuts = tmp_path / "home", [], []
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            requests.append(self.path)

        def copyfile(self, source, output):
            output.write(source.read(cuts.pop(0) if cuts else -1))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/", requests, cuts
    server.shutdown()
    thread.join()
    server.server_close()
    gc.collect()


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


def test_a_missing_file_is_downloaded_once(home, tmp_path):
    folder, base, requests, _ = home
    packed, file = gzipped(b"content" * 30_000, base)
    write(folder / "a.gz", packed)
    target = tmp_path / "new" / "set"
    off = lambda: fetch(file, target, download=False)
    refused(off, "download is off", file.md5)
    assert requests == [] and not target.exists()
    for _ in range(2):
        assert fetch(file, target).read_bytes() == packed
    assert requests == ["/a.gz"] and [path.name for path in target.iterdir()] == ["a.gz"]
    (like := target / "like").touch()
    assert (target / "a.gz").stat().st_mode == like.stat().st_mode, "it follows the umask"


def test_a_download_that_breaks_off_or_is_another_file_leaves_nothing(home, tmp_path):
    folder, base, requests, cuts = home
    packed, file = gzipped(base=base)
    target, load = tmp_path / "set", lambda: fetch(file, tmp_path / "set")
    write(folder / "a.gz", packed)
    cuts += [5] * 3
    refused(load, "5 bytes read", file.md5)
    assert len(requests) == 3 and list(target.iterdir()) == []
    cuts += [5, 9]
    assert load().read_bytes() == packed and len(requests) == 6, "it is tried again"
    (target / "a.gz").unlink()
    write(folder / "a.gz", packed + b"x")
    refused(load, "a.gz", file.url, md5(packed + b"x"), file.md5)
    assert list(target.iterdir()) == []


def test_an_unpacked_copy_will_do_and_another_file_is_named_with_both_checksums(tmp_path):
    packed, file = gzipped()
    write(tmp_path / "a", b"content")
    assert fetch(file, tmp_path) == tmp_path / "a"
    write(tmp_path / "a", b"contents")
    refused(lambda: fetch(file, tmp_path), tmp_path / "a", md5(b"contents"), file.md5_plain)
    for cut in (0, 10, -1):
        write(tmp_path / "a.gz", packed[:cut])
        digest = md5(packed[:cut])
        refused(lambda: fetch(file, tmp_path), tmp_path / "a.gz", digest, file.md5, file.url)
        assert (tmp_path / "a.gz").exists()  # the user's file is the user's to delete


def test_an_archive_is_verified_unpacked_and_not_kept_and_one_that_fails_leaves_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("pooch.HTTPDownloader", FromFiles)
    monkeypatch.setattr("fedloom.data.published.download.RETRIES", 0)
    with zipfile.ZipFile(content := io.BytesIO(), "w") as packed:
        packed.writestr("set/a.txt", "content")
    path, root = write(tmp_path / "home" / "set.zip", content.getvalue()), tmp_path / "root"
    archive = PublishedFile(name="set.zip", md5=md5(content.getvalue()), url=path.as_uri())
    for change, folder, says in (
        ({"md5": "0" * 32}, "set", "0" * 32),
        ({"url": "file:///nowhere/set.zip"}, "set", "set.zip is not in"),
        ({}, "other", "holds no folder other"),
    ):
        wrong = dataclasses.replace(archive, **change)
        refused(lambda wrong=wrong, folder=folder: fetch_archive(wrong, root, folder), says)
        assert list(root.iterdir()) == []
    for _ in range(2):
        assert (fetch_archive(archive, root, "set") / "a.txt").read_text() == "content"
    assert [p.name for p in root.iterdir()] == ["set"]


@pytest.mark.parametrize(("code", "dtype"), [(8, "u1"), (0x0C, ">i4")])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_are_read(tmp_path, code, dtype, ending):
    array = np.arange(-6, 6).reshape(2, 3, 2).astype(dtype)
    raw = idx(array, code)
    read = read_idx(write(tmp_path / f"x-idx{ending}", gzip.compress(raw) if ending else raw))
    assert np.array_equal(read.numpy(), array)


@pytest.fixture
def tiny(home):
    """An IdxSet of 5 + 3 images of 2 x 2 whose home is the local server."""
    folder, base, *_ = home
    images = np.arange(20, dtype=np.uint8).reshape(5, 2, 2)
    labels = np.array([0, 1, 2, 1, 0], dtype=np.uint8)
    files, arrays = [], (images, labels, images[:3], labels[:3])
    for old, array in zip(sources.MNIST.files, arrays, strict=True):
        packed, file = gzipped(idx(array, 8), base, old.name)
        write(folder / old.name, packed)
        files.append(file)
    return dataclasses.replace(sources.MNIST, files=tuple(files))


def test_a_set_is_fetched_decoded_and_normalised(tiny, home, tmp_path):
    data = sources.load(tiny, iid(2), 0, tmp_path, True)
    names = [file.name for file in tiny.files]
    assert sorted(home[2]) == sorted("/" + name for name in names)
    assert {p.name for p in (tmp_path / "mnist").iterdir()} == {cache.FOLDER, *names}
    expected = (torch.arange(20.0).view(5, 1, 2, 2) / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(data.inputs, expected)
    torch.testing.assert_close(data.test_inputs, expected[:3])
    assert data.targets.tolist() == [0, 1, 2, 1, 0] and data.test_targets.tolist() == [0, 1, 2]
    assert data.sizes.tolist() == [3, 2] and data.about["partition"] == iid(2).about()
    assert not any(str(tmp_path) in str(value) for value in data.about.values())


def test_images_are_turned_into_floats_once(tiny, tmp_path, monkeypatch):
    reads, real = [], tiny.read
    counting = dataclasses.replace(tiny, read=lambda *a: reads.append(1) or real(*a))

    def loaded():
        data = sources.load(counting, iid(2), 0, tmp_path / "root", download=True)
        return [data.inputs, data.targets, data.test_inputs, data.test_targets]

    one = loaded()
    want = sources.Pixels(255, 0.1307, 0.3081).store(np.arange(20).reshape(5, 1, 2, 2))
    assert torch.equal(one[0], want) and one[1].tolist() == [0, 1, 2, 1, 0]
    monkeypatch.setattr(cache, "LARGE", 0)  # mapped
    again = loaded()
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True)) and len(reads) == 1
    again[0].zero_()  # a mistake, which changes no file
    (file,) = (tmp_path / "root" / "mnist" / cache.FOLDER).glob("*/train_inputs.npy")
    whole = file.read_bytes()
    for damaged in (whole[:-1] + b"x", whole[:-1], b""):
        file.unlink()
        file.write_bytes(damaged)
        assert torch.equal(loaded()[0], want) and file.read_bytes() == whole
    assert len(reads) == 4
    # a folder that is only read
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "own"))
    shutil.rmtree(file.parent.parent)
    (tmp_path / "root" / "mnist" / cache.FOLDER).write_text("in the way of the folder")
    for _ in range(2):
        assert torch.equal(loaded()[0], want) and len(reads) == 5
    assert list((tmp_path / "own" / "prepared").glob("*/floats-*/*.npy"))
    shutil.rmtree(tmp_path / "own" / "prepared")
    monkeypatch.setenv("FEDLOOM_CACHE", "")
    assert torch.equal(loaded()[0], want) and not list(tmp_path.glob("own/*"))
