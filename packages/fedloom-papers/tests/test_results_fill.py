"""Numbers in prose, filled from lines (results/fill.py), and pages held against them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.errors import ConfigError
from fedloom_papers.results import fill as FILL
from fedloom_papers.results import page as PAGE
from results_lines import RESULTS


def test_a_placeholder_becomes_what_the_lines_say() -> None:
    text = (
        "{{claim:fedsmoo:8/headline/fedavg.verdict}}: {{claim:fedsmoo:8/headline/fedavg.points}}, "
        "{{claim:fedsmoo:8/headline/fedavg.difference 1}}; {{row:fedsmoo:8/fedavg.paper}}"
    )
    assert FILL.fill(text) == "the opposite is clear: 9.15, -9.1; 74.08"
    own = {"record": lambda place, field: f"{field} of {place}"}
    assert FILL.fill("a {{record:x/y.z}} b", own) == "a z of x/y b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{claim:fedsmoo:8/hedline.p}}", "no claim 'hedline'; did you mean 'headline'"),
        ("{{claim:fedsmoo:8/headline/fedavgm.p}}", "no comparison with 'fedavgm'"),
        ("{{claim:fedsmoo:8/headline.q}}", "no field 'q'"),
        ("{{claims:x.y}}", "no kind 'claims'; did you mean 'claim'"),
        ("{{claim:fedsmoo:8 headline}}", "no placeholder: {{claim"),
        ("{{gap:zoo/dirichlet/FedACG/FedAvgg.points}}", "FedAvgg"),
    ],
)
def test_a_placeholder_that_says_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="no ") as error:
        FILL.fill(text)
    assert said in str(error.value)


def test_a_page_that_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same, other = tmp_path / "a.md", tmp_path / "b.md"
    same.write_text("x\n")
    other.write_text("9.15\n")
    assert PAGE.differing({same: "x\n"}, "make it") == 0
    assert PAGE.differing({same: "x\n", other: "9.16\n"}, "make it") == 1
    assert "b.md differs from its lines; make it again: make it" in capsys.readouterr().out


def test_no_picture_has_few_colours() -> None:
    """In 64 colours FedAvg and FedAvgM had the same green. Byte 25 of a PNG: 3 is a palette."""
    pictures = [*RESULTS.parent.glob("**/*.png")]
    assert [file.name for file in pictures if file.read_bytes()[25] == 3] == []
