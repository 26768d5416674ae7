"""An export reads and resizes picture files as its run did."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.config import from_run

Image = pytest.importorskip("PIL.Image", reason="the extra images is not installed")

SIZES = ((12, 9), (20, 16))  # of the files, width and height; the model takes 8 x 8
SCRIPT = "a/export/predict.py"


def picture(file, mode, size, seed):
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file)


def exported(fedloom, mode, size, sizes=SIZES):
    """Train on pictures of two clients, two classes and these sizes, and export the model."""
    for seed in range(16):
        place = Path("sites", "ab"[seed % 2], ("cat", "dog")[seed // 2 % 2], f"{seed}.png")
        picture(place, mode, sizes[seed // 4 % len(sizes)], seed)
    words = ["data=folders", "data.path=sites", *([f"data.size={size}"] if size else [])]
    words += ["data.clients=2", "data.partition=natural", "model=mlp", "model.classes=2"]
    words += [f"model.inputs={64 if mode == 'L' else 192}", "model.hidden=[4]", "cohort=2"]
    words += ["rounds=1", "local.epochs=1", "local.batch=4"]
    fedloom("run", *words, "--out", "a", "--quiet")
    fedloom("export", "a")


def by_hand(file):
    """The model's input of a picture file: bicubic to 8 x 8, whole numbers, then from -1 to 1."""
    with Image.open(file) as opened:
        small = opened.resize((8, 8), Image.Resampling.BICUBIC)
        pixels = np.asarray(small, dtype=np.float32).reshape(8, 8, -1).transpose(2, 0, 1)
    return torch.from_numpy((pixels / 255 - 0.5) / 0.5)[None]


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_pictures_of_any_size_are_resized_as_in_training(mode, fedloom):
    exported(fedloom, mode, 8)
    script, data = runpy.run_path(SCRIPT), from_run("a").data()
    stored = {tuple(row.flatten().tolist()) for row in data.ready(data.inputs)}
    for number, size in enumerate((*SIZES, (5, 30))):
        picture(new := f"{number}.png", mode, size, 90 + number)
        assert torch.allclose(script["prepare"](script["read"](new)), by_hand(new), atol=1e-6)
    for file in sorted(Path("sites").rglob("*.png")):  # bit for bit what the model was trained on
        row = script["prepare"](script["read"](str(file)))
        assert tuple(row.flatten().tolist()) in stored


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_kind_of_picture_is_read_as_training_reads_it(mode, tmp_path):
    from fedloom.cli.exported import picture as read
    from fedloom.data.pictures import open_picture

    picture(file := tmp_path / "a.png", mode, SIZES[1], 3)
    wanted = open_picture(file, (8, 8), resize=True, grey=None)
    how = {"kind": "pixels", "scale": 255, "shape": [len(wanted), 8, 8], "resized": True}
    assert np.array_equal(read(str(file), how), wanted[None])


def test_the_command_line_scores_a_picture_or_says_in_a_line_why_not(fedloom, check, monkeypatch):
    exported(fedloom, "L", 8)
    picture("grey.png", "L", SIZES[1], 90)
    picture("red.png", "RGB", SIZES[1], 91)
    Image.fromarray(np.full((8, 8), 9000, np.uint16)).save("deep.png")
    Path("half.png").write_bytes(Path("grey.png").read_bytes()[:60])
    Path("none.jpg").write_bytes(b"no picture")
    code, said = check(SCRIPT, "grey.png")
    assert code == 0 and said.splitlines()[0] == "row,probability_cat,probability_dog,class"
    assert len(said.splitlines()) == 2
    for file, why in (
        ("red.png", "a sample has the shape (1, 8, 8), got (3, 8, 8)"),
        ("deep.png", "it has more than 8 bits a pixel"),
        ("half.png", "image file is truncated"),
        ("none.jpg", "cannot identify image file"),
        ("away.png", "No such file or directory"),
    ):
        code, said = check(SCRIPT, file)
        assert code == 2 and f"error: {file}: {why}" in said and said.count("\n") == 1, said
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    code, said = check(SCRIPT, "grey.png")
    assert code == 2 and said == "error: grey.png: pictures need pillow: pip install pillow\n"


def test_a_run_that_resized_nothing_takes_its_own_size_alone(fedloom, check):
    exported(fedloom, "RGB", None, [(8, 8)])
    picture("same.png", "RGB", (8, 8), 90)
    picture("large.png", "RGB", (16, 8), 91)
    assert check(SCRIPT, "same.png")[0] == 0
    code, said = check(SCRIPT, "large.png")
    assert code == 2 and "a sample has the shape (3, 8, 8), got (3, 8, 16)" in said
