"""The places of a federation in this process: its folder, its sites' files, and all nodes."""

from __future__ import annotations

import types

import numpy as np
import torch
from click.testing import CliRunner

from fedloom.cli.__main__ import cli
from fedloom.config import resolve
from fedloom.report.runs import read_rows
from fedloom_flower.clients import Clients, Entry
from fedloom_flower.folder import Folder, deployment_of
from fedloom_flower.message import ANSWER, ASK, Ask, decode, encode
from fedloom_flower.new import write_agreement, write_folder
from fedloom_flower.server import serve
from fedloom_flower.site_data import agreement_on
from fedloom_flower.sites import ClientSite, must_join

KEY = "ecdsa-sha2-nistp384 "
EVERY = "checkpoint.every_rounds=1"
PRIVATE = ["aggregation=dp", "sampling=poisson", "cohort=0.7", "weighting=uniform"]
SECURE = ["aggregation=integer_ring", "aggregation.secure=true", EVERY]
SMALL = ["data.clients=3", "cohort=3", "rounds=2", "model.hidden=[8]", "local.epochs=1"]
LOGISTIC = ["model=logistic", "model.inputs=3", "model.classes=3", "local.epochs=1"]


WARDS_TOML = """
name = "wards"
rounds = 2
cohort = 3
algorithm = "fedavg"
model = {name = "mlp", inputs = 1, hidden = [4], classes = 2}
local = {epochs = 1, batch = 8, lr = 0.1}
[data]
name = "table"
target = "outcome"
partition = "natural"
"""
LOGISTIC += ["cohort=3", "local.batch=8"]
SIZES = (480, 479, 479)  # of digits at three clients
said_by = lambda place, ask, parts=None: decode(ANSWER, place.answer(encode(ask, parts or {})))[0]
rows_of = lambda fed, name="clients.jsonl": read_rows(fed.run / name)


def folder(path, config, examples=(None,) * 3, **settings):
    """A federation's folder with keys that nobody has."""
    fed = Folder(path / "fed")
    names = ["north", "", "south", *[""] * len(examples)]
    entries = [Entry(key=f"{KEY}AAA{i}", examples=n, name=names[i]) for i, n in enumerate(examples)]
    fed.certificate("ca").parent.mkdir(parents=True)
    fed.certificate("ca").write_text("none")
    deployment = deployment_of({"run": "r", "startup_timeout": 0.0, **settings}, "test")
    clients = Clients(client=entries)
    write_folder(fed, config, deployment, clients)
    if not must_join(deployment, clients):
        agreement = agreement_on(config.data()).model_copy(update={"examples": [*examples]})
        write_agreement(fed, agreement)
    return fed


def digits(path, *changes, **settings):
    """A federation whose server has all data, so that no site needs to join."""
    config = resolve("digits", [*SMALL, *changes])
    return folder(path, config, config.data().sizes.tolist(), **settings)


class Here:
    """All places in this process. off: clients that are not there; before(here, ask): called with
    the header of an exchange's first message; awry(i, raw): what becomes of an answer. asked: what
    clients who were there were asked: what, round, client.
    """

    def __init__(
        self, fed, files=(None,) * 3, off=(), before=lambda here, ask: None, awry=lambda i, raw: raw
    ):
        self.places = {i: ClientSite(fed.node(i), file) for i, file in enumerate(files)}
        self.fed, self.off, self.before, self.awry, self.asked = fed, set(off), before, awry, []

    def present(self):
        return dict.fromkeys(self.places.keys() - self.off, 0)

    def __call__(self, messages, seconds, enough):
        heads = {i: decode(ASK, raw)[0] for i, raw in messages.items()}
        self.before(self, next(iter(heads.values())))
        present = [i for i in messages if i not in self.off]
        self.asked += [(heads[i].what, heads[i].round, i) for i in present]
        answers = {i: self.places[i].answer(messages[i]) for i in present[:enough]}
        return {i: self.awry(i, raw) for i, raw in answers.items()}

    def serve(self):
        """The run of these places -> its result."""
        return serve(self.fed, lambda clients: self)

    def data(self, i):
        return self.places[i]._node.fed.data


def asking(what, round=-1, client=0, run="r", **more):
    return Ask(run=run, what=what, round=round, client=client, taken=-1, kept=0, **more)


def simulated(fed, *changes):
    """The simulation of a federation whose data are at the server, too."""
    return resolve(fed.run_file, ["engine=serial", *changes]).experiment().run()


def table(path, rows, label=lambda y: y, seed=0):
    """A CSV of three features, far from a mean of 0, and three classes."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 3)) * [1, 10, 100] + [5, 0, -300]
    y = (x[:, 0] > 5).astype(int) + (x[:, 1] > 0)
    lines = [",".join(map(str, [*row, label(int(c))])) for row, c in zip(x, y, strict=True)]
    path.write_text("\n".join(["a,b,c,label", *lines]) + "\n")
    return path


def site_file(path, train, test=None):
    test_line = "" if test is None else f'\ntest = "{test}"'
    path.write_text(f'[data]\nname = "table"\npath = "{train}"{test_line}\n')
    return path


def site_files(path, rows=(9, 9, 9), tests=(), label=lambda y: y):
    """Each site's file, of tables with so many rows for training and for tests, 0: none."""
    files = []
    for i, count in enumerate(rows):
        train, test = table(path / f"{i}.csv", count, label, seed=i), None
        if any(tests[i : i + 1]):
            test = table(path / f"{i}t.csv", tests[i], label, seed=10 + i)
        files.append(site_file(path / f"{i}.toml", train, test))
    return files


def predicted(model, data):
    with torch.no_grad():
        return model.eval()(data.test_inputs).softmax(1), data.test_targets


def everybody(exchange, agreement):
    """All clients take part, as a server's Membership says it."""
    return types.SimpleNamespace(
        exchange=exchange, agreement=agreement, absent=frozenset(), columns=dict, look=lambda: None
    )


def typed(*words, code=0, **more):
    done = CliRunner().invoke(cli, list(map(str, words)), **more)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def followed(fed, monkeypatch):
    """What `fedloom deploy run` says of a run that has ended."""
    done = {"run-id": "7", "status": "finished:completed"}
    monkeypatch.setattr("fedloom_flower.programs.begin", lambda fed: "7")
    monkeypatch.setattr("fedloom_flower.programs.runs", lambda fed: [done])
    return typed("deploy", "run", fed.path)
