"""Lines of runs that never were."""

from __future__ import annotations

from typing import Any

from fedloom_papers.results.study import RESULTS, Study

__all__ = ["METHODS", "MIB", "RESULTS"]
MIB = 2**20
HEAD = {"paper": "study", "scale": "paper", "digest": "", "settings": {}, "version": ""}
ZOO = Study("zoo")
METHODS: dict[str, Any] = dict(ZOO.tables["dirichlet"].rows)


def zoo_line(method: str, stage: str, key: str, value: str, **more: Any) -> dict[str, Any]:
    table = ZOO.tables["dirichlet"]
    more_words = ZOO.tuning if stage == "tuning" else ()
    line: dict[str, Any] = {
        **HEAD,
        "method": method,
        "stage": stage,
        "recipe": table.recipe,
        "changes": [*table.typed(method, {key: value}), *more_words],
        "seed": 0,
        "state": "finished",
        "last": {"round": 300, "value": 0.5},
        "best": {"round": 300, "value": 0.6},
        "last_ema": 0.55,
        "bytes_to_target": None,
        "rounds": 300,
        "bytes_up": 150 * MIB,
        "bytes_down": 150 * MIB,
        "seconds_per_round": 0.5,
    }
    held_out = more.pop("last_validation", 0.5)
    line |= more
    # the last tenth of two evaluations is the second one
    curves = {"curve": [[150, 0.7], [300, line["last_ema"]]], "validation": [[300, held_out]]}
    return {"curves": curves, **line}


def zoo_lines() -> list[dict[str, Any]]:
    rate, lam = "local.lr", "algorithm.lam"
    out = [
        zoo_line("FedAvg", "tuning", rate, v, last_validation=a)
        for v, a in (("0.05", 0.7), ("0.1", 0.8), ("0.2", 0.75))
    ]
    out += [
        zoo_line("FedACG", "tuning", lam, "0.8", last_validation=0.5),
        zoo_line("FedACG", "tuning", lam, "0.85", last_validation=0.6),
        {
            **zoo_line("FedACG", "tuning", lam, "0.9"),
            "state": "failed",
            "reason": "not finite\nmore",
        },
        zoo_line("FedProx", "tuning", "algorithm.mu", "0.01"),  # one of three
        zoo_line("FedAvg", "final", rate, "0.2", last_ema=0.99),  # not what was chosen
    ]
    for seed, (base, ours) in enumerate(((0.80, 0.83), (0.82, 0.84), (0.84, 0.85))):
        out.append(zoo_line("FedAvg", "final", rate, "0.1", seed=seed, last_ema=base))
        hit = {"rounds_to_target": 100 + 10 * seed, "bytes_to_target": 10 * (seed + 1) * MIB}
        hit = hit if seed < 2 else {}
        twice = {"bytes_up": 300 * MIB, "bytes_down": 300 * MIB}
        out.append(
            zoo_line("FedACG", "final", lam, "0.85", seed=seed, last_ema=ours, **hit, **twice)
        )
    failed = zoo_line("FedACG", "final", lam, "0.85", seed=3, state="failed")
    return [
        *out,
        {k: failed[k] for k in (*HEAD, "recipe", "changes", "seed", "state", "method", "stage")},
    ]


def compressed(way: str, ema: float, **more: Any) -> dict[str, Any]:
    share = float(way.partition(":")[2] or 1)
    tens = range(10, 101, 10)
    curves = {"curve": [[t, ema * t / 100] for t in tens], "train_loss": [[t, 1.0] for t in tens]}
    if share < 1:
        curves["delta_square"] = [[t, 2.0] for t in tens]
        curves["residual_square"] = [[t, 6.0 if t > 60 else 1.0] for t in tens]
    line = {
        **HEAD,
        "seed": 0,
        "state": "finished",
        "recipe": "cfedavg_fashion",
        "changes": ["data.partition.classes=5", f"compress={way}"],
        "last": {"round": 100, "value": ema},
        "best": {"round": 100, "value": ema},
        "last_ema": ema,
        "rounds_to_target_text": "100+",
        "bytes_to_target": None,
        "rounds": 100,
        "parameters": 1000,
        # 20 clients, 100 rounds, 4 bytes a value, a quarter more for positions
        "bytes_up": int(20 * 100 * 4000 * share * (1.25 if share < 1 else 1)),
        "bytes_down": 20 * 100 * 4000,
        "curves": curves,
    }
    return line | more


def compression_lines() -> list[dict[str, Any]]:
    return [
        compressed("none", 0.80),
        compressed("topk:0.1", 0.785),
        compressed("topk:0.01", 0.75),
        compressed("dropping:0.1", 0.78),
        compressed("dropping:0.01", 0.40),
    ]


def sub_line(method: str, seed: int, accuracy: float, settings: list[str]) -> dict[str, Any]:
    """A run whose size s has the accuracy less 0.1 for every halving below 1."""
    sizes = {"0.25": accuracy - 0.2, "1": accuracy}
    test, local = (
        {
            s: [[10, 0.5], [20, 0.82], [30, v + more]]
            for s, v in (*sizes.items(), ("mean", accuracy - 0.1))
        }
        for more in (0.0, 0.05)
    )
    return {
        **HEAD,
        "state": "finished",
        "recipe": "fiarse_fashion",
        "method": method,
        "seed": seed,
        "changes": [*settings, f"seed={seed}"],
        "rounds": 30,
        "parameters": 1000,
        "last": {"round": 30, "value": accuracy},
        "bytes_up": MIB,
        "bytes_down": 2 * MIB,
        "sizes": {
            "held": {"0.25": {"counted": 250, "of": 1000, "all": 255}, "1": {"all": 1000}},
            "global": sizes | {"mean": accuracy - 0.1},
            "local": {k: v + 0.05 for k, v in sizes.items()} | {"mean": accuracy - 0.05},
            "unseen": [{"capacity": 0.125, "trained": False, "global": accuracy - 0.3}],
        },
        "clients": [0.5, 0.9],
        "curves": {
            **{f"test_accuracy@{s}": curve for s, curve in test.items()},
            **{f"local_accuracy@{s}": curve for s, curve in local.items()},
            "explored@0.25": [[1, 0.25], [2, 0.35], [3, 0.4], [4, 0.42], [5, 0.43]],
            "explored@1": [[t, 1.0] for t in range(1, 6)],
            "replaced@0.25": [[1, 0.2], [2, 0.1], [3, 0.05], [4, 0.04], [5, 0.02]],
            "replaced@1": [[t, 0.0] for t in range(1, 6)],
        },
    }


def submodel_lines() -> list[dict[str, Any]]:
    out = []
    for seed, (ours, other) in enumerate(((0.8, 0.7), (0.82, 0.71), (0.84, 0.72))):
        out.append(sub_line("FIARSE", seed, ours, ["submodel=fiarse"]))
        out.append(sub_line("Pruning-Greedy", seed, other, ["submodel=greedy"]))
    out.append(sub_line("HeteroFL", 0, 0.9, ["submodel=heterofl", "engine=serial"]))
    out.append(sub_line("FedRolex", 0, 0.9, ["submodel=fedrolex", "rounds=2"]))  # other settings
    return out
