"""A user's own parts, named by their file and name, as "my_method.py:AdaptiveProx".

load() alone runs a file, and is called for what a user named: on the command line, in Python, in a
TOML file that is run. A Registry finds what has been loaded, so reading a run's folder runs no
code.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, FedloomError, did_you_mean


@dataclass(frozen=True)
class _Loaded:
    """A file's module. files: {path: hash of what was in it}, its own and those of the neighbours
    that it imports.
    """

    module: types.ModuleType
    files: Mapping[str, str]


_LOADED: dict[str, _Loaded] = {}  # by the file's absolute path
_BESIDE: set[str] = set()  # modules of sys.modules that own files imported from their folders


def is_own(name: object) -> bool:
    """True for a name with a file: file.py:Name. A chain of codecs, "a|b", is no such name.

    >>> is_own("my_method.py:Mine"), is_own("fedavg"), is_own("my_codec.py:Mine|int8")
    (True, False, False)
    """
    return isinstance(name, str) and "|" not in name and split(name)[0].endswith(".py")


def each_stage(name: str, change: Callable[[str], str]) -> str:
    """A name, or a chain "a|b", with every stage that is a user's own changed.

    >>> each_stage("topk:0.1 | mine.py:Mine", str.upper), each_stage("topk:0.1", str.upper)
    ('topk:0.1|MINE.PY:MINE', 'topk:0.1')
    """
    stages = [stage.strip() for stage in name.split("|")]
    if not any(map(is_own, stages)):
        return name
    return "|".join(change(stage) if is_own(stage) else stage for stage in stages)


def split(name: str) -> tuple[str, str]:
    """File and name of a part; "" for a name that is missing.

    >>> split("a/my_method.py:Mine"), split("my_method.py")
    (('a/my_method.py', 'Mine'), ('my_method.py', ''))
    """
    file, _, part = name.rpartition(":")
    return (name, "") if name.endswith(".py") else (file, part)


def placed(name: str, folder: Path) -> str:
    """The name with its file's absolute path. folder: what a relative path is seen from."""
    file, part = split(name)
    # the place that was named: a link stays one
    return f"{os.path.abspath(folder / Path(file).expanduser())}:{part}"


def short(name: str) -> str:
    """The name without its folder, for texts and comparisons; any other name as it is.

    >>> short("/home/me/my_method.py:Mine"), short("/home/me/mine.py:Mine|int8"), short("fedavg")
    ('my_method.py:Mine', 'mine.py:Mine|int8', 'fedavg')
    """
    return each_stage(name, lambda stage: f"{Path(split(stage)[0]).name}:{split(stage)[1]}")


def named_here(name: Any) -> Any:
    """The name of a part with the absolute path of its file, as seen from the working directory;
    the file is loaded, and those of a chain's stages. Anything else as it is. Raises ConfigError.
    """
    return each_stage(name, _loaded_here) if isinstance(name, str) else name


def _loaded_here(name: str) -> str:
    full = placed(name, Path.cwd())
    load(split(full)[0])
    return full


def hash_of(file: str) -> str:
    """A short hash of a file's content. Raises ConfigError if it cannot be read."""
    return _hash(_read(Path(file)))


def _hash(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:12]


def _read(path: Path) -> bytes:
    if path.suffix != ".py" and path.is_file():
        raise ConfigError(f"'{path}' is no Python file; its name must end in .py")
    try:
        return path.read_bytes()
    except OSError as error:
        problem = error.strerror
        problem = "is a folder" if path.is_dir() else problem
        problem = "does not exist" if not path.exists() else problem
        raise ConfigError(
            f"'{path}' {problem}; give a Python file, as FILE.py or FILE.py:Name"
        ) from None


# --------------------------------------------------------------------------------------- to load
def load(file: str | Path) -> types.ModuleType:
    """The module of a file, run as a script beside its neighbours would be; one that has not
    changed is run once.

    It has a name of its own in sys.modules, so that two files of one name do not meet there, and
    worker processes get what it defines by value. Raises ConfigError, on one line, for a
    file that cannot be read or imported.
    """
    path = Path(os.path.abspath(file))
    before = _LOADED.get(str(path))
    if before is not None and all(
        Path(file).is_file() and hash_of(file) == then for file, then in before.files.items()
    ):
        return before.module
    source = _read(Path(file))
    name = f"{path.stem}_{_hash(str(path).encode() + source)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with _neighbours(path.parent) as neighbours:
        sys.modules[name] = module  # dataclasses and type hints look it up there
        try:
            # what was hashed is what runs: an import might take bytecode of a moment before
            exec(compile(source, str(path), "exec"), vars(module))
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise ConfigError(f"'{file}' cannot be imported{_why(path, error)}") from error
    files = {str(path): _hash(source)}
    files |= {str(m.__file__): hash_of(str(m.__file__)) for m in neighbours}
    _LOADED[str(path)] = _Loaded(module, files)
    return module


def modules() -> list[types.ModuleType]:
    """What was loaded and can be found in sys.modules, though no other process can import it."""
    names = [*_BESIDE, *(loaded.module.__name__ for loaded in _LOADED.values())]
    return [sys.modules[name] for name in names if name in sys.modules]


@contextmanager
def _neighbours(folder: Path) -> Iterator[list[types.ModuleType]]:
    """Inside, imports look into a folder first; at the end the list has what came from there.

    What another file imported from beside it is forgotten before: a helper.py of this folder is not
    that of another one, nor what it was before a change.
    """
    for name in _BESIDE:
        sys.modules.pop(name, None)
    _BESIDE.clear()
    before, modules = set(sys.modules), list[types.ModuleType]()
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield modules
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - before:
            base = folder.joinpath(*name.split("."))
            module = sys.modules[name]
            if getattr(module, "__file__", None) in (f"{base}.py", str(base / "__init__.py")):
                _BESIDE.add(name)
                modules.append(module)


def _why(path: Path, error: BaseException) -> str:
    """Where in a file, and what went wrong; one line."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(path):
            line = frame.lineno
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    place = f", line {line}" if line else ""
    cure = "correct it, then try again"
    if isinstance(error, ImportError) and "relative import" in text:
        cure = "a file is loaded by itself: write `from package.module import ...` in it"
    return f"{place}: {type(error).__name__}: {text}; {cure}"


# --------------------------------------------------------------------------------------- to find
def find(name: str) -> Any:
    """The object of a name with the absolute path of a file that has been loaded. Raises
    ConfigError for another file, and for a name that the file lacks.
    """
    file, part = split(name)
    if file not in _LOADED:
        raise ConfigError(
            f"'{short(name)}' is code in '{file}', which nobody named here; only commands that run "
            "what names it load it: `fedloom run`, `sweep`"
        )
    module = _LOADED[file].module
    if part in vars(module):
        return vars(module)[part]
    names = [k for k, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    names = [k for k in names if not k.startswith("_")]
    if not part:
        raise ConfigError(
            f"'{file}' needs the name of a part in it, FILE.py:NAME; it has "
            f"{', '.join(sorted(names)) or 'none'}"
        )
    raise ConfigError(f"'{file}' has no '{part}'; {did_you_mean(part, names)}")


def files_of(name: str) -> Mapping[str, str]:
    """{path: hash} of the file of a part and of the neighbours that it imported, as loaded."""
    loaded = _LOADED.get(split(name)[0])
    return {} if loaded is None else loaded.files


def line_of(error: BaseException) -> str:
    """The last line of a user's files that an exception went through; empty if none is known."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in _LOADED]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


def check_pair(name: str, function: Callable[..., Any]) -> None:
    """Raise ConfigError if a function cannot be called with (outputs, targets). name: of it."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"{name} is called with (outputs, targets), and cannot take them: {error}"
        ) from None
    except ValueError:
        pass  # it has no signature that Python can read


@contextmanager
def explained(name: str) -> Iterator[None]:
    """An error of a user's own code inside becomes a ConfigError of one line, and says where."""
    try:
        yield
    except FedloomError:
        raise
    except Exception as error:
        why = _why(Path(split(name)[0]), error)
        raise ConfigError(f"'{short(name)}' failed{why}") from error
