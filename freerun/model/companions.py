"""The files beside a model's weights: its shape, its tokenizer, its chat template. No torch is needed for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

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


def copy_tokenizer(source: Path, directory: Path) -> None:
    """What belongs beside an adapter: all but config.json, which would make it pass for a whole model.

    The end tokens that config.json names go where they are looked for without it.
    """
    for name in COMPANION_FILES:
        if name != "config.json" and (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
    generation = directory / "generation_config.json"
    settings = json.loads(generation.read_text()) if generation.is_file() else {}
    end_ids = [*_listed(settings.get("eos_token_id")), *_listed(_end_of(source))]
    if end_ids:
        settings["eos_token_id"] = list(dict.fromkeys(end_ids))
        generation.write_text(json.dumps(settings, indent=2) + "\n")


def _end_of(source: Path) -> Any:
    return json.loads((source / "config.json").read_text()).get("eos_token_id")


def _listed(end: Any) -> list[Any]:
    return end if isinstance(end, list) else [] if end is None else [end]
