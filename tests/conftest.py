"""Every test runs on one thread, as the equivalences are bitwise only then; property tests have no time limit."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty recipe that errors call `demo.toml`."""
    monkeypatch.chdir(tmp_path)
    path = Path("demo.toml")
    path.write_text("")
    return path
