"""The four hospitals that come with fedloom, and TCGA's survival times, as FLamby prepares them."""

import dataclasses
import hashlib

import pytest
import torch
from published import write

pytest.importorskip("pandas", reason="the extra tables is not installed")
pytest.importorskip("sklearn", reason="the extra tables is not installed")

from fedloom.config import resolve
from fedloom.data import heart, iid, tcga
from fedloom.data.published.download import CATALOGUE
from fedloom.data.published.heart import REGIONS
from support.refusals import refused

# flamby.md, section 13: the first row of cleveland, scaled
FIRST = [0.9649730, 0.6789017, 0.7020754, -0.3198805, 2.4150801, -0.0318691, -0.6710296]
FIRST += [1.1316297, -0.3952062, -0.6397503, -0.9727289, -0.1005051, 0.9924843]


def test_hospitals_are_what_flamby_publishes():
    data = heart()
    assert data.client_names == ("cleveland", "hungarian", "switzerland", "va")
    assert data.sizes.tolist() == [199, 172, 30, 85]
    assert data.test_clients.sizes.tolist() == [104, 89, 16, 45]
    ill = [float(data.client(i)[1].double().mean()) for i in range(4)]
    assert ill == pytest.approx([0.457, 0.378, 1.0, 0.776], abs=5e-4)
    tested = [float(data.test_targets[data.test_clients.of(i)].double().mean()) for i in range(4)]
    assert tested == pytest.approx([0.462, 0.371, 0.9375, 0.778], 1e-3)
    assert torch.allclose(data.inputs[0], torch.tensor(FIRST), atol=1e-6, rtol=0)
    assert data.targets[:8].tolist() == [0, 1, 1, 0, 0, 1, 0, 1]
    assert round(float(data.test_inputs.abs().max()), 1) == 9.9
    assert data.about["dropped"] == 180 and data.class_names == ("healthy", "ill")
    result = resolve("heart", ["rounds=2", "engine=serial"]).experiment().run()
    assert 0.5 < result.last < 0.9
    assert {row["client"] for row in result.per_client()} == set(data.client_names)


def test_each_hospital_scales_by_its_own_training_rows():
    data = heart()
    for i in range(4):
        own = data.client(i)[0].double()
        assert own.mean(0).abs().max() < 1e-6
        spread = own.std(0)[own.std(0) > 0]
        assert torch.allclose(spread, torch.ones_like(spread), atol=1e-6), "n - 1"
    assert (data.client(2)[0][:, 3] == 0).all(), "cholesterol is 0 in every row of Switzerland"
    pooled = heart(per_client=False)
    assert pooled.inputs.double().mean(0).abs().max() < 1e-6
    row = pooled.raw.back(pooled.test_inputs[:1])[0]
    numbers = [56, 1, 120, 236, 0, 178, 0, 0.8]
    assert [float(cell) for cell in row[:8]] == pytest.approx(numbers, abs=1e-4)
    assert [*row[8:]] == ["2", "0"]
    mixed = heart(iid(clients=5))
    assert mixed.test_clients is None and torch.equal(mixed.test_inputs, pooled.test_inputs)


def test_survival_times_are_two_columns(tmp_path, monkeypatch):
    rows = [f"P{i},{50 + i},{i % 2},{i % 2},{100.5 * i}" for i in range(14)]
    folds = [f"P{i},x,{'test' if i > 5 else 'train'}_{i % 6}" for i in range(12)]
    texts = ["\n".join(["pid,age,race,E,T", *rows]), "\n".join(["pid,fold,fold2", *folds[::-1]])]
    files = []
    for file, text in zip(CATALOGUE["tcga"].files, texts, strict=True):
        write(tmp_path / "tcga-brca" / file.name, text)
        files.append(dataclasses.replace(file, md5=hashlib.md5(text.encode()).hexdigest()))
    entry = dataclasses.replace(CATALOGUE["tcga"], files=tuple(files))
    monkeypatch.setitem(CATALOGUE, "tcga", entry)
    data = tcga(data_dir=tmp_path)
    assert data.client_names == REGIONS and data.sizes.tolist() == [1] * 6
    assert data.inputs.tolist() == [[50 + i, i % 2] for i in range(6)], "in the order of the file"
    assert data.targets.tolist() == [[100.5 * i, i % 2] for i in range(6)]
    assert data.test_inputs[data.test_clients.of(1)].tolist() == [[57, 1]]
    none = lambda: tcga(data_dir=tmp_path / "none")
    refused(none, "brca.csv is not in ... accepted the terms of the GDC")
