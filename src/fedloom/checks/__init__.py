"""The contract of a user's own part, such as an algorithm, carried out on a small problem.

The rules of an algorithm's methods are those of every run, engines/author_rules.py. Files:
algorithms.py, objectives.py, views.py, codecs.py and aggregations.py say what each kind owes;
engine_agreement.py what all do (the same in every engine, after a stop, on the bill);
tiny_federation.py has the small federation; compare.py calls every method twice; outcome.py turns
an exception into a paragraph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..data import FederatedData
from ..engines import make_engine
from ..errors import ConfigError
from .aggregations import AggregationContract
from .algorithms import AlgorithmContract
from .codecs import CodecContract
from .discovery import built, kind_of, parts_of
from .engine_agreement import Contract
from .objectives import ObjectiveContract
from .outcome import Outcome, Report, carry_out
from .tiny_federation import Setup
from .views import ViewContract

__all__ = ["CONTRACTS", "ENGINES", "Outcome", "Report", "check", "parts_of"]

ENGINES = ("vectorised:3", "workers:2")
CONTRACTS: dict[str, type[Contract]] = {
    "algorithm": AlgorithmContract,
    "objective": ObjectiveContract,
    "sub-model scheme": ViewContract,
    "codec": CodecContract,
    "aggregation": AggregationContract,
}


def check(
    part: Any,
    engines: Sequence[str] = ENGINES,
    name: str = "",
    model: Any = None,
    data: FederatedData | None = None,
) -> Report:
    """Carry out the contract on a part or class: an algorithm, objective, sub-model scheme, codec
    or aggregation.

    engines: those that must agree with the serial one. The runs take seconds; workers are
    processes, whose start takes most of them. name: what the report calls the part. model, data: of
    your own, as an Experiment takes them, for a part that the small ones do not suit. Raises
    ConfigError for what is no part, or a class that needs arguments.

    >>> from fedloom.compression.codecs import TopK
    >>> report = check(TopK(ratio=0.5), engines=("vectorised",))
    >>> report.passed, report.kind
    (True, 'codec')
    """
    if (model is None) != (data is None):
        raise ConfigError("check: model and data are given together, or neither")
    for engine in engines:
        make_engine(engine)
    part = built(part)
    kind = kind_of(part)
    checks = CONTRACTS[kind](part, Setup(model, data)).checks(engines)
    return carry_out(part, name or type(part).__name__, kind, checks)
