"""A folder as files of at most 15 MB, for a machine that takes no larger ones.

python benchmarks/folder_parts.py pack ~/fedloom-data/cifar-10-batches-py build/parts
python benchmarks/folder_parts.py unpack build/parts build/data
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tarfile
from pathlib import Path

SIZE = 15_000_000  # bytes of a part


def pack(folder: Path, out: Path) -> int:
    """Write the folder's parts -> how many. Raises FileExistsError for a folder of other files."""
    out.mkdir(parents=True, exist_ok=True)
    if others := [file.name for file in out.iterdir() if not re.fullmatch(r"part-\d+", file.name)]:
        raise FileExistsError(f"{out} holds {others[0]}: name a folder for the parts alone")
    for file in out.iterdir():
        file.unlink()
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:xz") as archive:
        archive.add(folder, folder.name)
    data = whole.getvalue()
    for number, start in enumerate(range(0, len(data), SIZE)):
        (out / f"part-{number:03}").write_bytes(data[start : start + SIZE])
    return -(-len(data) // SIZE)


def unpack(parts: Path, out: Path) -> int:
    """Write the folder again, inside of `out` -> how many parts it was."""
    files = sorted(parts.glob("part-*"))
    whole = io.BytesIO(b"".join(file.read_bytes() for file in files))
    with tarfile.open(fileobj=whole, mode="r:xz") as archive:
        archive.extractall(out, filter="data")
    return len(files)


def main(argv: list[str] | None = None) -> int:
    """Pack or unpack, and say how many parts there are."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(argv)
    try:
        count = (pack if options.what == "pack" else unpack)(options.source, options.out)
    except (OSError, tarfile.TarError) as error:
        parser.error(f"{options.source}: {error}")
    print(f"{count} parts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
