"""What an adapter directory says about itself, read without torch: whether it is one, and its base model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from freerun.errors import ModelError
from freerun.model.config_file import read_config_file

CONFIG_FILE = "adapter_config.json"


def is_adapter(directory: Path) -> bool:
    return (directory / CONFIG_FILE).is_file()


def base_of(directory: Path) -> Path:
    """The model directory that the adapter was trained on."""
    base = Path(read_config(directory).get("base_model_name_or_path") or "")
    if not (base / "config.json").is_file():
        raise ModelError(
            f'{directory}: the base model of this adapter, "{base}", is not a model directory here; put it back, '
            f"or name it where it is now: freerun model merge {directory} DIR --base BASE"
        )
    return base


def read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG_FILE
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); name an adapter directory of PEFT's format") from None
    if config.get("peft_type") != "LORA":
        raise ModelError(f'{path}: peft_type "{config.get("peft_type")}" is not supported, only "LORA"')
    return dict(config)


def model_config(directory: Path) -> dict[str, Any]:
    """The config.json of a model directory, or of the base of an adapter directory, checked."""
    base = base_of(directory) if is_adapter(directory) else directory
    return read_config_file(base)
