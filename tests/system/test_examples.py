"""Every example runs, prints its result, and warns of nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs_and_is_short(path, tmp_path):
    assert len(path.read_text().splitlines()) <= 60
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"(accuracy|error) \d\.\d", ran.stdout)
