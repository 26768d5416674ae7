"""The places of a federation in this process: its folder, and all nodes."""

from __future__ import annotations

import numpy as np

from fedloom_flower.clients import Clients, Entry
from fedloom_flower.folder import Folder, deployment_of
from fedloom_flower.new import write_folder
from fedloom_flower.sites import ClientSite

KEY = "ecdsa-sha2-nistp384 "
PRIVATE = ["aggregation=dp", "sampling=poisson", "cohort=0.7", "weighting=uniform"]
SMALL = ["data.clients=3", "cohort=3", "rounds=2", "model.hidden=[8]", "local.epochs=1"]


def folder(path, config, examples=(None,) * 3, classes=None, **settings):
    """A federation's folder with keys that nobody has."""
    fed = Folder(path / "fed")
    names = ["north", "", "south", *[""] * len(examples)]
    entries = [Entry(key=f"{KEY}AAA{i}", examples=n, name=names[i]) for i, n in enumerate(examples)]
    fed.certificate("ca").parent.mkdir(parents=True)
    fed.certificate("ca").write_text("none")
    deployment = deployment_of({"run": "r", "startup_timeout": 0.0, **settings}, "test")
    write_folder(fed, config, deployment, Clients(client=entries, classes=classes))
    return fed


class Here:
    """All places in this process. off: clients that are not there."""

    def __init__(self, fed, files=(None,) * 3, off=()):
        self.places = {i: ClientSite(fed.node(i), file) for i, file in enumerate(files)}
        self.off, self.requests = set(off), 0

    def present(self):
        return set(self.places) - self.off

    def __call__(self, messages, seconds, enough):
        present = [i for i in messages if i not in self.off]
        self.requests += len(present)
        return {i: self.places[i].answer(messages[i]) for i in present[:enough]}


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
