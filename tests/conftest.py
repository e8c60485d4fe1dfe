"""Every test runs on one thread: the equivalences are bitwise only then, and two cores are shared."""

import os
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty recipe that errors call `demo.toml`."""
    monkeypatch.chdir(tmp_path)
    path = Path("demo.toml")
    path.write_text("")
    return path
