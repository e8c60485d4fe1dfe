"""The files beside a model's weights: its shape, its tokenizer, its chat template. No torch is needed for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

COMPANION_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


def copy_companions(source: Path, directory: Path) -> None:
    """Copy config, tokenizer and chat template; the weights we save beside them are float32."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in COMPANION_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
    config = json.loads((directory / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = "float32"
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
