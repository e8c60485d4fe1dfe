"""The environments of our peers, made when they are not there: each pins what the others want otherwise.

torch comes first in each, and is held while the rest is installed: a peer that asks for a newer one must not bring
another torch, with CUDA, into a comparison of the same kernels on the same cores.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.harness import ROOT, show

TORCH = "torch==2.13.0"
TRL = ("trl==1.16.0", "transformers==5.22.2", "accelerate==1.15.0", "datasets==5.2.0")


def vllm() -> Path:
    """A Python with vLLM's CPU build: the environment in which the backends are tested."""
    python = ROOT / ".venv-backends/bin/python"
    if not (ROOT / ".venv-backends/.installed").exists():
        show("making .venv-backends for vLLM")
        subprocess.run(["make", "backends"], cwd=ROOT, check=True)
    return python


def trl() -> Path:
    """A Python with TRL, and with the transformers whose `generate` is measured."""
    directory = ROOT / ".venv-trl"
    python, marker = directory / "bin/python", directory / ".installed"
    if not marker.exists():
        show("making .venv-trl for TRL")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
        _install(python, TORCH)
        _install(python, TORCH, *TRL)
        marker.touch()
    return python


def _install(python: Path, *requirements: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True)
