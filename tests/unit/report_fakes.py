"""Make run directories as the experiment layer writes them, from curves chosen by a test."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BYTES_DOWN, BYTES_UP, SECONDS = 4000, 1000, 0.5


def fake_run(
    folder: Path,
    values: Sequence[float | None],
    *,
    ema: Sequence[float | None] | None = None,
    algorithm: str = "fedavg",
    label: str = "FedAvg",
    name: str = "digits",
    seed: int = 0,
    planned: int | None = None,
    metric: tuple[str, bool, str] = ("accuracy", True, "share"),
    target: float | None = None,
    summary: bool = True,
    config: str = "",
    partition: dict[str, Any] | None = None,
    clients: list[float | None] | None = None,
) -> Path:
    """Write one run; a value of None is a round that was not evaluated."""
    folder.mkdir(parents=True)
    planned = planned or len(values)
    quoted = json.dumps(name)
    (folder / "config.toml").write_text(
        f"name = {quoted}\nseed = {seed}\nrounds = {planned}\ncohort = 10\n{config}\n"
        f'[algorithm]\nname = "{algorithm}"\n\n[model]\nname = "mlp"\n\n[data]\nname = "digits"\n'
    )
    rows = []
    for number, value in enumerate(values, start=1):
        row = {"round": number, "lr": 0.1, "cohort": 10, "answered": 10, "steps": 50}
        row |= {"train_loss": 2.0 / number, "gradients": 50, "seconds": SECONDS}
        row |= {"bytes_down": BYTES_DOWN, "bytes_up": BYTES_UP}
        if value is not None:
            row |= {"test_loss": 1.5 / number, f"test_{metric[0]}": value}
            row[f"test_{metric[0]}_ema"] = value if ema is None else ema[number - 1]
        rows.append(row)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if summary:
        write(
            folder / "summary.json",
            summary_of(rows, metric, target, planned)
            | {
                "algorithm": algorithm,
                "label": label,
                "name": name,
                "seed": seed,
                "group": f"{algorithm}-{zlib.crc32(config.encode()):x}",
            },
        )
    n = len(values) * 10
    write(
        folder / "ledger.json",
        {
            "down": {"x": BYTES_DOWN * len(values)},
            "up": {"delta": (BYTES_UP - 200) * len(values), "weight": 200 * len(values)},
            "client_rounds": n,
            "steps": 50 * n,
            "gradients": 50 * n,
            "seconds": SECONDS * len(values),
        },
    )
    counts = [[(3 * c + k) % 7 for c in range(4)] for k in range(10)]
    write(
        folder / "partition.json",
        partition
        or {
            "counts": counts,
            "sizes": [sum(row) for row in counts],
            "class_names": list("abcd"),
        },
    )
    write(
        folder / "clients.json",
        {
            "round": len(values),
            "metric": metric[0],
            "basis": "own test sets",
            "values": clients or [0.5 + 0.04 * k for k in range(9)] + [None],
        },
    )
    write(folder / "environment.json", {"python": "3.11.2", "torch": "2.13.0"})
    return folder


def summary_of(
    rows: list[dict[str, Any]], metric: tuple[str, bool, str], target: float | None, planned: int
) -> dict[str, Any]:
    """The parts of summary.json that follow from the rows."""
    key, keys = f"test_{metric[0]}", ("name", "higher_is_better", "unit")
    found = [(row["round"], row[key], row[f"{key}_ema"]) for row in rows if key in row]
    hits = [t for t, _, e in found if target is not None and (e >= target) == metric[1]]
    hit = hits[0] if hits else None
    return {
        "metric": dict(zip(keys, metric, strict=True)),
        "rounds": planned,
        "finished": True,
        "population": 10,
        "parameters": 4810,
        "engine": "serial",
        "target": target,
        "rounds_to_target": hit,
        "rounds_to_target_text": str(hit or f"{planned}+"),
        "bytes_to_target": hit and hit * (BYTES_DOWN + BYTES_UP),
        "seconds_to_target": hit and hit * SECONDS,
    }


def write(file: Path, content: dict[str, Any]) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(content))
