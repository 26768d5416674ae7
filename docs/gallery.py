"""docs/gallery.md and its pictures: `python docs/gallery.py [FOLDER]`, a few minutes.

Runs the commands of the page, in a folder of their own or in FOLDER, where runs that are there are
not made again, and copies the pictures to docs/pictures/gallery.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "pictures" / "gallery"


class Section(NamedTuple):
    """commands: what makes the pictures; shown: their files, each with what it shows."""

    title: str
    commands: str
    shown: dict[str, str]


SECTIONS = (
    Section(
        "Methods side by side",
        """fedloom run digits --seeds 3 --out runs/fedavg
fedloom run digits algorithm=fedacg --seeds 3 --out runs/fedacg
fedloom report runs/fedavg runs/fedacg --figures methods --format png""",
        {
            "methods/accuracy_by_round.png": "Accuracy by round: three seeds, and their spread",
            "methods/accuracy_by_bytes.png": "Accuracy by bytes sent",
            "methods/accuracy_by_seconds.png": "Accuracy by seconds of training",
            "methods/train_loss.png": "Training loss",
            "methods/test_loss.png": "Test loss",
            "methods/clients.png": "Accuracy of the last model at each client",
            "methods/ledger.png": "Bytes by what was sent",
            "methods/partition.png": "The clients: labels and sizes",
        },
    ),
    Section(
        "Clients on slow devices",
        """fedloom run digits devices=lognormal devices.median=10 devices.up=1e6 --out runs/devices
fedloom report runs/devices --figures devices --format png""",
        {"devices/accuracy_by_simulated.png": "Accuracy by the time that the devices would need"},
    ),
    Section(
        "Clients that hold a part of the model",
        """fedloom run digits submodel=fiarse --out runs/fiarse
fedloom report runs/fiarse --figures sizes --format png""",
        {
            "sizes/sizes-rounds.png": "Accuracy of each size of model, by round",
            "sizes/sizes-local.png": "Accuracy of each size at the clients that hold it",
            "sizes/sizes-clients.png": "Accuracy at each client, by its size",
            "sizes/sizes-explored.png": "Share of the weights that were ever trained",
            "sizes/sizes-replaced.png": "Share of the mask that changes from round to round",
        },
    ),
    Section(
        "A trained model, measured",
        """fedloom run digits rounds=60 --out runs/one
fedloom paper measure runs/one surface points=11
fedloom paper measure runs/one cka
fedloom report runs/one --figures measures --format png""",
        {
            "measures/measures-surface.png": "The loss on a square around the model",
            "measures/measures-cka_layers.png": "How alike the local models' layers are",
        },
    ),
    Section(
        "A partition, before anything is trained",
        "fedloom data partition digits partition.alpha=0.1 --plot split.png",
        {"split.png": "Labels and sizes of 50 clients, Dirichlet 0.1"},
    ),
    Section(
        "A paper's table",
        "fedloom paper fedacg:4 --protocols c10-500-dir0.3 --out docs/results/papers --show "
        "--figures papers --format png",
        {"papers/fedacg-4-average.png": "FedACG's Table 4 at a CPU's scale: moving average"},
    ),
)

HEAD = """<!-- Made by `python docs/gallery.py`. -->

# Gallery of pictures

Pictures that fedloom draws, below the commands that made them. The runs are on scikit-learn's
digits, which need no download; the paper's table is drawn from the committed lines of its runs, in
a checkout. `--format pdf,svg` makes files for a paper. `fedloom report RUN...` alone puts all
pictures of runs on one page, with its tables. [Results](results/README.md) has more pictures.
"""


def words(commands: str) -> list[list[str]]:
    """The commands, each as its words."""
    return [shlex.split(line) for line in commands.splitlines()]


def copied(file: str) -> Path:
    """Where a picture of the page is kept."""
    return PICTURES / file.replace("/", "-")


def page() -> str:
    """The page."""
    out = [HEAD]
    for section in SECTIONS:
        out += [f"## {section.title}", f"```\n{section.commands}\n```\n"]
        for file, caption in section.shown.items():
            picture = copied(file).relative_to(DOCS).as_posix()
            out.append(f"{caption} (`{file}`):\n\n![{caption}]({picture})\n")
    return "\n".join(out)


def make(folder: Path) -> None:
    """Run everything that is not there yet, and copy the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for section in SECTIONS:
        for command in words(section.commands):
            there = command[1] == "run" and (folder / command[-1]).exists()
            lines = [str(DOCS.parent / w) if w.startswith("docs/") else w for w in command[1:]]
            if not there:
                subprocess.run([sys.executable, "-m", "fedloom", *lines], cwd=folder, check=True)
        for file in section.shown:
            shutil.copyfile(folder / file, copied(file))
    (DOCS / "gallery.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        make(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            make(Path(name))
