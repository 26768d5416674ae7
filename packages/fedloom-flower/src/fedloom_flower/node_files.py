"""What a node keeps: versions of its client's state, and records of what it gave away. It does
nothing that these do not allow, whatever the server counts or prepares.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError
from safetensors import SafetensorError, safe_open

from fedloom.aggregation import privacy
from fedloom.aggregation.discrete_gaussian import DiscreteGaussian
from fedloom.core.vector import Rec
from fedloom.errors import CheckpointError, ClientError, WireError
from fedloom.federation.private_examples import ExamplePrivacy
from fedloom.storage import world
from fedloom.storage.atomic import make_folder, write_atomic
from fedloom.storage.manifest import ROUND
from fedloom.storage.records import densify, freeze, sparsify, thaw, write_tensors

_log = logging.getLogger(__name__)
R = TypeVar("R", bound=BaseModel)


class NodeStates:
    """The versions of one client's state in a folder, by the round that made them. An update may be
    lost or refused, and a server may return to an older checkpoint: so nothing is overwritten, and
    the server says which version it counts on, and which it may ask for again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        make_folder(self.folder, 0o700)  # it tells of the data

    def at(self, taken: int, kept: int, tidy: bool = True) -> Rec | None:
        """The version after round `taken`, its `state` and what was `seen` of the compressed fields
        of a broadcast; None if it is not here. tidy: all versions are deleted that no
        server can ask for: what it did not take, and what is older than its oldest checkpoint, at
        which `kept` rounds were done. Raises CheckpointError for a damaged file.
        """
        rounds = self._rounds()
        oldest = max((v for v in rounds if v <= min(taken, kept - 1)), default=-1)
        for v in rounds:
            if tidy and not oldest <= v <= taken:
                world.unlink(self._path(v))
        return self._read(taken) if taken in rounds else None

    def newest(self) -> Rec | None:
        """The version after the last round, None if there is none. Raises as at()."""
        rounds = self._rounds()
        return self._read(rounds[-1]) if rounds else None

    def attempt(self) -> int:
        """The number of the message that made the newest version, 0 if it has none."""
        try:
            with safe_open(self._path(self._rounds()[-1]), framework="pt") as file:
                return int(file.metadata().get("attempt", 0))
        except (IndexError, OSError, SafetensorError, ValueError):
            return 0  # there is none, or at() says that it is damaged

    def put(self, round: int, version: Rec, attempt: int = 0) -> None:
        """Write the version after a round, of a part of the model only that. attempt: the number of
        the message that asked for it. Raises OSError.
        """
        make_folder(self.folder, 0o700)  # it may have been removed since this node began
        shape, tensors = freeze(sparsify(version))
        metadata = {"shape": json.dumps(shape), "attempt": str(attempt)}
        write_tensors(self._path(round), tensors, metadata)

    def _rounds(self) -> list[int]:
        paths = self.folder.glob("*.safetensors")
        return sorted(int(p.stem) for p in paths if ROUND.fullmatch(p.stem))

    def _path(self, round: int) -> Path:
        return self.folder / f"{round:08d}.safetensors"

    def _read(self, round: int) -> Rec:
        path = self._path(round)
        try:
            if path.is_symlink():
                raise ValueError("it is a link")
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return densify(thaw(json.loads(file.metadata()["shape"]), tensors))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"the client state '{path}' cannot be read ({str(error).splitlines()[0]}); put "
                "back the file as it was, or delete it: the client then begins anew"
            ) from None


# ------------------------------------------------------------------------------- what it gave away
def _read_record(kind: type[R], file: Path, what: str, cure: str) -> R | None:
    """What a file holds, None if there is none. what, cure: for the error. Raises CheckpointError
    for a damaged file, OSError.
    """
    try:
        return kind.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise CheckpointError(f"{what} '{file}' is damaged; {cure}") from None


class RunRecord(BaseModel):
    """What a node did in a run: its last round, and of each model (or round) which clients (or
    models) that was for.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    run: str
    round: int = -1
    models: dict[str, str] = {}

    @classmethod
    def read(cls, file: Path, run: str, what: str, cure: str) -> RunRecord:
        """That of a run, empty if the file is of another one. Raises as _read_record."""
        record = _read_record(cls, file, what, cure)
        return record if record is not None and record.run == run else cls(run=run)

    def write(self, file: Path, key: str = "", value: str = "", round: int = -1) -> None:
        """Write it with an entry more. Raises OSError."""
        models = self.models | ({key: value} if key else {})
        updated = RunRecord(run=self.run, round=round, models=models)
        write_atomic(file, updated.model_dump_json())


def note_measured(folder: Path, run: str, round: int, model: str) -> None:
    """Note that a model, a digest of it, is measured in a round: one a round, for a server that
    asked of many could learn single test examples; the same one may be measured again. Raises
    WireError for another one, CheckpointError for a damaged file, OSError.
    """
    file, cure = folder / "measured.json", "put it back from a backup, or begin another run"
    record = RunRecord.read(file, run, "the list of measured models", cure)
    if record.models.get(str(round), model) != model:
        raise WireError(
            f"this node has measured the model of round {round}, and measures one a round: "
            "many models together tell single test rows"
        )
    record.write(file, str(round), model)


class Spent(BaseModel):
    """rounds, steps: all that this folder has computed; share, noise: the largest and the smallest
    of them, with which every step is counted.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    rounds: int = Field(ge=0)
    steps: int = Field(ge=0)
    share: float = Field(gt=0, le=1)
    noise: float = Field(gt=0)


class _Account(RootModel[dict[str, Spent]]):
    """What each mechanism has spent."""


class NodeAccount:
    """The account of one mechanism, in a file of the states' folder: one a folder, for all its runs
    and whatever its rows become. share: of the examples in a batch, 1 of a mechanism that hides
    whole clients; steps: of a round.
    """

    def __init__(
        self, folder: Path, mechanism: ExamplePrivacy | DiscreteGaussian, share: float, steps: int
    ) -> None:
        self._file, self._mechanism = folder / "examples.json", mechanism
        self._name = "local.dp" if isinstance(mechanism, ExamplePrivacy) else "aggregation"
        self._share, self._steps = share, steps

    def pay(self) -> None:
        """Count one more round, on the disk before it is computed: one that is lost, or computed
        again with other noise, is paid too. Raises ClientError if the budget does not allow it,
        CheckpointError for a damaged file, OSError.
        """
        cure = "put it back from a backup: without it nobody knows what is spent"
        account = _read_record(_Account, self._file, "the account of privacy", cure)
        all_spent, noise = {} if account is None else account.root, self._mechanism.noise
        first = Spent(rounds=0, steps=0, share=self._share, noise=noise)
        before = all_spent.get(self._name, first)
        spent = Spent(
            rounds=before.rounds + 1,
            steps=before.steps + self._steps,
            share=max(self._share, before.share),
            noise=min(noise, before.noise),
        )
        self._check(spent)
        updated = _Account(all_spent | {self._name: spent})
        write_atomic(self._file, updated.model_dump_json())

    def _check(self, spent: Spent) -> None:
        """Raise ClientError for more than the budget allows, if there is one."""
        limit = self._mechanism.max_epsilon
        if limit is None or not spent.steps:
            return
        cost = privacy.epsilon(spent.noise, spent.share, self._mechanism.delta, spent.steps)
        if cost > limit:
            raise ClientError(
                f"its privacy budget is spent: one more round would make epsilon {cost:.3g}, more "
                f"than {self._name}.max_epsilon = {limit:g}"
            )
        _log.info("%s: epsilon %.4g after %d rounds", self._name, cost, spent.rounds)
