"""The curve, scores, a bar that shows them, and what a notebook shows."""

import builtins
import io
import math
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedloom import Evaluation, Experiment, FedAvg, Local
from fedloom.data import from_clients
from fedloom.engines.scores import Score, add, per_example
from fedloom.errors import DataError
from fedloom.evaluation.settings import Curve
from fedloom.report import show_report
from fedloom.server.progress import Progress
from fedloom.server.state import Ledger


def follow(curve, values, apart=1):
    """The averages of evaluations."""
    return [curve.add(n * apart, value) for n, value in enumerate(values, 1)]


@given(
    st.lists(st.floats(0, 1) | st.sampled_from([math.nan, math.inf]), max_size=30),
    st.floats(0, 0.99),
)
def test_the_average_is_the_weighted_mean_of_all_finite_values_so_far(values, ema):
    curve = Curve(ema=ema)
    for t, average in enumerate(follow(curve, values), 1):
        pairs = [(ema ** (t - s), v) for s, v in enumerate(values[:t], 1) if math.isfinite(v)]
        if math.isfinite(values[t - 1]):
            mean = sum(w * v for w, v in pairs) / sum(w for w, _ in pairs)
            assert average == pytest.approx(mean, abs=1e-12)
        else:
            assert math.isnan(average)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 7))
def test_evaluations_apart_forget_at_the_same_pace(values, apart):
    wanted = follow(Curve(ema=0.9**apart), values)[-1]
    assert follow(Curve(ema=0.9), values, apart)[-1] == pytest.approx(wanted, abs=1e-12)


def test_the_target_is_reached_once_on_the_average():
    # averages: .2, (.1 + .45)/.75 = .667 after debiasing by 1 - .5^t
    assert follow(Curve(ema=0.5), [0.2, 0.9])[1] == pytest.approx(2 / 3)
    rounds = [{"round": t, "bytes_up": 60, "bytes_down": 40, "seconds": 1.0} for t in range(1, 6)]
    ledger = Ledger(down={"x": 230}, up={"delta": 300}, seconds=5.5)  # with 30 bytes before round 1
    assert ledger.until(2, rounds) == (230, 2.5) and ledger.until(5, rounds) == (530, 5.5)


def test_smaller_may_be_better():
    curve = Curve(ema=0.0, higher_is_better=False)
    assert curve.better(0.1, 0.2) and not curve.better(0.2, 0.2)


def test_when_to_evaluate():
    due = lambda every: [t for t in range(1, 11) if Evaluation(every=every).due(t)]
    assert (due(3), due(0), due(1)) == ([3, 6, 9], [], [*range(1, 11)])
    assert Evaluation().due(1)


def test_scores_add_up():
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])
    sums = {"a": 1.0, "b": 4.0}, {"a": 2.0, "b": 2.0}
    one = Score(2, 1.0, *sums, {"a": first, "b": first}, {"a": torch.ones(2), "b": torch.ones(2)})
    sums = {"a": 2.0, "b": 5.0}, {"a": 3.0, "b": 3.0}
    two = Score(3, 0.5, *sums, {"a": second}, {"a": torch.ones(3)})
    both = add([one, two])
    assert both[:3] == (5, 1.5, {"a": 3.0, "b": 9.0})
    assert both.each.keys() == both.each_weights.keys() == {"a"}  # b has no values of all
    assert both.each["a"].tolist() == [1, 0, 1, 1, 0] and both.each_weights["a"].tolist() == [1] * 5
    assert add([]).examples == 0


def test_losses_and_metrics_per_example():
    assert per_example(torch.tensor(2.0), 3, "it").tolist() == [2, 2, 2]
    assert per_example(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), 2, "it").tolist() == [2, 2]
    with pytest.raises(DataError, match=r"it gave shape \[4\] for a batch of 3"):
        per_example(torch.zeros(4), 3, "it")


@pytest.mark.parametrize("width", [72, 80, 120])
def test_the_bar_cuts_nothing_that_it_says(width, monkeypatch):
    """In a narrow terminal there is less of it, and no number ends in dots."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    progress = Progress("SCAFFOLD, seed 0", 150, "accuracy")
    with progress:
        row = {"test_accuracy": 0.9415, "bytes_up": 25 << 20, "bytes_down": 75 << 20, "cohort": 10}
        progress.update({"round": 129, **row})
    said = terminal.getvalue()
    assert "…" not in said
    assert all(word in said for word in ("129/150", "94.15%", "100.0 MiB"))
    assert ("clients/s" in said) == (width == 120)


SECRET = 7.7777


def experiment(**more):
    pair = (torch.full((4, 2), SECRET), torch.tensor([0, 1, 0, 1]))
    data = from_clients({"lyon": pair, "b<o>nn": pair}, client_tests={"lyon": pair, "b<o>nn": pair})
    parts = {"algorithm": FedAvg(), "model": nn.Linear(2, 2), "rounds": 3, "local": Local(lr=0.1)}
    return Experiment(data=data, evaluate=Evaluation(every=1), **{**parts, **more})


def test_an_experiment_and_a_result_are_a_line_a_table_and_a_curve_without_samples():
    run = experiment()
    result = run.run()
    for text in (repr(run), repr(result)):
        assert "\n" not in text and "7.77" not in text and "tensor" not in text
    assert repr(run).startswith("<Experiment FedAvg: 3 rounds, <FederatedData 'yours': 2 clients")
    assert repr(result).startswith("<Result FedAvg: rounds 3, last accuracy ")
    page = result._repr_html_()
    assert "client lyon" in page and "client b&lt;o&gt;nn" in page and "<o>" not in page
    assert page.count("<polyline") == 1 and "rounds 1 to 3" in page and "7.77" not in page
    assert "<svg" not in experiment(rounds=1).run()._repr_html_()


@pytest.fixture
def notebook(monkeypatch):
    """Stands for Jupyter: what its cell shows."""
    shown = []

    class Place:
        def update(self, bar):
            shown[-1] = bar

    def display(bar, display_id):
        shown.append(bar)
        return Place()

    module = ModuleType("IPython.display")
    module.HTML, module.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    return shown


def test_a_notebook_shows_progress_in_one_place_and_unasked(notebook, capsys):
    experiment(label="<b>").run()
    assert len(notebook) == 1 and 'value="3" max="3"' in notebook[0]
    assert "&lt;b&gt;, seed 0: round 3/3" in notebook[0]
    assert capsys.readouterr().err == ""
    experiment().run(progress=False)
    assert len(notebook) == 1


@pytest.mark.slow
def test_a_report_is_shown_in_a_frame(tmp_path):
    pytest.importorskip("jinja2")
    experiment().run(tmp_path / "r")
    shown = show_report(tmp_path / "r", height=300)
    html = shown._repr_html_()
    assert html.startswith('<iframe style="width:100%;height:300px') and html.count("<") == 2
    assert "&lt;h2&gt;Comparison" in html and "7.77" not in html
    assert repr(shown).startswith("<report, ")
