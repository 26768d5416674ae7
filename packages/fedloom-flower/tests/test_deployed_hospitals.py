"""Four hospitals, each with its own file: what a simulation of them makes of their rows, and says
of bad ones, a deployment does too.
"""

from __future__ import annotations

import json

import pytest
import torch

from federations.places import Here, folder
from fedloom.config import resolve
from fedloom.core.vector import fields
from fedloom.data import heart
from fedloom.data.published.heart import COLUMNS, INPUTS, heart_files
from fedloom.errors import DataError
from fedloom_flower.columns import with_rules
from fedloom_flower.server import serve
from fedloom_flower.sites import ClientSite, refuse_settings

pytest.importorskip("pandas", reason="the extra tables is not installed")
pytest.importorskip("sklearn", reason="the extra tables is not installed")

SETTINGS = f"""
name = "hearts"
rounds = 2
algorithm = "fedavg"
model = {{name = "logistic", inputs = 13, classes = 2}}
local = {{epochs = 1, batch = 8, lr = 0.1}}
metrics = ["accuracy", "auc"]
[data]
name = "table"
path = "PATH/*.data"
names = {[*COLUMNS]}
na_values = ["?"]
missing = "drop"
inputs = {[*INPUTS]}
columns = {{cp = "dummy", restecg = "dummy"}}
target = "num > 0"
class_names = ["healthy", "ill"]
standardise = "with_categories"
ddof = 1
per_client = true
test_share = 0.34
test_seed = 43
partition = "natural"
"""


@pytest.fixture
def hospitals(tmp_path):
    """Settings, and a site's file of each hospital."""
    sites = []
    for file in heart_files():
        (tmp_path / file.name).write_bytes(file.read_bytes())
        sites.append(tmp_path / f"{file.stem}.toml")
        sites[-1].write_text(f'[data]\nname = "table"\npath = "{tmp_path / file.name}"\n')
    (tmp_path / "my.toml").write_text(SETTINGS.replace("PATH", str(tmp_path)), encoding="utf-8")
    return resolve(tmp_path / "my.toml"), sites


def test_each_hospital_scales_its_own_rows_and_no_scale_leaves_it(tmp_path, hospitals, caplog):
    config, sites = hospitals
    made, same = with_rules(config, elsewhere=True), heart()
    refuse_settings(made)
    rules = {rule["name"]: rule for rule in made.values["data"]["rules"]}
    assert rules["cp"] == {"name": "cp", "kind": "dummy", "values": ["1", "2", "3", "4"]}
    assert rules["age"] == {"name": "age", "kind": "number"}
    fed = folder(tmp_path, made, (None,) * 4, evaluate="nodes")
    caplog.clear()
    here = Here(fed, sites)
    said = {record.getMessage() for record in caplog.records}
    ours = serve(fed, lambda roll: here)
    for i in range(4):
        own = here.places[i]._node.fed.data
        assert torch.equal(own.inputs, same.client(i)[0])
        assert torch.equal(own.test_inputs, same.test_inputs[same.test_clients.of(i)])
    caplog.clear()
    simulated = resolve(fed.run_file, ["engine=serial"]).experiment().run()
    assert all(torch.equal(v, fields(simulated.state)[k]) for k, v in fields(ours.state).items())
    assert said <= {record.getMessage() for record in caplog.records}
    assert "all training rows of client 'switzerland' (ill) are of one class" in "".join(said)
    assert "ill" in fed.agreement_file.read_text()
    told = "".join(file.read_text() for file in fed.run.glob("*.json*"))
    assert '"cells_per_client"' in told and '"sites": {}' in told
    mine = json.loads((fed.node(0).path / "preparation.json").read_text())
    assert mine == same.raw.numbers("cleveland") and len(mine["cp"]["mean"]) == 3


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("63,1,4,140,", "63,1,5,140,", "column 'cp', row 1: '5' is none of the agreed values"),
        ("63,1,4,140,", "63,1,4,a,", "column 'trestbps', row 1: 'a' is no finite number"),
        ("63,1,4,140,", "63;1,4,140,", "Expected 13 fields in line 2, saw 14; look there"),
        ("63,1,4,140,", '63,1,4,"140,5",', "column 'trestbps', row 1: '140,5' has a decimal comma"),
        (
            "63,1,4,140,",
            "1.5.1960,1,4,140,",
            "column 'age', row 1: '1.5.1960' is a date; leave the",
        ),
        (
            None,
            "63;1;4\n64;1;4,5\n",
            'semicolons; give sep = ";" (and decimal = "," if its numbers have com',
        ),
        (None, "63,1,4,\u00e9", "line 1 is not UTF-8 text; give encoding = cp1252"),
        (None, "", "is empty; it needs a header and rows below it"),
        (None, "63,1,4\n", "has 3 columns, and names has 14; name each"),
        (None, "?,1,4" + ",1" * 11 + "\n", "every row has an empty cell, most often in col"),
        (None, "63,1,4" + ",1" * 11 + "\n", "has 1 rows, too few for test_share = 0.34"),
    ],
)
def test_bad_rows_are_told_in_one_sentence_at_a_site_and_in_a_simulation(
    tmp_path, hospitals, old, new, says
):
    config, sites = hospitals
    made = with_rules(config, elsewhere=True)
    fed = folder(tmp_path, made, (None,) * 4, evaluate="nodes")
    path = tmp_path / "va.data"
    text = new if old is None else path.read_text().replace(old, new, 1)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError) as found:
        ClientSite(fed.node(3), sites[3])
    with pytest.raises(DataError) as simulated:
        made.data()
    one, other = (str(each.value).partition(f"{path}")[2] for each in (found, simulated))
    assert says in one and "\n" not in one
    assert one == other
