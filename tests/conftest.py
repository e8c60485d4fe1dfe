"""Every test runs on one thread, as the equivalences are bitwise only then, and draws the same numbers."""

import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""Children inherit it: under nohup a run would survive the SIGHUP that a test sends."""

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", UNTIMED, derandomize=True)
settings.register_profile("further", UNTIMED, max_examples=1000)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Seeds what is global, so that a test's numbers do not depend on those before it in its process."""
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty recipe that errors call `demo.toml`."""
    monkeypatch.chdir(tmp_path)
    path = Path("demo.toml")
    path.write_text("")
    return path
