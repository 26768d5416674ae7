"""Files of tables: which ones a path stands for, what they are called, and their rows. pandas reads
CSV files, compressed ones too, Excel workbooks and Parquet files, with openpyxl and pyarrow.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import logging
import lzma
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.core.extras import need
from fedloom.core.parsing import user_path
from fedloom.data.own.cells import name_of
from fedloom.data.own.columns import Table, as_table, first_line, no_column, short
from fedloom.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FILE = "(file)"  # the column that says from which file a row is
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Places = np.ndarray[Any, np.dtype[np.intp]]
COMPRESSED = (".gz", ".bz2", ".xz")


def several(path: Paths) -> bool:
    """True if a path stands for several files: a list, or a pattern such as hospitals/*.csv."""
    if isinstance(path, str | os.PathLike):
        return glob.has_magic(os.fspath(path)) and not user_path(path).is_file()
    return True


def files_of(path: Paths) -> list[Path]:
    """The files of a path, a pattern or a list, in order. Raises DataError if nothing matches."""
    if not isinstance(path, str | os.PathLike):
        if not path:
            raise DataError("path is an empty list; give at least one file")
        return [file for one in path for file in files_of(one)]
    full_path = user_path(path)
    if not several(path):
        if full_path.is_dir():
            raise DataError(f"{path} is a folder; give the files in it, as in {path}/*.csv")
        return [full_path]
    files = sorted(map(Path, glob.glob(str(full_path), recursive=True)))
    if not files:
        raise DataError(
            f"no file matches '{path}' (seen from {os.getcwd()}); give path= files that are there"
        )
    return files


def stem(file: Path) -> str:
    """A file's name without folder and ending, and without that of its compression.

    >>> stem(Path("sites/lyon.csv")), stem(Path("sites/lyon.csv.gz"))
    ('lyon', 'lyon')
    """
    return file.with_suffix("").stem if file.suffix in COMPRESSED else file.stem


def names_of(files: Sequence[Path]) -> list[str]:
    """A name per file: without folder and ending, or with the folders where that is not enough.

    >>> names_of([Path("sites/lyon.csv"), Path("sites/bonn.csv")])
    ['lyon', 'bonn']
    >>> names_of([Path("sites/lyon/visits.csv"), Path("sites/bonn/visits.csv")])
    ['lyon/visits', 'bonn/visits']
    """
    if len(set(files)) < len(files):
        twice = Counter(files).most_common(1)[0][0]
        raise DataError(f"{twice} is given twice; every file is a client: name it once")
    names = [*map(stem, files)]
    if len(set(names)) < len(names):
        common = os.path.commonpath([file.parent.absolute() for file in files])
        paths = [file.absolute().relative_to(common) for file in files]
        names = [path.with_name(stem(path)).as_posix() for path in paths]
    return names


def parts_of(table: Table, clients: Series | None) -> dict[str, tuple[Places, Table]]:
    """The places and the rows of each client by its name, which errors name by its file, or by its
    name where a column has that. clients: whose each row is (n,); None: all are one's, "".
    """
    if clients is None:
        return {"": (np.arange(len(table.frame)), table)}
    parts = {}
    for name, rows in table.frame.groupby(clients.to_numpy()).indices.items():
        frame = table.frame.take(rows)
        file = frame.index[0][0]
        where = file if clients.name == FILE else f"{file}, client '{name}'"
        parts[str(name)] = rows, Table(where, frame)
    return parts


_log = logging.getLogger(__name__)
# a number with a comma for the point: "1,5"; one with points between thousands stays a text
_COMMA, _POINT = r"^\s*([+-]?\d*),(\d+)\s*$", r"\1.\2"
_COMPRESSED = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ": lzma.decompress}
# how other files begin that are no text: a zip archive, a workbook of before 2007, zstd
_PACKED = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"(\xb5/\xfd")
BY_FILE = ("encoding", "sep", "decimal")  # options that may differ by file


@dataclass(frozen=True)
class Reading:
    """How files are read; the names are those of pandas.read_csv. names: of the columns of files
    without a header; na_values: texts and numbers that stand for a missing cell. encoding, sep and
    decimal are of all files, or by a file's name without its ending ("*": of the others). recode:
    {column: {cell: what is read in its place}}. sheet: of a workbook, by default its only one with
    cells.
    """

    names: Sequence[str] = ()
    na_values: Sequence[str | float] = ()
    encoding: str | Mapping[str, str] = "utf-8"
    sep: str | Mapping[str, str] = ","
    decimal: str | Mapping[str, str] = "."
    recode: Mapping[str, Mapping[str, str]] | None = None
    sheet: str = ""

    def check_names(self, files: Sequence[Path]) -> None:
        """Raise DataError for what is said of a file that is none of these."""
        stems = [*dict.fromkeys(map(stem, files))]
        for key in BY_FILE:
            option = getattr(self, key)
            for name in option if isinstance(option, Mapping) else ():
                if name not in (*stems, "*"):
                    raise DataError(
                        f"{key}.{name} = {short(option[name])}: no file is called {short(name)}; "
                        f'there are {", ".join(stems[:10])}, without folder and ending ("*" is of '
                        "all others)"
                    )

    def of(self, key: str, path: Path) -> str:
        """What encoding, sep or decimal is for a file; a tab may be written as sep=\\t."""
        option = getattr(self, key)
        by_name = option if isinstance(option, Mapping) else {"*": option}
        value = by_name.get(stem(path), by_name.get("*", getattr(Reading, key)))
        return "\t" if value == r"\t" else str(value)

    def table(self, path: Path) -> Table:
        """A CSV file, every cell a text; a sheet of an Excel workbook; or a Parquet file. Raises
        DataError; needs pandas, openpyxl for workbooks and pyarrow for Parquet.
        """
        if not path.is_file():
            if os.path.lexists(path):
                raise DataError(
                    f"{path} is no ordinary file, but a pipe, a folder or a broken link"
                )
            origin = "" if path.is_absolute() else f" (seen from {Path.cwd()})"
            raise DataError(f"there is no file {path}{origin}")
        with path.open("rb") as file:
            head = file.read(4)
        if head == b"PAR1" or path.suffix in (".parquet", ".pq"):
            frame = self._parquet(path)
        else:
            frame = self._workbook(path) if head.startswith(_PACKED) else self._csv(path)
        names = list(frame)
        if len(set(names)) < len(names):
            raise DataError(f"{path} names a column twice: {', '.join(names)}")
        if not len(frame):
            raise DataError(f"{path} has no rows below its header; is it a table with a header?")
        for name, other in (self.recode or {}).items():
            if name not in names:
                raise no_column(str(path), name, names)
            frame[name] = [other.get(name_of(cell), cell) for cell in frame[name]]
        return as_table(str(path), {name: frame[name].array for name in names})

    def _csv(self, path: Path) -> DataFrame:
        pandas = need("pandas", f"to read {path.name}", "tables", DataError)
        text = self._text(path)
        if not text.strip():
            raise DataError(f"{path} is empty; it needs a header and rows below it")
        sep, decimal = self.of("sep", path), self.of("decimal", path)
        if len(sep) != 1:
            raise DataError(f"sep must be one character, got {short(sep)}")
        if decimal not in (".", ","):
            raise DataError(f'decimal must be "." or ",", got {short(decimal)}')
        self._refuse_other_mark(path, text.strip().partition("\n")[0], sep)
        # the header is read as a row, because pandas would rename duplicates; and cells as texts,
        # because it would make 1 of 01, and 1.0 of 1 beside an empty cell
        options = {"header": None, "dtype": object, "keep_default_na": False, "sep": sep}
        try:
            frame = pandas.read_csv(io.StringIO(text), na_values=[*self.na_values], **options)
        except (pandas.errors.ParserError, pandas.errors.EmptyDataError, ValueError) as error:
            raise DataError(
                f"{path} is no whole CSV file: {first_line(error)}; look there (a text with a "
                f"{short(sep)} in it needs quotes), or get it again"
            ) from error
        frame = self._headed(path, frame)
        return frame.replace(_COMMA, _POINT, regex=True) if decimal == "," else frame

    def _headed(self, path: Path, frame: DataFrame) -> DataFrame:
        """Rows with their columns' names: those in the first row, or the given ones."""
        header = [*self.names] or [str(name).strip() for name in frame.iloc[0]]
        if len(header) != len(frame.columns):
            raise DataError(
                f"{path} has {len(frame.columns)} columns, and names has {len(header)}; name each"
            )
        frame = frame if self.names else frame[1:]
        frame.columns = header
        return frame

    def _workbook(self, path: Path) -> DataFrame:
        """A sheet of an Excel workbook; formulas are what Excel computed last."""
        pandas = need("pandas", f"to read {path.name}", "tables", DataError)
        inside: list[str] = []
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                inside = archive.namelist()
        if not any(name.startswith("xl/") for name in inside):
            raise DataError(
                f"{path} is a zip archive, a workbook of an old kind or packed otherwise, not CSV "
                "text; unpack it, or save it as .xlsx or CSV UTF-8"
            )
        need("openpyxl", f"to read {path.name}", "tables", DataError)
        options = {"sheet_name": None, "header": None, "dtype": object, "keep_default_na": False}
        try:
            sheets = pandas.read_excel(path, na_values=["", *self.na_values], **options)
        except Exception as error:  # openpyxl promises no types
            why = first_line(error)
            raise DataError(f"{path} is no whole Excel workbook: {why}; save it again") from error
        full = {k: v.dropna(how="all").dropna(how="all", axis=1) for k, v in sheets.items()}
        full = {name: sheet for name, sheet in full.items() if len(sheet)}
        names = [*full]
        if not full:
            raise DataError(f"{path} is empty; it needs a header and rows below it")
        if not self.sheet and len(full) > 1:
            raise DataError(
                f"{path} has {len(names)} sheets with cells, {', '.join(map(short, names[:10]))}; "
                f"say which: sheet = {short(names[0])}"
            )
        name = self.sheet or names[0]
        if name not in full:
            raise DataError(
                f"sheet = {short(name)}: {path} has no such sheet with cells; "
                f"{did_you_mean(name, names)}"
            )
        message = "%s is a workbook: its sheet '%s' is read, formulas as they were computed last"
        _log.warning(message, path, name)
        return self._headed(path, full[name])

    def _refuse_other_mark(self, path: Path, first: str, sep: str) -> None:
        """Raise DataError for a first line without sep and with another mark between cells."""
        mark = next((m for m in ";\t" if m in first), "")
        if not mark or sep in first or len(self.names) == 1:
            return
        mark, mark_name = (";", "semicolons") if mark == ";" else ("\\t", "tabs")
        raise DataError(
            f"{path} has one column, {short(first)}: its cells are separated by {mark_name}; give "
            f'sep = "{mark}" (and decimal = "," if its numbers have commas; of this file alone: '
            f'sep.{stem(path)} = "{mark}"), or save it with commas'
        )

    def _parquet(self, path: Path) -> DataFrame:
        pyarrow = need("pyarrow", f"to read {path.name}", "tables", DataError)
        import pandas
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(path) as file:
                table = file.read()
        except (OSError, pyarrow.ArrowException) as error:
            reason = first_line(error)
            raise DataError(f"{path} is no whole Parquet file: {reason}; get it again") from error
        # column by column: pandas would make 1.0 of 1 beside a missing cell
        columns = [pandas.Series(column.to_pylist(), dtype=object) for column in table.columns]
        frame = pandas.concat(columns, axis=1)
        frame.columns = [*self.names] or table.column_names
        return frame.mask(frame.isin([*self.na_values])) if self.na_values else frame

    def _text(self, path: Path) -> str:
        """A file's text. Raises DataError naming the line that is in another encoding."""
        encoding, raw = self.of("encoding", path), b""
        try:
            raw = path.read_bytes()
            for mark, unpack in _COMPRESSED.items():
                raw = unpack(raw) if raw.startswith(mark) else raw
            return raw.decode("utf-8-sig" if encoding == "utf-8" else encoding)
        except UnicodeError as error:
            start = error.start if isinstance(error, UnicodeDecodeError) else 0
            raise DataError(
                f"{path}, line {raw[:start].count(10) + 1} is not {encoding.upper()} text; give "
                "encoding = cp1252 (of Western Europe), utf-16 (Excel's Unicode text) or what it "
                f"was saved in; of this file alone: encoding.{stem(path)} = cp1252"
            ) from error
        except LookupError:
            raise DataError(
                f"{path}: encoding = {short(encoding)} is none that Python knows; utf-8, cp1252, "
                "latin-1, utf-16 are some"
            ) from None
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise DataError(f"{path} cannot be read whole: {error}; get it again") from error
