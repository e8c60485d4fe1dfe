"""An environment for AReaL's FSDPEngine on a CPU, beside the project's own.

AReaL asks for an older torch than ours, and for CUDA builds, inference servers and agent frameworks that its
training engine does not import. So it is installed alone, with our torch and with what its engine imports.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.harness import ROOT, show

DIRECTORY = ROOT / ".venv-areal"
IMPORTED = (
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
)


def areal() -> Path:
    """The python of the environment, which is made when it is missing."""
    python = DIRECTORY / "bin/python"
    if not python.exists():
        show(f"installing AReaL into {DIRECTORY}")
        subprocess.run([sys.executable, "-m", "venv", str(DIRECTORY)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "torch==2.13.0"], check=True)
        subprocess.run([*pip, "--no-deps", "areal==1.0.4"], check=True)
        subprocess.run([*pip, *IMPORTED], check=True)
    return python
