"""Over TLS with keys, a site tells of its table what its people agreed to, and gets the rules."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr")
pytest.importorskip("pandas", reason="the extra tables is not installed")

from federations.live import Live
from federations.places import site_file
from fedloom.config import resolve
from fedloom.config.sources import read
from fedloom.data.published.heart import COLUMNS, heart_files
from fedloom_flower.new import make
from support.ranks import free_port

pytestmark = [pytest.mark.flower, pytest.mark.slow]
SETTINGS = f"""
name = "heart"
rounds = 1
cohort = 1.0
algorithm = "fedavg"
model = {{name = "logistic", classes = 2}}
[data]
name = "table"
names = {[*COLUMNS]}
na_values = ["?"]
target = "num > 0"
inputs = ["age", "sex", "thalach"]
missing = "median"
standardise = true
test_share = 0.2
partition = "natural"
"""


def test_sites_are_described_and_then_train(tmp_path):
    (tmp_path / "my.toml").write_text(SETTINGS)
    found = Live.__new__(Live)
    found.processes = {}
    ports = {"port": free_port(), "local_port": free_port()}
    found.fed = make(resolve(tmp_path / "my.toml"), tmp_path / "fed", 4, ports)

    def fedloom(*words):
        command = [sys.executable, "-m", "fedloom", "deploy", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    sites = [site_file(tmp_path / f"{i}.toml", file) for i, file in enumerate(heart_files())]
    try:
        found.server()
        for i, site in enumerate(sites):
            found.node(i, site=site)
            if i:
                told = fedloom("describe", found.fed.path, "--client", i, "--data", site, "--yes")
                assert told.returncode == 0, told.stderr
        found.connected(4)
        no = fedloom("describe", found.fed.path)
        assert no.returncode == 1 and "client 0 cannot be described: its people have" in no.stderr
        fedloom("describe", found.fed.path, "--client", 0, "--data", sites[0], "--yes")
        told = fedloom("describe", found.fed.path)
        assert told.returncode == 0 and "thalach: missing values as 1" in told.stdout
        rules = [read(p.run_file)["data"]["rules"] for p in (found.fed, found.fed.node(3))]
        assert rules[0] == rules[1] and len(rules[0]) == 3
        assert found.finished(found.begin()) == "finished:completed"
        assert found.rounds()[0]["answered"] == 4
    finally:
        found.close()
