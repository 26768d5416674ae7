"""Write the commit into a wheel and into a source archive: `fedloom --version` says it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[BuilderConfig]):
    """Adds fedloom/_commit.txt. An editable installation asks its checkout instead, and an archive
    has the file already.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file to what is packed."""
        if version == "editable" or (Path(self.root) / "src/fedloom/_commit.txt").exists():
            return
        words = ["git", "--no-optional-locks", "-C", self.root]
        found = subprocess.run([*words, "rev-parse", "HEAD"], capture_output=True, text=True)
        if found.returncode == 0:
            changed = subprocess.run([*words, "status", "--porcelain"], capture_output=True)
            head = found.stdout.strip() + ("+dirty" if changed.stdout else "")
            file = Path(self.directory) / "_commit.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(head + "\n", encoding="utf-8")
            inside = "fedloom" if self.target_name == "wheel" else "src/fedloom"
            build_data["force_include"][str(file)] = f"{inside}/_commit.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the copy beside the package."""
        (Path(self.directory) / "_commit.txt").unlink(missing_ok=True)
