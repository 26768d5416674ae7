"""What a notebook shows: one line for data, experiment and result; a table, a curve, a bar."""

import builtins
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from fedloom import Evaluation, Experiment, FedAvg, Local
from fedloom.data import from_clients
from fedloom.report import show_report

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
