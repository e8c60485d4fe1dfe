"""The environments of the systems we compare with, created on demand: their requirements contradict each other.

torch is installed first in each and held while the rest is installed. Otherwise a system that asks for a newer one
would bring another torch, with CUDA, into a comparison of the same kernels on the same cores.

AReaL asks for an older torch than ours, and for CUDA builds, inference servers and agent frameworks that its
training engine does not import. So it is installed without dependencies, next to what that engine imports.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.harness import ROOT, show

TORCH = "torch==2.13.0"
AREAL = "areal==1.0.4"
AREAL_IMPORTS = (
    "transformers==5.3.0",
    "peft<=0.18.1",
    "hydra-core==1.4.0.dev1",
    "omegaconf==2.4.0.dev2",
    "networkx==3.3",
    "torchdata",
    "datasets",
    "einops",
    "orjson",
    "pybase64",
    "aiohttp",
    "aiofiles",
    "httpx",
    "pyzmq",
    "colorlog",
    "colorama",
    "psutil",
    "fastapi",
    "uvicorn",
    "uvloop",
    "tabulate",
    "numba",
    "tensorboardx",
    "setproctitle",
    "ray",
    "tenacity",
    "openai",
    "pandas",
    "requests",
    "flask",
    "cloudpickle",
    "msgspec",
    "accelerate",
    "lark",
    "pillow",
)
TRANSFORMERS = "transformers==5.22.2"
LITELLM = "litellm[proxy]==1.106.2"
TRL = ("trl==1.16.0", TRANSFORMERS, "accelerate==1.15.0", "datasets==5.2.0")


def vllm() -> Path:
    """A Python with vLLM's CPU build: the environment in which the backends are tested."""
    python = ROOT / ".venv-backends/bin/python"
    if not (ROOT / ".venv-backends/.installed").exists():
        show("making .venv-backends for vLLM")
        subprocess.run(["make", "backends"], cwd=ROOT, check=True)
    return python


def trl() -> Path:
    """A Python with TRL, and with the transformers whose `generate` is measured."""
    return _environment(".venv-trl", [TORCH], [TORCH, *TRL])


def litellm() -> Path:
    """A Python with LiteLLM's proxy."""
    return _environment(".venv-litellm", [LITELLM])


def areal() -> Path:
    """A Python with AReaL's FSDPEngine."""
    return _environment(".venv-areal", [TORCH], ["--no-deps", AREAL], [TORCH, *AREAL_IMPORTS])


def _environment(name: str, *installs: Sequence[str]) -> Path:
    """Its Python; created from scratch unless an earlier run completed it."""
    directory = ROOT / name
    python, marker = directory / "bin/python", directory / ".installed"
    if not marker.exists():
        show(f"making {name}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
        for arguments in installs:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *arguments], check=True)
        marker.touch()
    return python
