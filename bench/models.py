"""The models that claims are measured on, created on demand."""

import subprocess
import sys
from pathlib import Path

from bench.harness import ROOT, show

TINY_SIZES = {"hidden_size": 128, "num_layers": 3, "num_heads": 4, "num_kv_heads": 1, "intermediate_size": 384}
"""Half a million parameters, with one key head for all query heads."""


def smollm2() -> Path:
    directory = ROOT / "models/smollm2"
    if not (directory / "model.safetensors").exists():
        show(f"making {directory.name}")
        command = [sys.executable, "-m", "freerun.cli.main", "model", "smollm2", str(directory)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return directory


def tiny() -> Path:
    """Untrained, with the alphabet of Euclid's derivations."""
    directory = ROOT / "models/tiny"
    if not directory.exists():
        from freerun.data.tasks import alphabet_of
        from freerun.model.tiny import make_tiny

        show(f"making {directory.name}")
        make_tiny(directory, alphabet=alphabet_of("euclid"), **TINY_SIZES)
    return directory
