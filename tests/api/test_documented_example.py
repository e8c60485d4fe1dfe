"""The example of docs/library.md runs as it is written, in a script."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import ROOT


@pytest.mark.slow
def test_the_example_of_the_library_page_runs(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/library.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("finished "), done.stdout
    assert (tmp_path / "runs/sums/data.jsonl").is_file()
