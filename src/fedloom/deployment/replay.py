"""A round of a deployed run once more, of what its nodes sent: only the server's half."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path

from ..errors import CheckpointError
from ..experiment.replay import Replay
from .agreement import read_agreement
from .folder import Folder
from .kept_updates import KeptUpdates, kept_rounds
from .server import experiment_at_server
from .sites import run_of, settings_of


def replay(run: Path, round: int) -> AbstractContextManager[Replay]:
    """A round (from 1) of a federation's run, as its server repeats it; see Experiment.replay().
    run: its folder in that of the federation. Raises FedloomError.
    """
    fed = Folder(run.parent)
    kept = kept_rounds(fed)
    if round not in kept and fed.settings().keep_updates:
        some = f"rounds {kept[0]} to {kept[-1]}" if kept else "nothing"
        raise CheckpointError(f"of round {round} of '{run}' nothing is kept, but of {some}")
    who = fed.attendance(private=False)
    if who.is_file() and '"there": ' in who.read_text(encoding="utf-8"):
        raise CheckpointError(
            f"'{run}' cannot be replayed: sites were added or taken out, and a round would be "
            "drawn from those of now"
        )
    agreed = read_agreement(fed.agreed_file)
    exchange = KeptUpdates(fed, run_of(fed, settings_of(fed)))
    exchange.check(round)
    made = experiment_at_server(fed, exchange, agreed, again=True)
    return dataclasses.replace(made, on_round=()).replay(run, round)
