"""Make run directories as the experiment layer writes them, from curves chosen by a test."""

import json
import zlib

from fedloom.report import group_runs, load_run

BYTES_DOWN, BYTES_UP, SECONDS = 4000, 1000, 0.5
COUNTS = [[(3 * c + k) % 7 for c in range(4)] for k in range(10)]
DIGITS = {"counts": COUNTS, "sizes": [sum(row) for row in COUNTS], "class_names": list("abcd")}


def fake_run(
    folder,
    values,
    *,
    ema=None,
    algorithm="fedavg",
    label="FedAvg",
    name="digits",
    seed=0,
    planned=None,
    metric=("accuracy", True, "share"),
    target=None,
    summary=True,
    config="",
    partition=None,
    clients=None,
):
    """Write one run; a value of None is a round that was not evaluated."""
    folder.mkdir(parents=True)
    planned, n, column = planned or len(values), len(values), f"test_{metric[0]}"
    (folder / "config.toml").write_text(
        f"name = {json.dumps(name)}\nseed = {seed}\nrounds = {planned}\ncohort = 10\n{config}\n"
        f'[algorithm]\nname = "{algorithm}"\n\n[model]\nname = "mlp"\n\n[data]\nname = "digits"\n'
    )
    rows = []
    for number, value in enumerate(values, start=1):
        row = {"round": number, "lr": 0.1, "cohort": 10, "answered": 10, "steps": 50}
        row |= {"train_loss": 2.0 / number, "gradients": 50, "seconds": SECONDS}
        row |= {"bytes_down": BYTES_DOWN, "bytes_up": BYTES_UP, "bytes_down.x": BYTES_DOWN}
        row |= {"bytes_up.delta": BYTES_UP - 200, "bytes_up.weight": 200}
        if value is not None:
            row |= {"test_loss": 1.5 / number, column: value}
            row[f"{column}_ema"] = value if ema is None else ema[number - 1]
        rows.append(row)
    write_rows(folder / "rounds.jsonl", rows)
    files = {
        "ledger": {"down": {"x": BYTES_DOWN * n}, "client_rounds": 10 * n, "seconds": SECONDS * n},
        "partition": partition or DIGITS,
        "clients": {"round": n, "metric": metric[0], "basis": "own test sets"},
        "environment": {"python": "3.11.2", "torch": "2.13.0"},
    }
    files["ledger"] |= {"steps": 500 * n, "gradients": 500 * n}
    files["ledger"]["up"] = {"delta": (BYTES_UP - 200) * n, "weight": 200 * n}
    files["clients"]["values"] = clients or [0.5 + 0.04 * k for k in range(9)] + [None]
    if summary:
        names = {"algorithm": algorithm, "label": label, "name": name, "seed": seed}
        group = {"group": f"{algorithm}-{zlib.crc32(config.encode()):x}"}
        files["summary"] = _summary(rows, metric, target, planned) | names | group
    for file, content in files.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return folder


def _summary(rows, metric, target, planned):
    """What follows from the rows."""
    column = f"test_{metric[0]}"
    averages = [(row["round"], row[f"{column}_ema"]) for row in rows if column in row]
    hits = [t for t, e in averages if target is not None and (e >= target) == metric[1]]
    hit = hits[0] if hits else None
    out = {"metric": dict(zip(("name", "higher_is_better", "unit"), metric, strict=True))}
    out |= {"rounds": planned, "finished": True, "population": 10, "parameters": 4810}
    out |= {"engine": "serial", "target": target, "rounds_to_target": hit}
    out |= {"rounds_to_target_text": str(hit or f"{planned}+")}
    out |= {"bytes_to_target": hit and hit * (BYTES_DOWN + BYTES_UP)}
    return out | {"seconds_to_target": hit and hit * SECONDS}


def write_rows(file, rows, end=""):
    """Write a log: an object a line, and what a kill left of the last one."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)


def groups_at(*folders):
    """The groups of runs in these folders."""
    return group_runs(map(load_run, folders))


def fake_groups(folder, curves, **more):
    """The groups of {label: [the curve of each seed]}, of a method of its own each."""
    return groups_at(
        *(
            fake_run(folder / f"{name}{seed}", curve, algorithm=name, label=name, seed=seed, **more)
            for name, seeds in curves.items()
            for seed, curve in enumerate(seeds)
        )
    )
