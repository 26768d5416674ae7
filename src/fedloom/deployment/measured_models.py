"""Which models a node has measured: one a round, for a server that asked of many could learn single
test examples.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import CheckpointError, WireError
from ..storage.atomic import write_atomic


class _Measured(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    run: str
    models: dict[str, str] = {}  # of a round: a digest of the model


class MeasuredModels:
    """In a file of a node's states."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "measured.json"

    def note(self, run: str, round: int, model: str) -> None:
        """Note that a model, a digest of it, is measured in a round; the same one may be measured
        again. Raises WireError for another one, CheckpointError for a damaged file, OSError.
        """
        noted = self._read(run)
        if (before := noted.models.get(str(round))) == model:
            return
        if before is not None:
            raise WireError(
                f"this node has measured the model of round {round}, and measures one a round: "
                "many models together tell single test rows"
            )
        after = _Measured(run=run, models=noted.models | {str(round): model})
        write_atomic(self._file, after.model_dump_json())

    def _read(self, run: str) -> _Measured:
        try:
            noted = _Measured.model_validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return _Measured(run=run)
        except ValidationError:
            raise CheckpointError(
                f"'{self._file}', which says which models this node has measured, is damaged; put "
                "it back from a backup, or begin another run"
            ) from None
        return noted if noted.run == run else _Measured(run=run)
