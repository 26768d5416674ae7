"""Compression, both ways, and device profiles from the command line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from fedloom.algorithms import CFedAvg
from fedloom.compression.codecs import FedPAQ, Int8, TopK, make_codec
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.config import from_run, resolve
from fedloom.errors import ConfigError
from tiny import Fedloom

SMALL = ("rounds=2", "local.epochs=1", "engine=serial", "evaluate.every=1")


def link(*changes: str) -> Link | None:
    return resolve("digits", list(changes)).experiment().compress  # type: ignore[return-value]


MEANT = {
    ("compress=topk:0.1",): Link(FieldCodec(TopK(ratio=0.1), Residual())),
    ("compress.up=topk:0.1",): Link(FieldCodec(TopK(ratio=0.1), Residual())),
    ("compress.up=topk", "compress.up.ratio=0.1"): Link(FieldCodec(TopK(ratio=0.1), Residual())),
    ("compress=topk:0.1,layer", "compress.feedback=ef21"): Link(
        FieldCodec(TopK(ratio=0.1, scope="layer"), EF21())
    ),
    ("compress=topk:0.1|int8:64",): Link(FieldCodec(make_codec("topk:0.1|int8:64"), Residual())),
    ("compress=fedpaq",): Link(FieldCodec(FedPAQ(), Forget())),
    ("compress.down=int8",): Link({}, Int8()),
    ("compress=topk:0.1", "compress.down=topk:0.5|fp16"): Link(
        FieldCodec(TopK(ratio=0.1), Residual()), make_codec("topk:0.5|fp16")
    ),
    ("compress.down=int8", "compress=topk:0.1", "compress.down.bucket=64"): Link(
        FieldCodec(TopK(ratio=0.1), Residual()), Int8(bucket=64)
    ),
    ("compress=none",): None,
    ("compress=none", "compress.down=int8"): Link({}, Int8()),
    ("compress.down=none",): None,
}


@pytest.mark.parametrize("changes", MEANT)
def test_what_is_written_is_what_is_meant(changes: tuple[str, ...]) -> None:
    assert link(*changes) == MEANT[changes]


def test_a_configuration_is_complete_and_says_the_same_again(tmp_path: Path) -> None:
    changes = ["compress=topk:0.1|int8", "compress.down=qsgd:31"]
    config = resolve("digits", changes)
    assert config.values["compress"] == {
        "name": "chain",
        "of": "topk:0.1|int8",
        "feedback": "residual",
        "down": {"name": "qsgd", "levels": 31, "bucket": 512, "scope": "global", "shrink": False},
    }
    file = tmp_path / "again.toml"
    file.write_text(config.to_toml())
    assert resolve(file).values["compress"] == config.values["compress"]
    file.write_text(
        config.to_toml().partition("[compress]")[0]
        + '[compress.up]\nname = "topk"\nratio = 0.1\n[compress.down]\nname = "int8"\n'
    )
    again = resolve(file).values["compress"]
    assert again["name"] == "topk" and again["feedback"] == "residual"
    assert again["down"] == {"name": "int8", "bucket": 512}
    file.write_text(
        file.read_text().replace("[compress.up]", '[compress]\nname = "sign"\n[compress.up]')
    )
    with pytest.raises(ConfigError, match="keep one of them"):
        resolve(file)


def test_a_run_with_everything_on_can_go_on(fedloom: Fedloom) -> None:
    fedloom(
        *("run", "digits", *SMALL, "algorithm=cfedavg", "algorithm.per_step=true"),
        *("algorithm.server_lr=3", "compress=topk:0.1|fp16", "compress.down=topk:0.2"),
        *("devices=lognormal", "devices.up=1e5", "local.seconds=0.5", "--out", "a"),
    )
    rows = [json.loads(line) for line in Path("a/rounds.jsonl").read_text().splitlines()]
    assert all(0.05 < row["simulated_seconds"] < 2 for row in rows)
    ledger = json.loads(Path("a/ledger.json").read_text())
    assert ledger["simulated"] == pytest.approx(sum(row["simulated_seconds"] for row in rows))
    assert 0 < ledger["up"]["delta"] < 0.15 * ledger["down"]["x"]
    config = tomllib.loads(Path("a/config.toml").read_text())
    assert config["devices"]["up"] == 1e5 and config["compress"]["down"]["name"] == "topk"
    experiment = from_run("a").experiment()
    assert experiment.algorithm == CFedAvg(server_lr=3.0, per_step=True)
    fedloom("run", "--resume", "a", "rounds=3")
    assert len(Path("a/rounds.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_reports_show_the_metric_against_simulated_time(fedloom: Fedloom) -> None:
    fedloom("run", "digits", *SMALL, "devices=levels", "--out", "a")
    assert Path("a/pictures/accuracy_by_simulated.png").exists()
    assert "simulated time" in Path("a/report.html").read_text()
    fedloom("run", "digits", *SMALL, "--out", "b")
    assert not Path("b/pictures/accuracy_by_simulated.png").exists()


def test_an_estimate_knows_both_ways(fedloom: Fedloom) -> None:
    plain, coded = (
        resolve("digits", [*SMALL, *more]).experiment()
        for more in ([], ["compress=topk:0.01", "compress.down=topk:0.01"])
    )
    from fedloom.cli.dry_run import measure

    one, two = measure(plain), measure(coded)
    assert two.down < 0.1 * one.down and two.up < 0.1 * one.up


def test_a_rounds_bytes_are_there_by_field(fedloom: Fedloom) -> None:
    fedloom("run", "digits", *SMALL, "algorithm=scaffold", "compress=topk:0.1", "--out", "a")
    rows = [json.loads(line) for line in Path("a/rounds.jsonl").read_text().splitlines()]
    ledger = json.loads(Path("a/ledger.json").read_text())
    for way in ("up", "down"):
        for row in rows:
            own = [n for k, n in row.items() if k.startswith(f"bytes_{way}.")]
            assert sum(own) == row[f"bytes_{way}"] > 0
        for field, count in ledger[way].items():
            assert sum(row[f"bytes_{way}.{field}"] for row in rows) == count


def test_the_residual_is_what_the_server_lacks(fedloom: Fedloom) -> None:
    for feedback in ("residual", "ef21"):
        more = ("compress=topk:1", f"compress.feedback={feedback}", "--out", feedback)
        fedloom("run", "digits", *SMALL, *more)
        rows = [json.loads(t) for t in Path(feedback, "rounds.jsonl").read_text().splitlines()]
        assert all(row["delta_square"] > 1e-4 for row in rows)
        assert all(row["residual_square"] < 1e-12 for row in rows), "all has been sent"


def test_an_answer_that_no_codec_takes_is_not_billed(fedloom: Fedloom) -> None:
    wild = ("local.lr=1e30", "nonfinite=skip", "rounds=1", "engine=serial")
    fedloom("run", "digits", *wild, "compress=topk:0.1", "--out", "coded")
    fedloom("run", "digits", *wild, "--out", "dense")
    coded, dense = (json.loads(Path(n, "rounds.jsonl").read_text()) for n in ("coded", "dense"))
    assert coded["answered"] == dense["answered"] == 0
    assert coded["bytes_up"] == 0 < dense["bytes_up"]


def test_a_later_target_is_looked_for_from_the_beginning(fedloom: Fedloom) -> None:
    few = (*SMALL[1:], "rounds=9")
    fedloom("run", "digits", *few, "evaluate.target=0.2", "--out", "straight")
    fedloom("run", "digits", *few, "evaluate.target=0.99", "--out", "later")
    fedloom("run", "--resume", "later", "rounds=10", "evaluate.target=0.2")
    one, two = (json.loads(Path(n, "summary.json").read_text()) for n in ("straight", "later"))
    assert one["rounds_to_target"] == two["rounds_to_target"] < 9
    assert one["bytes_to_target"] == two["bytes_to_target"] > 0


def test_an_export_replaces_nothing_else(fedloom: Fedloom) -> None:
    fedloom("run", "digits", *SMALL, "--out", "a")
    before = Path("a/config.toml").read_text()
    for out, said in (
        ("a/config.toml", "is a file; an export is a folder"),
        ("a", "has files that are no export's, such as summary.json"),
        ("/proc/x", "cannot be written"),
    ):
        text = fedloom("export", "a", "--out", out, code=2).output
        assert said in text and "unexpected" not in text
    assert Path("a/config.toml").read_text() == before
