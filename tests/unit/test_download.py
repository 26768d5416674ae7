"""Downloads that were stopped, from a server on this machine alone."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
import zipfile

import pytest

from fedloom.data.published import download
from fedloom.data.published.download import PublishedFile, download_file, fetch, fetch_archive
from fedloom.errors import DataError

CONTENT = bytes(range(256)) * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()
PART = f".a.bin.{MD5}.part"


class Home:
    """What the server sends. ranges: whether it can send a rest; cuts: after how many bytes it
    hangs up, answer by answer; refuses: how many answers it gives at all; asked: the Range of every
    request.
    """

    def __init__(self):
        self.content, self.ranges, self.cuts, self.refuses, self.asked = CONTENT, True, [], 99, []
        self.url = ""

    def answer(self, request):
        whole, wanted = self.content, request.headers.get("Range")
        self.asked.append(wanted)
        if len(self.asked) > self.refuses:
            return request.send_error(503)
        first = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.ranges else 0
        if first >= len(whole) and first:
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(whole)}")
            request.send_header("Content-Length", "0")
            return request.end_headers()
        body = whole[first:]
        request.send_response(206 if first else 200)
        if first:
            request.send_header("Content-Range", f"bytes {first}-{len(whole) - 1}/{len(whole)}")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)


@pytest.fixture
def home(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    home = Home()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            home.answer(self)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    home.url = f"http://127.0.0.1:{server.server_port}/a.bin"
    yield home
    server.shutdown()
    thread.join()
    server.server_close()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_connection_that_breaks_off_is_taken_up_where_it_was(home, tmp_path):
    home.cuts = [1000, 2000]
    download_file(home.url, MD5, tmp_path / "a.bin")
    assert home.asked == [None, "bytes=1000-", "bytes=3000-"]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT and names(tmp_path) == ["a.bin"]
    assert (tmp_path / "a.bin").stat().st_mode & 0o777 == 0o644


def test_what_arrived_before_a_failure_is_not_fetched_again(home, tmp_path):
    home.cuts, home.refuses = [5000], 1
    with pytest.raises(OSError, match=r"503.*; 5,000 bytes of it are kept"):
        download_file(home.url, MD5, tmp_path / "a.bin")
    assert names(tmp_path) == [PART] and (tmp_path / PART).read_bytes() == CONTENT[:5000]
    home.refuses = 99
    download_file(home.url, MD5, tmp_path / "a.bin")
    assert home.asked == [None, "bytes=5000-", "bytes=5000-"]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT and names(tmp_path) == ["a.bin"]


def test_a_connection_that_brings_nothing_new_is_given_up(home, tmp_path):
    home.cuts = [1000, 0]
    with pytest.raises(OSError, match=r"broke off after 1,000 of 256,000 bytes; 1,000 bytes"):
        download_file(home.url, MD5, tmp_path / "a.bin")
    home.asked, home.cuts = [], [100] * 50
    with pytest.raises(OSError, match="1,500 bytes of it are kept"):
        download_file(home.url, MD5, tmp_path / "a.bin")
    assert len(home.asked) == download.ATTEMPTS == 5


def test_a_server_without_ranges_sends_everything_again(home, tmp_path):
    home.ranges = False
    for there in (CONTENT[:7000], CONTENT + b"more"):
        (tmp_path / PART).write_bytes(there)
        download_file(home.url, MD5, tmp_path / "a.bin")
        assert home.asked == [f"bytes={len(there)}-"]
        assert (tmp_path / "a.bin").read_bytes() == CONTENT
        home.asked.clear()
    home.cuts = [900, 900]
    with pytest.raises(OSError, match="broke off after 900 of"):
        download_file(home.url, MD5, tmp_path / "b.bin")
    assert home.asked == [None, "bytes=900-"], "the second brought nothing that the first had not"


@pytest.mark.parametrize("there", [b"x" * 5000, CONTENT + b"x", b"x" * len(CONTENT)])
def test_a_partial_file_that_is_of_another_version_is_thrown_away(home, tmp_path, there):
    (tmp_path / PART).write_bytes(there)
    download_file(home.url, MD5, tmp_path / "a.bin")
    assert home.asked[0] == f"bytes={len(there)}-" and home.asked[-1] is None
    assert (tmp_path / "a.bin").read_bytes() == CONTENT and names(tmp_path) == ["a.bin"]


def test_a_whole_partial_file_only_gets_its_name(home, tmp_path):
    (tmp_path / PART).write_bytes(CONTENT)  # the power went between the last byte and the name
    download_file(home.url, MD5, tmp_path / "a.bin")
    assert home.asked == [f"bytes={len(CONTENT)}-"] and names(tmp_path) == ["a.bin"]


def test_another_file_in_its_place_leaves_nothing(home, tmp_path):
    (tmp_path / PART).write_bytes(CONTENT[:100])
    home.content = CONTENT[:-1] + b"?"
    with pytest.raises(DataError, match=f"expected {MD5}; nothing was kept"):
        download_file(home.url, MD5, tmp_path / "a.bin")
    assert home.asked == ["bytes=100-", None] and names(tmp_path) == []


def test_a_part_that_was_not_asked_for_is_refused(home, tmp_path, monkeypatch):
    (tmp_path / PART).write_bytes(CONTENT[:100])
    monkeypatch.setattr(
        http.server.BaseHTTPRequestHandler,
        "send_header",
        lambda self, name, value, send=http.server.BaseHTTPRequestHandler.send_header: send(
            self, name, value.replace("bytes 100-", "bytes 50-")
        ),
    )
    with pytest.raises(OSError, match="asked for bytes from 100 on, got 'bytes 50-255999/256000'"):
        download_file(home.url, MD5, tmp_path / "a.bin")
    assert (tmp_path / PART).read_bytes() == CONTENT[:100]


def test_two_at_once_do_not_write_into_one_file(home, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / PART).open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"what another process has so far")
        other.flush()
        download_file(home.url, MD5, tmp_path / "a.bin")
        assert home.asked == [None] and names(tmp_path) == [PART, "a.bin"]
        home.cuts, home.refuses = [10], 2
        with pytest.raises(OSError, match="503"):
            download_file(home.url, MD5, tmp_path / "b" / "a.bin", keep=tmp_path)
        assert names(tmp_path) == [PART, "a.bin", "b"] and names(tmp_path / "b") == []
    assert (tmp_path / PART).read_bytes() == b"what another process has so far"


def test_an_interrupt_keeps_what_there_is(home, tmp_path, monkeypatch):
    class Stopped(BaseException):
        pass

    real = download._copy

    def copy(answer, name, file):
        file.write(answer.read(300))
        raise Stopped

    monkeypatch.setattr(download, "_copy", copy)
    with pytest.raises(Stopped):
        download_file(home.url, MD5, tmp_path / "a.bin")
    assert (tmp_path / PART).read_bytes() == CONTENT[:300]
    monkeypatch.setattr(download, "_copy", real)
    download_file(home.url, MD5, tmp_path / "a.bin")
    assert home.asked == [None, "bytes=300-"] and (tmp_path / "a.bin").read_bytes() == CONTENT


def test_archives_are_resumed_too_and_errors_are_one_line(home, tmp_path):
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("set/rows.txt", "rows" * 100)
    home.content = packed.read_bytes()
    md5 = hashlib.md5(home.content).hexdigest()
    file = PublishedFile(name="set.zip", md5=md5, url=home.url)
    home.cuts, home.refuses = [200], 1
    root = tmp_path / "root"
    with pytest.raises(
        DataError, match=r"503.*; 200 bytes of it are kept.*\); get it from"
    ) as said:
        fetch_archive(file, root, "set")
    assert "\n" not in str(said.value) and names(root) == [f".set.zip.{md5}.part"]
    home.refuses = 99
    assert (fetch_archive(file, root, "set") / "rows.txt").read_text() == "rows" * 100
    assert home.asked[-1] == "bytes=200-" and names(root) == ["set"]
    assert fetch(file, tmp_path / "files").read_bytes() == home.content
