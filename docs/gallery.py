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
            "methods/accuracy_by_round.png": "FedACG is ahead from the first rounds. The band "
            "spans three seeds; the thick end is tested.",
            "methods/accuracy_by_bytes.png": "The same by bytes: both send as much in a round.",
            "methods/train_loss.png": "FedACG's training loss falls to a fifth of FedAvg's.",
            "methods/clients.png": "How many clients have which accuracy. A tenth is below 90.2 % "
            "with FedAvg, and below 94.9 % with FedACG.",
        },
    ),
    Section(
        "Clients on slow devices",
        """fedloom run digits devices=lognormal devices.median=10 devices.up=1e6 --out runs/devices
fedloom report runs/devices --figures devices --format png""",
        {
            "devices/accuracy_by_simulated.png": "Accuracy by the time that such devices would "
            "need: two minutes for 150 rounds."
        },
    ),
    Section(
        "Clients that hold a part of the model",
        """fedloom run digits submodel=fiarse --out runs/fiarse
fedloom report runs/fiarse --figures sizes --format png""",
        {
            "sizes/sizes-rounds.png": "The smallest model learns slowest, and ends near 70 %.",
            "sizes/sizes-replaced.png": "FIARSE's masks settle: after 50 rounds few parameters "
            "are replaced.",
        },
    ),
    Section(
        "The loss around a trained model",
        """fedloom run digits rounds=60 --out runs/one
fedloom paper measure runs/one surface points=11
fedloom report runs/one --figures measures --format png""",
        {"measures/measures-surface.png": "The cross is the model, at the bottom of a bowl."},
    ),
    Section(
        "A partition, before anything is trained",
        "fedloom data partition digits partition.alpha=0.1 --plot split.png",
        {"split.png": "A column is a client: most have a few of the ten classes."},
    ),
    Section(
        "A paper's table",
        "fedloom paper fedacg:4 --protocols c10-500-dir0.3 --out docs/results/papers --show "
        "--figures papers --format png",
        {
            "papers/fedacg-4-average.png": "FedACG's Table 4 at a CPU's scale: both rows with the "
            "look-ahead lead, with and without the pull."
        },
    ),
)

HEAD = """<!-- Made by `python docs/gallery.py`. -->

# Gallery

What fedloom draws, below the commands that draw it, on scikit-learn's digits. `--format pdf,svg`
makes files for a paper; `fedloom report RUN...` puts all on one page.
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
            out.append(f"{caption}\n\n![{Path(file).stem}]({picture})\n")
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
