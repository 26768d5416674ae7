"""The places of a federation in one process: a server without data, and nodes with data files."""

from __future__ import annotations

import errno
import json
import re
import shlex
import shutil
import socket
import stat
import threading
import tomllib

import pytest
import tomli_w
import torch

from federations.places import KEY, PRIVATE, SMALL, Here, folder, site_file, table
from fedloom.aggregation import DifferentialPrivacy
from fedloom.config import from_run, resolve
from fedloom.core.vector import fields
from fedloom.errors import (
    CheckpointError,
    ClientError,
    CompositionError,
    ConfigError,
    DataError,
)
from fedloom.report import load_run
from fedloom.report.clients import attendance, names_of
from fedloom.storage.round_log import RoundLog
from fedloom_flower.check import check, other_disclosures
from fedloom_flower.clients import read_clients
from fedloom_flower.folder import check_secret, deployment_of, write_secret
from fedloom_flower.local_socket import LocalSocket, ask_node, blocks
from fedloom_flower.message import ANSWER, Ask, decode, encode
from fedloom_flower.node import Node
from fedloom_flower.privacy import system_normals, system_uniforms
from fedloom_flower.server import serve
from fedloom_flower.site_data import load_data, read_site
from fedloom_flower.sites import ClientSite


def test_a_server_without_data_learns_what_one_with_data_does(tmp_path):
    """Sizes, classes and scale are agreed; of tests only sums come back."""
    base = ["model=logistic", "model.inputs=3", "model.classes=3", "rounds=3", "cohort=3"]
    config = resolve("digits", [*base, "local.epochs=2", "local.batch=8"])
    fed = folder(tmp_path, config, evaluate="nodes", standardise=True)
    names = [["x", "y", "z"][y] for y in range(3)].__getitem__
    files = []
    for i, rows in enumerate((20, 35, 50)):
        train = table(tmp_path / f"{i}.csv", rows, names, seed=i)
        test = table(tmp_path / f"{i}t.csv", 10 + i, names, seed=10 + i) if i else None
        files.append(site_file(tmp_path / f"{i}.toml", train, test))
    here = Here(fed, files)
    result = serve(fed, lambda roll: here)
    clients = read_clients(fed.clients_file)
    joining, sums, measuring, tells = other_disclosures(fed.settings(), clients, False, 3)
    fields_of_site = "examples, tests, shape, type, targets, target_shape, columns, classes, "
    fields_of_site += "class_names, one_class"
    assert joining == ("when it joins", fields_of_site) and sums[1].startswith("sums of each")
    assert measuring[1] == "examples, loss, values, weights, bins: sums over its tests"
    assert "3 rounds of models that the server chooses tell labels of test rows" in tells[1]
    agreed = json.loads(fed.agreement_file.read_text())
    assert agreed["examples"] == [20, 35, 50] and agreed["tests"] == [0, 11, 12]
    assert agreed["class_names"] == ["x", "y", "z"] and agreed["mean"][2] == pytest.approx(
        -300, abs=40
    )

    about = json.loads((fed.run / "partition.json").read_text())["inputs"]
    assert about["kind"] == "cells" and [r["mean"] for r in about["rules"]] == agreed["mean"]

    nodes = [here.places[i]._node for i in range(3)]
    inputs = torch.cat([n.fed.data.inputs for n in nodes])
    assert inputs.double().mean(0).abs().max() < 1e-6
    assert (inputs.double().var(0, correction=0) - 1).abs().max() < 1e-5
    tests = [n.fed.data for n in nodes if n.fed.data.test_inputs is not None]
    model, right = result.model.eval(), 0
    for data in tests:
        right += int((model(data.test_inputs).argmax(1) == data.test_targets).sum())
    assert result.history[-1]["test_accuracy"] == pytest.approx(right / 23)
    assert [row["test_accuracy"] is not None for row in result.history] == [True] * 3

    # the same places again: nothing is agreed anew, and the run goes on where it was
    again = Here(fed, files)
    assert serve(fed, lambda roll: again).history == result.history and not again.requests
    assert json.loads((fed.run / "clients.jsonl").read_text().splitlines()[0])["answered"] == [
        0,
        1,
        2,
    ]


def test_files_of_a_site_are_seen_from_the_folder_of_its_file(tmp_path, monkeypatch):
    """Its rows as its parts and keys, from wherever the node is started."""
    (site := tmp_path / "site").mkdir()
    for name in ("a", "b", "test"):
        table(site / f"{name}.csv", 9)
    (site / "mine.py").write_text(
        "from fedloom.data import iid, table\n\n"
        "def ward(path):\n    return table(iid(clients=1), path=path, target='label')\n"
    )
    (elsewhere := tmp_path / "elsewhere").mkdir()
    for cwd in (site, elsewhere):
        monkeypatch.chdir(cwd)
        for given, rows in (
            ('name = "table"\npath = "a.csv"\ntest = "test.csv"', 9),
            ('name = "table"\npath = ["a.csv", "b.csv"]', 18),
            ('name = "table"\npath = "?.csv"', 18),
            (f'name = "table"\npath = "{site}/a.csv"', 9),
            ('name = "mine.py:ward"\npath = "b.csv"', 9),
        ):
            (file := site / "mine.toml").write_text(f"[data]\n{given}\n")
            found = load_data(read_site(file)[1], file, {"target": "label", "name": "table"})
            assert len(found.inputs) == rows
            assert (found.test_inputs is not None) == ("test =" in given)


def test_nodes_measure_every_metric_on_their_own_rows(tmp_path):
    """A metric of a whole set too, whose common value is the mean over the sites' rows."""
    pytest.importorskip("torchmetrics")
    base = ["model=logistic", "model.inputs=3", "model.classes=3", "rounds=2", "cohort=4"]
    config = resolve("digits", [*base, "local.epochs=2", "local.batch=8", "metrics=auc,accuracy"])
    fed = folder(tmp_path, config, (None,) * 4, evaluate="nodes", standardise=True)
    files = []
    for i, rows in enumerate((20, 35, 50, 40)):
        train = table(tmp_path / f"{i}.csv", rows, seed=i)
        test = table(tmp_path / f"{i}t.csv", 30 + i, seed=10 + i) if i else None
        if i == 3:  # the first of its rows, all of one class
            lines = test.read_text().splitlines()
            test.write_text("\n".join([lines[0], *(x for x in lines if x[-2:] == ",1")]) + "\n")
        files.append(site_file(tmp_path / f"{i}.toml", train, test))
    here = Here(fed, files)
    result = serve(fed, lambda roll: here)
    told = json.loads((fed.run / "clients.json").read_text())
    count = [0, 31, 32, len(here.places[3]._node.fed.data.test_targets)]
    for i in (1, 2, 3):
        data = here.places[i]._node.fed.data
        with torch.no_grad():
            z, y = result.model.eval()(data.test_inputs), data.test_targets
        right = (z.argmax(1) == y).double().mean()
        assert told["metrics"]["accuracy"][i] == pytest.approx(float(right))
        p, each = z.softmax(1), []
        for c in set(y.tolist()) if i < 3 else ():
            a, b = p[y == c, c], p[y != c, c]
            each.append(float((a[:, None] > b).double().mean()))
        if each:
            assert told["values"][i] == pytest.approx(sum(each) / len(each), abs=1e-6)
    assert told["basis"] == "own test rows, at the nodes"
    assert told["why_none"]["auc"] == {
        "no answer, or no test rows": [0],
        "it is not defined on its test rows, as an AUC of one class is not": [3],
    }
    row, auc = result.history[-1], told["values"]
    assert row["test_auc"] == pytest.approx((31 * auc[1] + 32 * auc[2]) / 63)
    assert row["client_auc_worst"] == min(auc[1], auc[2]) == result.summary["client_auc_worst"]
    hits = sum(n * (v or 0) for n, v in zip(count, told["metrics"]["accuracy"], strict=True))
    assert row["test_accuracy"] == pytest.approx(hits / sum(count))
    again = Here(fed, files)  # nothing is asked, and nothing is lost
    assert serve(fed, lambda roll: again).clients == result.clients and not again.requests
    assert json.loads((fed.run / "clients.json").read_text()) == told


def test_a_server_with_tests_of_its_own_equals_the_simulation(tmp_path):
    config = resolve("digits", [*SMALL, "algorithm=scaffold"])
    sizes = [int(n) for n in config.data().sizes]
    fed = folder(tmp_path, config, sizes, classes=10)
    ours = serve(fed, lambda roll: Here(fed))
    assert 'label = "SCAFFOLD, deployed"' in (fed.run / "config.toml").read_text()
    alone = resolve(fed.run_file, ["engine=serial"]).experiment().run()
    assert all(torch.equal(v, fields(alone.state)[k]) for k, v in fields(ours.state).items())
    rows = [
        [{k: v for k, v in r.items() if k != "seconds"} for r in x.history] for x in (ours, alone)
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("examples", [None, 30])
def test_a_node_with_other_settings_takes_no_part(tmp_path, examples):
    """Its updates would be wrong, and nothing else would say so."""
    config = resolve("digits", [*SMALL, "data.partition=iid"])
    sizes = [int(n) if examples else None for n in config.data().sizes]
    fed = folder(tmp_path, config, sizes, classes=10 if examples else None)
    here = Here(fed)
    for node, (old, new) in enumerate([("rounds = 2", "rounds = 5"), ("lr = 0.1", "lr = 0.2")]):
        file = fed.node(node).run_file
        text = file.read_text()
        assert fed.node(node).path != fed.path and old in text
        file.write_text(text.replace(old, new))
        here.places[node] = ClientSite(fed.node(node))
    if not examples:
        with pytest.raises(
            DataError, match=r"client 1 cannot join: .* run\.toml has other settings"
        ):
            serve(fed, lambda roll: here)
        return
    serve(fed, lambda roll: here)
    found = json.loads((fed.run / "clients.jsonl").read_text().splitlines()[0])
    assert found["answered"] == [0, 2]
    assert "take the same file and version, and start the node again" in found["refused"]["1"]


def test_a_servers_own_tests_have_the_agreed_scale(tmp_path):
    train, test = (table(tmp_path / f"{name}.csv", 30, seed=7) for name in ("own", "tests"))
    data = [f"data.path={train}", f"data.test={test}", "data=table", "data.partition=iid"]
    parts = ["model=logistic", "model.inputs=3", "model.classes=3", "data.clients=3"]
    config = resolve("digits", [*data, *parts, "rounds=2", "cohort=3", "local.batch=8"])
    fed = folder(tmp_path, config, standardise=True)
    files = [
        site_file(tmp_path / f"{i}.toml", table(tmp_path / f"{i}.csv", 20 + i, seed=i))
        for i in range(3)
    ]
    result = serve(fed, lambda roll: Here(fed, files))
    agreed, tests = json.loads(fed.agreement_file.read_text()), config.data()
    scaled = (tests.test_inputs.double() - torch.tensor(agreed["mean"])) / torch.tensor(
        agreed["deviation"]
    )
    right = result.model.eval()(scaled.float()).argmax(1) == tests.test_targets
    assert result.last == pytest.approx(float(right.double().mean()))
    about = json.loads((fed.run / "partition.json").read_text())["inputs"]
    assert about["columns"] == ["a", "b", "c"] and about["rules"][2]["mean"] == agreed["mean"][2]


@pytest.mark.slow
def test_of_spare_clients_the_first_by_number_count_and_too_few_change_nothing(tmp_path):
    config = resolve("digits", [*SMALL, "cohort=2", "rounds=3"])
    sizes = [int(n) for n in config.data().sizes]
    fed = folder(
        tmp_path, config, sizes, classes=10, over_selection=0.5, min_updates=2, max_failed_rounds=2
    )
    off = Here(fed, off=[0])
    result = serve(fed, lambda roll: off)
    rows = [json.loads(line) for line in (fed.run / "clients.jsonl").read_text().splitlines()]
    assert [row["answered"] for row in rows] == [[1, 2]] * 3 and rows[0]["asked"] == [0, 1, 2]
    assert [row["answered"] for row in result.history] == [2] * 3

    other = folder(
        tmp_path / "other", config, sizes, classes=10, min_updates=2, max_failed_rounds=2
    )
    with pytest.raises(ClientError, match="and so it was in 2 rounds in a row"):
        serve(other, lambda roll: Here(other, off=[0, 1]))
    assert len((other.run / "rounds.jsonl").read_text().splitlines()) == 1  # it can be resumed
    (row,) = [json.loads(line) for line in (other.run / "clients.jsonl").read_text().splitlines()]
    tried = [*row["redrawn"], row]
    assert [each["unused"] for each in tried] == [[i for i in e["asked"] if i == 2] for e in tried]
    assert len(tried) == 3 and not row["answered"]
    settings = tomllib.loads(other.settings_file.read_text())
    other.settings_file.write_text(tomli_w.dumps({**settings, "min_updates": 3}))
    with pytest.raises(ConfigError, match="min_updates = 3 is more than the 2 clients of a round"):
        serve(other, lambda roll: Here(other))
    other.settings_file.write_text(tomli_w.dumps(settings))
    found = attendance(other.run, names_of(load_run(other.run)))
    assert found is not None and found.heads == [
        "client",
        "asked",
        "counted",
        "no answer",
        *found.heads[4:],
    ]
    assert [line[0] for line in found.lines] == ["0 north", "1 client 1", "2 south"]
    assert sum(int(line[1]) for line in found.lines) == 6
    assert len(serve(other, lambda roll: Here(other)).history) == 3


def test_noise_and_cohorts_of_a_private_run_cannot_be_made_again(tmp_path):
    """Of two runs with the same seed; the simulation's can, which the two halves equal."""
    pytest.importorskip("dp_accounting")
    changes = [*SMALL, *PRIVATE, "aggregation.noise=0.01", "local.epochs=1"]
    config = resolve("digits", [*changes, "checkpoint.every_rounds=1"])
    sizes = [int(n) for n in config.data().sizes]
    made = [folder(tmp_path / str(k), config, sizes, classes=10) for k in range(2)]
    found = check(made[0])
    assert found.difference == 0 and found.bills and not found.refused
    ends = [serve(fed, lambda roll, fed=fed: Here(fed)) for fed in made]
    models = [fields(end.state)["x"] for end in ends]
    assert not torch.equal(*models)
    assert all(row["epsilon"] > 0 and row["train_loss"] is None for row in ends[0].history)
    secret = [fed.secret("cohorts").read_text() for fed in made]
    assert secret[0] != secret[1] and all(len(bytes.fromhex(each)) == 32 for each in secret)
    assert all(secret[0] not in p.read_text(errors="replace") for p in made[0].run.glob("*.*"))

    normal = system_normals(torch.Size([200_001]), torch.float64)
    assert abs(float(normal.mean())) < 0.01 and abs(float(normal.std()) - 1) < 0.01
    assert abs(float((normal**4).mean()) - 3) < 0.1
    for other, said in (
        ([*changes, "checkpoint.every_rounds=2"], "needs checkpoint.every_rounds = 1"),
        ([*changes, "sampling=bernoulli"], "sampling = poisson"),
    ):
        fed = folder(
            tmp_path / said[:9].replace(" ", ""), resolve("digits", other), sizes, classes=10
        )
        with pytest.raises((CompositionError, ConfigError), match=said):
            serve(fed, lambda roll, fed=fed: Here(fed))


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_clip_that_follows_the_updates_is_told(tmp_path):
    changes = [*SMALL, *PRIVATE, "checkpoint.every_rounds=1", "aggregation.quantile=0.5"]
    config = resolve("digits", [*changes, "algorithm=scaffold", "aggregation.count_noise=5"])
    sizes = [int(n) for n in config.data().sizes]
    found = check(folder(tmp_path, config, sizes, classes=10))
    assert found.difference == 0 and found.bills and not found.refused


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_run_s_files_do_not_tell_its_noise(tmp_path):
    """The seed in them makes a simulation's noise again, and has nothing to do with this one: all
    take part, so that the models differ by noise alone.
    """
    changes = [*SMALL, *PRIVATE, "cohort=1.0", "rounds=1", "checkpoint.every_rounds=1"]
    config = resolve("digits", [*changes, "aggregation.clip=0.3"])
    fed = folder(tmp_path, config, [int(n) for n in config.data().sizes], classes=10)
    ours = serve(fed, lambda roll: Here(fed)).state
    written = resolve(fed.run / "config.toml", ["engine=serial", "aggregation.noise=1e-9"])
    here = fields(ours)["x"] - fields(written.experiment().run().state)["x"]
    assert float(here.std()) == pytest.approx(1.0 * 0.3 / 3, rel=0.15)
    there = DifferentialPrivacy().normals(written.values["seed"], 0)(here.shape, here.dtype)
    assert abs(float(torch.corrcoef(torch.stack([here, there]))[0, 1])) < 5 / len(here) ** 0.5


def test_a_federations_run_names_the_command_that_goes_on_with_it(tmp_path, monkeypatch):
    config = resolve("digits", [*SMALL, "checkpoint.every_rounds=1"])
    fed = folder(tmp_path, config, [int(n) for n in config.data().sizes], classes=10)
    how = f"`fedloom deploy resume {shlex.quote(str(fed.path))}`"
    with monkeypatch.context() as full:

        def refused(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(RoundLog, "append", refused)
        with pytest.raises(CheckpointError, match=re.escape(f"then {how}")):
            serve(fed, lambda roll: Here(fed))
    serve(fed, lambda roll: Here(fed))
    with pytest.raises(CheckpointError, match=re.escape(f"a federation's, which {how} goes on")):
        from_run(fed.run).experiment().resume(fed.run)


def test_sites_that_do_not_fit_are_named(tmp_path):
    config = resolve("digits", ["model=logistic", "model.inputs=3", "model.classes=3", "cohort=3"])
    files = [
        site_file(tmp_path / f"{i}.toml", table(tmp_path / f"{i}.csv", 9, seed=i)) for i in range(3)
    ]
    fed = folder(tmp_path, config, (None, 8, None), evaluate="nodes", standardise=True)
    with pytest.raises(DataError, match="client 2 has not joined within 60 s; start its node"):
        serve(fed, lambda roll: Here(fed, files, off=[2]))
    with pytest.raises(
        DataError, match=r"client 1 says that it has 9 training examples, and clients"
    ):
        serve(fed, lambda roll: Here(fed, files))
    head, rest = (tmp_path / "2.csv").read_text().split("\n", 1)
    lines = [head.replace("c,", ""), *[",".join(r.split(",")[1:]) for r in rest.split()]]
    (tmp_path / "2.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"client 2's data have shape = \[2\], client 0's \[3\]"):
        serve(fed, lambda roll: Here(fed, files))
    ask = Ask(run="r", what="round", round=0, client=0, taken=-1, kept=0)
    early = Here(fed, files).places[0].answer(encode(ask, {}))
    assert decode(ANSWER, early)[0].why == "this node has not joined yet; begin the run again"
    with pytest.raises(ConfigError, match="unknown key 'date'; a site's file has the table"):
        (tmp_path / "0.toml").write_text("[date]\n")
        ClientSite(fed.node(0), tmp_path / "0.toml")
    with pytest.raises(CompositionError, match=r"evaluate.validation = 0.1 cannot be deployed"):
        ClientSite(folder(tmp_path / "v", resolve("digits", ["evaluate.validation=0.1"])).node(0))


def test_settings_and_rolls_are_refused_in_one_line(tmp_path):
    for given, said in (
        ({"run": "a b"}, "run must be a name of at most 64 letters"),
        ({"run": "r", "adress": "x"}, "has no key 'adress'; did you mean 'address'?"),
        ({"run": "r", "deadline": 0.0}, "deadline must be in"),
        ({"run": "r", "evaluate": "me"}, "evaluate must be"),
        ({"run": "r", "port": 9093}, "port and local_port must be two numbers"),
        ({"run": "r", "address": "a/b"}, "address must be a host's name or number"),
    ):
        with pytest.raises(ConfigError, match=said) as found:
            deployment_of(given, "file 'federation.toml'")
        assert "\n" not in str(found.value)
    path = tmp_path / "clients.toml"
    for text, said in (
        ("", "client"),
        ('[[client]]\nkey = "ssh-rsa AA"', "client.0.key"),
        (f'[[client]]\nkey = "{KEY}A"\n[[client]]\nkey = "{KEY}A"', "0 and 1 have the same key"),
        (f'[[client]]\nkey = "{KEY}A"\nexamples = 0', "client.0.examples"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said) as found:
            read_clients(path)
        assert "\n" not in str(found.value)
    path.write_text(f'[[client]]\nkey = "{KEY}A/+= who@where else"')
    assert read_clients(path).client[0].key == f"{KEY}A/+="
    secret = tmp_path / "secret" / "node"
    write_secret(secret, b"key")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    check_secret(secret)
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match=r"can be read by others \(mode 644\); chmod 600"):
        check_secret(secret)


def test_a_local_socket_hands_on_any_bytes(tmp_path):
    listening = LocalSocket(tmp_path / "socket", lambda raw: raw[::-1])
    thread = threading.Thread(target=listening.serve)
    thread.start()
    assert stat.S_IMODE(listening.path.stat().st_mode) == 0o600
    for raw in (b"", b"abc", bytes(3_000_000)):
        assert ask_node(listening.path, raw) == raw[::-1]
    listening.close()
    thread.join(5)
    assert not thread.is_alive() and not listening.path.exists()
    for raw in (b"", b"x" * 11, b"FEDLOOM2\xff\xff\xff\xff{}", b"FEDLOOM2\x02\0\0\0{}"):
        assert b"".join(blocks(raw)) == raw


def test_a_port_that_another_program_has_is_named() -> None:
    from fedloom_flower.programs import check_free

    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        place.listen()
        port = place.getsockname()[1]
        with pytest.raises(ConfigError, match=f"federation.port = {port} cannot be had: Address"):
            check_free("port", port)
    check_free("port", port)


def test_a_server_that_is_slow_is_not_told_to_be_started(tmp_path, monkeypatch) -> None:
    from fedloom_flower import programs
    from fedloom_flower.folder import Folder

    def away(*_):
        raise programs.AwayError("start it")

    def broken(*_):
        raise programs.FlowerError("flwr supernode failed")

    monkeypatch.setattr(programs, "_START", 0)
    for answer, words in ((away, r"was started and does not .*server\.log"), (broken, "failed")):
        monkeypatch.setattr(programs, "share_keys", answer)
        with pytest.raises(programs.FlowerError, match=words):
            programs.register(Folder(tmp_path), lambda: None)


EXAMPLES = ["local.batch=160", "local.dp.noise=2", "local.dp.clip=0.5", "local.dp.delta=1e-3"]


@pytest.mark.usefixtures("accounts_at_hand")
def test_private_examples_of_a_node_cannot_be_made_again(tmp_path):
    """Of two runs with the same seed; a rehearsal's can, which the two halves equal. No loss leaves
    a node, and its own account counts what it has computed.
    """
    config = resolve("digits", [*SMALL, *EXAMPLES])
    sizes = [int(n) for n in config.data().sizes]
    made = [folder(tmp_path / str(k), config, sizes, classes=10) for k in range(2)]
    found = check(made[0])
    assert found.difference == 0 and found.bills and not found.refused
    assert "loss" not in found.header_fields
    ends = [serve(fed, lambda roll, fed=fed: Here(fed)) for fed in made]
    assert not torch.equal(*[fields(end.state)["x"] for end in ends])
    rows = ends[0].history
    assert all(row["train_loss"] is None for row in rows)
    assert [row["example_epsilon"] for row in rows] == [1.5, 3.0]
    for i in range(3):
        counted = json.loads((made[0].node(i).path / "states/examples.json").read_text())
        assert counted["local.dp"]["rounds"] == 2

    uniform = system_uniforms(100_001)
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    assert abs(float((uniform < 0.1).mean()) - 0.1) < 0.005
    with pytest.raises(CompositionError, match="standardise = true would tell sums"):
        ClientSite(folder(tmp_path / "told", config, sizes, classes=10, standardise=True).node(0))
    loop = config.experiment().build()
    with pytest.raises(CompositionError, match=r"local\.dp: who knows the seed"):
        Node(loop.plan, loop.fed, loop.net, 0, tmp_path / "node")


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_node_sends_nothing_beyond_its_budget(tmp_path):
    """Whatever the server counts: here it begins the same run again, in a new folder."""
    config = resolve("digits", [*SMALL, *EXAMPLES, "local.dp.max_epsilon=4"])
    sizes = [int(n) for n in config.data().sizes]
    fed = folder(tmp_path, config, sizes, classes=10)
    here = Here(fed)
    assert [row["answered"] for row in serve(fed, lambda roll: here).history] == [3, 3]
    shutil.rmtree(fed.run)
    file = fed.node(0).path / "states/examples.json"
    file.write_text("{")  # damaged
    (fed.node(1).path / "states/examples.json").unlink()  # a run before
    assert [row["answered"] for row in serve(fed, lambda roll: here).history] == [1, 1]
    assert file.read_text() == "{"


def test_a_node_leaves_the_target_to_the_server(tmp_path, caplog):
    fed = folder(
        tmp_path,
        resolve("digits", ["evaluate.target=0.95", "data.partition.clients=3"]),
        (480, 479, 479),
        10,
    )
    ClientSite(fed.node(0))
    assert "evaluate.target" not in caplog.text
