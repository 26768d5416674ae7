"""CSV files, compressed ones too, Excel workbooks and Parquet files as tables: pandas reads them,
with openpyxl and pyarrow, and errors name the file.
"""

from __future__ import annotations

import bz2
import gzip
import io
import logging
import lzma
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.core.extras import need
from fedloom.data.own.cells import name_of
from fedloom.data.own.columns import Table, as_table, first_line, no_column, short
from fedloom.data.own.files import stem
from fedloom.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from pandas import DataFrame

_log = logging.getLogger(__name__)
PARQUET = (".parquet", ".pq")
# a number with a comma for the point: "1,5"; one with points between thousands stays a text
_COMMA, _POINT = r"^\s*([+-]?\d*),(\d+)\s*$", r"\1.\2"
# the first bytes of files that are no text -> what they are, and what to do
_UNZIP = "unpack it, and give the file in it"
_OLD_BOOK = "a workbook of an old or other kind", "save it as .xlsx, or each sheet as CSV UTF-8"
_BINARY = {
    b"PK\x03\x04": ("a zip archive", _UNZIP),
    b"\xd0\xcf\x11\xe0": _OLD_BOOK,
    b"(\xb5/\xfd": ("compressed by zstd", _UNZIP),
    b"PAR1": ("a Parquet file", "call it .parquet"),
}
_COMPRESSED = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ": lzma.decompress}
BY_FILE = ("encoding", "sep", "decimal")  # options that may differ by file


def _by_name(option: str | Mapping[str, str]) -> Mapping[str, str]:
    """An option by the files' names; a tab may be written as on the command line, sep=\\t."""
    by_name = {"*": option} if isinstance(option, str) else option
    return {name: "\t" if value == r"\t" else value for name, value in by_name.items()}


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

    def __post_init__(self) -> None:
        for sep in _by_name(self.sep).values():
            if len(sep) != 1:
                raise DataError(f"sep must be one character, got {short(sep)}")
        for decimal in _by_name(self.decimal).values():
            if decimal not in (".", ","):
                raise DataError(f'decimal must be "." or ",", got {short(decimal)}')

    def check_names(self, files: Sequence[Path]) -> None:
        """Raise DataError for what is said of a file that is none of these."""
        stems = [*dict.fromkeys(map(stem, files))]
        for key in BY_FILE:
            by_name = _by_name(getattr(self, key))
            for name in by_name.keys() - {*stems, "*"}:
                raise DataError(
                    f"{key}.{name} = {short(by_name[name])}: no file is called {short(name)}; "
                    f'there are {", ".join(stems[:10])}, without folder and ending ("*" is of all '
                    "others)"
                )

    def of(self, key: str, path: Path) -> str:
        """What encoding, sep or decimal is for a file."""
        by_name = _by_name(getattr(self, key))
        return by_name.get(stem(path)) or by_name.get("*") or str(getattr(Reading, key))

    def table(self, path: Path) -> Table:
        """A CSV file, every cell a text; a sheet of an Excel workbook; or a Parquet file, by its
        ending. Raises DataError; needs pandas, openpyxl for workbooks and pyarrow for Parquet.
        """
        if not path.is_file():
            if os.path.lexists(path):
                raise DataError(
                    f"{path} is no ordinary file, but a pipe, a folder or a broken link"
                )
            origin = "" if path.is_absolute() else f" (seen from {Path.cwd()})"
            raise DataError(f"there is no file {path}{origin}")
        workbook = _is_workbook(path)
        if path.suffix in PARQUET:
            frame = self._parquet(path)
        else:
            frame = self._workbook(path) if workbook else self._csv(path)
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
        sep = self.of("sep", path)
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
        comma = self.of("decimal", path) == ","
        return frame.replace(_COMMA, _POINT, regex=True) if comma else frame

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
        need("openpyxl", f"to read {path.name}", "tables", DataError)
        options = {"sheet_name": None, "header": None, "dtype": object, "keep_default_na": False}
        try:
            sheets = pandas.read_excel(path, na_values=["", *self.na_values], **options)
        except Exception as error:  # openpyxl promises no types
            why = first_line(error)
            raise DataError(f"{path} is no whole Excel workbook: {why}; save it again") from error
        full = [name for name, sheet in sheets.items() if sheet.notna().to_numpy().any()]
        if self.sheet and self.sheet not in sheets:
            raise DataError(
                f"sheet = {short(self.sheet)}: {path} has no such sheet; "
                f"{did_you_mean(self.sheet, list(sheets))}"
            )
        if not full:
            raise DataError(f"{path} is empty; it needs a header and rows below it")
        if not self.sheet and len(full) > 1:
            raise DataError(
                f"{path} has {len(full)} sheets with cells, {', '.join(map(short, full[:10]))}; "
                f"say which: sheet = {short(full[0])}"
            )
        sheet_name = self.sheet or full[0]
        whole = sheets[sheet_name].dropna(how="all").dropna(how="all", axis=1)
        if not len(whole):
            raise DataError(f"{path}, sheet {short(sheet_name)} is empty; take another one")
        message = "%s is a workbook: its sheet '%s' is read, formulas as they were computed last"
        _log.warning(message, path, sheet_name)
        return self._headed(path, whole)

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
            raw = _whole(path)
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
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _whole(path: Path) -> bytes:
    """The bytes of a file, without its compression. Raises DataError, OSError."""
    raw = path.read_bytes()
    unpack = next((unpack for mark, unpack in _COMPRESSED.items() if raw.startswith(mark)), None)
    try:
        return raw if unpack is None else unpack(raw)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is no whole compressed file: {error}; get it again") from error


def _is_workbook(path: Path) -> bool:
    """Whether a file is an Excel workbook. Raises DataError for what cannot be read: a workbook of
    another kind, a zip archive, or a Parquet file of another ending.
    """
    with path.open("rb") as file:
        head = file.read(8)
    kind = next((kind for mark, kind in _BINARY.items() if head.startswith(mark)), None)
    if kind is None or (head.startswith(b"PAR1") and path.suffix in PARQUET):
        return False
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = {name.partition("/")[0] for name in archive.namelist()}
        if "xl" in inside:
            return True
        kind = _OLD_BOOK if "content.xml" in inside else kind  # of LibreOffice
    raise DataError(f"{path} is {kind[0]}, not CSV text; {kind[1]}")
