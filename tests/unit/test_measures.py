"""Curvature, loss surface, divergence and CKA against exact small cases, and `paper measure`."""

import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.func import functional_call

from fedloom import Experiment, Local
from fedloom.algorithms import FedAvg
from fedloom.cli.__main__ import cli
from fedloom.core.net import Net
from fedloom.core.rng import generator
from fedloom.data import digits, dirichlet, from_clients
from fedloom.errors import CompositionError, ConfigError
from fedloom.measures import Cka, Divergence, Hessian, MeanLoss, Plane, Surface, hessian
from fedloom.measures.landscape import axes, directions
from fedloom.measures.local_models import activations, gram, layers_of, local_models
from fedloom.models import mlp
from fedloom.objectives import SquaredError
from fedloom.report import group_runs, load_run
from fedloom.report.charts import measure_pictures
from fedloom.submodels import FIARSE
from support.refusals import refused
from tiny import A, B, quadratics, timeless, trace, weights

DRAW = torch.Generator().manual_seed(3)
DOUBLES = {"generator": DRAW, "dtype": torch.float64}


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


# ------------------------------------------------------------------------------------- curvature
@pytest.fixture(scope="module")
def curved():
    """A loss of 31 parameters in batches of 7, and its whole Hessian by torch."""
    module = network()
    inputs = torch.randn(20, 3, **DOUBLES)
    targets = torch.randint(0, 3, (20,), generator=DRAW)
    names = [n for n, _ in module.named_parameters()]
    shapes = [p.shape for p in module.parameters()]

    def f(x):
        parts = x.split([s.numel() for s in shapes])
        named = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return nn.functional.cross_entropy(functional_call(module, named, inputs), targets)

    loss = MeanLoss(module, inputs, targets, batch=7)
    exact = torch.autograd.functional.hessian(f, loss.x)
    assert loss.value() == pytest.approx(float(f(loss.x)), abs=1e-12)
    return loss, exact


def test_top_eigenvalue_and_trace_are_the_whole_hessians(curved):
    loss, exact = curved
    values = torch.linalg.eigvalsh(exact)
    result = hessian(loss, steps=31, probes=31, tolerance=1e-10)
    assert result.top == pytest.approx(float(values[-1]), abs=1e-9)
    assert result.bottom <= 1e-12 and result.top_error < 1e-8
    assert (result.trace, result.trace_error) == (pytest.approx(float(exact.trace())), 0.0)
    early = hessian(loss, steps=31, probes=1)
    assert abs(early.top - float(values[-1])) <= 1e-3 * early.top, "its error bound holds"
    guessed = hessian(loss, steps=1, probes=20)
    assert guessed.trace_error > 0 and abs(guessed.trace - result.trace) < 4 * guessed.trace_error


def test_a_linear_loss_has_no_curvature():
    line = nn.Linear(2, 1, bias=False)
    loss = MeanLoss(line, torch.ones(3, 2), torch.zeros(3, 1), lambda out, _: out.squeeze(1))
    assert loss.product(torch.ones(2)).tolist() == [0.0, 0.0]


def test_a_quadratic_run_has_the_mean_curvature_in_every_row():
    run = quadratics(FedAvg(), rounds=2, measures=Hessian(every=1, tolerance=1e-9)).run()
    # the Hessian of the mean is diagonal: the clients' mean curvatures
    assert run.curve("hessian_top")[1] == pytest.approx([A.mean(0).max()] * 2)
    assert run.curve("hessian_trace")[1] == pytest.approx([A.mean(0).sum()] * 2)


def test_a_surface_of_a_quadratic_loss_is_that_quadratic():
    # f(w) = mean (x w - y)^2, so f(w + a u + b v) = mean (x (w + a u + b v) - y)^2
    line = nn.Linear(3, 1, bias=False).double()
    x = torch.randn(9, 3, **DOUBLES)
    y = torch.randn(9, 1, **DOUBLES)
    loss, w = MeanLoss(line, x, y), line.weight.detach().clone().flatten()
    u, v = directions(loss.params, seed=4)
    places, rows = loss.on_square(loss.x, u, v, 0.5, 3)
    assert places == [-0.5, 0.0, 0.5]
    for a, row in zip(places, rows, strict=True):
        for b, result in zip(places, row, strict=True):
            exact = float((x @ (w + a * u + b * v) - y.flatten()).square().mean())
            assert result == pytest.approx(exact, abs=1e-12)
    assert torch.equal(line.weight.detach().flatten(), w), "the model is as before"


def test_directions_are_scaled_filter_by_filter():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(3, 3))
    params = list(module.parameters())
    u, v = directions(params)
    filters = params[0].detach().flatten(1).norm(dim=1)
    for d in (u, v):
        torch.testing.assert_close(d[:54].view(3, 18).norm(dim=1), filters)
        assert not d[54:].any(), "a bias and a norm stay"
    assert float(u @ v) != float(u @ u)


def test_the_axes_of_a_plane_give_its_points_back():
    models = list(torch.randn(3, 7, **DOUBLES))
    middle, u, v, at = axes(models)
    gram = torch.stack([u, v]) @ torch.stack([u, v]).T
    torch.testing.assert_close(gram, torch.eye(2, dtype=torch.float64))
    for m, (a, b) in zip(models, at, strict=True):
        torch.testing.assert_close(middle + a * u + b * v, m)
    line = [torch.ones(4) * k for k in (0.0, 1.0, 4.0)]
    assert not axes(line)[2].any() and not axes([line[1]] * 3)[1].any()


def test_a_plane_of_a_quadratic_loss_is_that_quadratic():
    """One step of rate r from 0 on the squared error of x w: w_i = 2 r mean(x_i y_i)."""
    x = torch.randn(4, 5, 3, **DOUBLES)
    y = torch.randn(4, 5, 1, **DOUBLES)
    line = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(line.weight)
    experiment = Experiment(
        algorithm=FedAvg(), model=line, rounds=1, device="cpu", objective=SquaredError(),
        data=from_clients(list(zip(x, y, strict=True)), dtype=torch.float64),
        local=Local(steps=1, batch=None, lr=0.1), cohort=[[0, 2, 3]],
    )  # fmt: skip
    measure = Plane(points=3, margin=1.0, examples=100)
    result = measure.of(next(trace(experiment, 1)))
    w = 0.1 * 2 * (x[[0, 2, 3]] * y[[0, 2, 3]]).mean(1)
    f = lambda w: float((x.flatten(0, 1) @ w - y.flatten()).square().mean())
    assert result["clients"] == [0, 2, 3]
    assert result["losses"] == pytest.approx([f(one) for one in w], abs=1e-12)
    assert result["middle"] == pytest.approx(f(w.mean(0)), abs=1e-12)
    pairs = itertools.combinations(w, 2)
    assert result["distances"] == pytest.approx([float((a - b).norm()) for a, b in pairs])
    middle, u, v, _ = axes(list(w))
    farthest = float((w - w.mean(0)).norm(dim=1).max())
    assert result["places"] == pytest.approx([-2 * farthest, 0.0, 2 * farthest])
    for a, row in zip(result["places"], result["loss"], strict=True):
        for b, value in zip(result["places"], row, strict=True):
            assert value == pytest.approx(f(middle + a * u + b * v), abs=1e-12)
    columns = measure.columns(result)
    assert columns["plane_loss"] == pytest.approx(sum(result["losses"]) / 3)
    assert columns["plane_distance"] == pytest.approx(sum(result["distances"]) / 3)


def test_divergence_is_that_of_the_closed_form():
    # K steps of rate r from x end at b + (1 - r a)^K (x - b)
    experiment = quadratics(FedAvg(), cohort=[[0, 1, 2, 3], [1, 3]])
    for loop in trace(experiment, 2):
        x, cohort = loop.model().numpy(), [[0, 1, 2, 3], [1, 3]][loop.state.round % 2]
        ends = np.array([B[i] + (1 - 0.1 * A[i]) ** 5 * (x - B[i]) for i in cohort])
        result = Divergence().of(loop)
        for around, key in ((x, "before"), (ends.mean(0), "after"), (ends.mean(0), "mean")):
            assert result[key] == pytest.approx(((ends - around) ** 2).sum(1).mean(), abs=1e-12)
        assert result["model_square"] == pytest.approx((ends.mean(0) ** 2).sum())
        assert list(result["each"]) == list(map(str, cohort))


def small(**changes):
    parts = {
        "algorithm": FedAvg(), "model": lambda: mlp(64, (8,)), "rounds": 3, "cohort": 3, "seed": 2,
        "data": digits(dirichlet(0.5, clients=8)), "local": Local(epochs=1, batch=16, lr=0.1),
        "device": "cpu",
    }  # fmt: skip
    return Experiment(**(parts | changes))


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
def test_a_run_that_is_measured_has_the_same_bits(engine, tmp_path):
    plain = small(engine=engine).run()
    measures = [Hessian(every=2, examples=40, steps=3, probes=2), Divergence(every=1)]
    measures += [Cka(every=3, examples=30), Surface(every=9, examples=20, points=2)]
    run = small(engine=engine, measures=measures).run(tmp_path / "run")
    own = [{k: v for k, v in r.items() if k in plain.history[0]} for r in run.history]
    assert timeless(own) == timeless(plain.history) and weights(run.model) == weights(plain.model)
    columns = [run.curve(c)[0] for c in ("hessian_top", "divergence", "cka", "surface_rise")]
    assert columns == [[2, 3], [1, 2, 3], [3], [3]]
    wrong = lambda: run.curve("hessian_topp")
    refused(wrong, "unknown column 'hessian_topp'; did you mean 'hessian_top'", kind=ConfigError)
    assert 0 < run.curve("cka@fc1.linear")[1][0] <= 1 + 1e-12
    again = small(engine=engine).open(tmp_path / "run")
    assert Divergence().of(again)["after"] == run.curve("divergence")[1][-1]
    assert again.state.round == 3 and torch.equal(again.model(), run.state.x)


# -------------------------------------------------------------------------------------------- cka
def linear_cka(one, other):
    return float((gram(one) * gram(other)).sum())


def test_linear_cka_is_the_formula_and_knows_no_rotation():
    x = torch.randn(12, 5, **DOUBLES)
    y = torch.randn(12, 3, **DOUBLES)
    a, b = x - x.mean(0), y - y.mean(0)
    exact = (b.T @ a).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
    assert linear_cka(x, y) == pytest.approx(float(exact), abs=1e-12)
    turn = torch.linalg.qr(torch.randn(5, 5, **DOUBLES)).Q
    assert linear_cka(x, x) == pytest.approx(1.0, abs=1e-12)
    assert linear_cka(x, 3 * x @ turn + 1) == pytest.approx(1.0, abs=1e-12)
    assert linear_cka(x @ turn, y) == pytest.approx(linear_cka(x, y), abs=1e-12)


def test_cka_of_a_run_is_the_mean_over_the_pairs_of_local_models():
    loop = list(trace(small(), 1))[-1]
    result = Cka(examples=25, on="train", layers=["fc1.linear", "head"]).of(loop)
    local, inputs = local_models(loop), loop.fed.data.inputs
    order = torch.randperm(len(inputs), generator=generator(0, "measure"))[:25].sort().values
    pairs = []
    for i, j in itertools.combinations(local.models, 2):
        both = []
        for k in (i, j):
            local.net.bind(local.models[k])
            both.append(local.net.module.fc1.linear(inputs[order].flatten(1)))
        pairs.append(linear_cka(*both))
    assert result["layers"]["fc1.linear"] == pytest.approx(np.mean(pairs), abs=1e-9)
    assert list(result["layers"]) == ["fc1.linear", "head"] and result["clients"] == 3


def test_a_layer_that_is_used_twice_and_one_that_gives_several_outputs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.row = nn.Linear(2, 2), nn.GRU(2, 3, batch_first=True)

        def forward(self, inputs):
            return self.row(self.own(self.own(inputs))[:, None])[0][:, 0]

    net = Net(Twice())
    assert layers_of(net.module) == ["own", "row"]
    batches = list(torch.randn(6, 2, generator=DRAW).split(2))
    result = activations(net, net.init(), net.init_buffers(), batches, ["own", "row"])
    once = net.module.own(torch.cat(batches))
    both = torch.cat([once, net.module.own(once)], dim=1).detach()
    both = both.double() - both.double().mean(0)
    gram = both @ both.T
    torch.testing.assert_close(result["own"], gram / gram.norm(), rtol=0, atol=1e-6)
    assert result["row"].shape == (6, 6)


class Own:
    """A measure of a user's own, whose column is taken."""

    every = 1

    def __call__(self, loop):
        return {"round": 0.0}


FROZEN = nn.Linear(2, 1).requires_grad_(False)


def started(**changes):
    return next(trace(small(**changes), 0))


def untested():
    sites = [(torch.ones(4, 2), torch.zeros(4, 1))] * 3
    return started(data=from_clients(sites), model=lambda: nn.Sequential(nn.Linear(2, 1)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Cka().of(next(trace(quadratics(FedAvg()), 0))), "Variables has no named layers"),
        (lambda: Cka().of(started(cohort=1)), "cohort has one client"),
        (lambda: layers_of(mlp(4), ["haed"]), "no layer is called 'haed'; did you mean 'head'"),
        (lambda: Cka().of(untested()), "no test set"),
        (lambda: Hessian(every=0), "every must be"),
        (lambda: small(measures=[len]), "measures must be measures of a run"),
        (lambda: small(measures=Own(), rounds=1).run(), "a round has a column 'round' already"),
        (lambda: MeanLoss(FROZEN, torch.ones(3, 2), torch.zeros(3, 1)), "no parameter"),
    ],
)
def test_what_cannot_be_measured_is_said(call, says):
    refused(call, says, kind=ConfigError)


def test_clients_with_parts_have_no_divergence():
    parts = started(submodel=FIARSE(), capacities=[0.25, 1])
    says = "submodel 'FIARSE' clients hold parts"
    refused(lambda: Divergence().of(parts), says, kind=CompositionError)


# ------------------------------------------------------------------------------------ the command
@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured") / "a"
    changes = ("rounds=3", "cohort=4", "compress=topk:0.1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedloom.cli.printing.illustrate", lambda run: None)
        _call("run", "digits", *changes, "--out", folder, "--quiet")
    return folder


def _call(*words, code=0):
    result = CliRunner().invoke(cli, [str(w) for w in words], prog_name="fedloom")
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.mark.slow
def test_the_command_writes_numbers_that_the_report_draws(run):
    before = (run / "rounds.jsonl").read_bytes()
    for name, *settings in (
        ("hessian", "examples=50", "probes=2", "steps=3"),
        ("surface", "examples=20", "points=3"),
        ("plane", "examples=20", "points=3"),
        ("divergence",),
        ("cka", "examples=20", 'layers=["fc1*", "head"]'),
    ):
        assert f"{name}.json" in _call("paper", "measure", run, name, *settings)
    result = {p.stem: json.loads(p.read_text()) for p in (run / "measures").iterdir()}
    assert result["hessian"]["round"] == 3 and result["hessian"]["settings"]["probes"] == 2
    assert (run / "rounds.jsonl").read_bytes() == before
    groups = group_runs([load_run(run)])
    drawn = measure_pictures(groups)
    assert [p.name for p in drawn] == [f"measures-{n}" for n in ("residual", "surface", "plane")]
    assert all(p.png[1:4] == b"PNG" and p.alt for p in drawn)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["hesian"], 2, "unknown measure 'hesian'; did you mean 'hessian'?"),
        (["hessian", "probe=3"], 2, "measure 'hessian' has no key 'probe'; did you mean 'probes'?"),
        (["hessian", "probes=none"], 2, "probes must be a whole number"),
        (["hessian", "probes=0"], 2, "probes must be"),
        (["surface", "span=-1"], 2, "span must be"),
    ],
)
def test_words_that_are_no_measure_are_said(run, words, code, says):
    assert says in _call("paper", "measure", run, *words, code=code)


def test_folders_that_cannot_be_measured_are_said(run, tmp_path):
    assert "config.toml" in _call("paper", "measure", tmp_path, "hessian", code=1)
    small(rounds=1).run(tmp_path / "python")
    text = _call("paper", "measure", tmp_path / "python", "divergence", code=2)
    assert "was started from Python" in text and "Divergence().of(Experiment(...).open(" in text
    shutil.copytree(run, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "checkpoints")
    assert "gone" in _call("paper", "measure", tmp_path / "bare", "hessian", code=1)
