"""Names on the Hugging Face hub: `Qwen/Qwen2.5-0.5B-Instruct` means its snapshot in the local cache.

Nothing is downloaded here: `hf download NAME` does that (decision 20). torch is not needed.
"""

import dataclasses
import re
from pathlib import Path

from freerun.config.recipe import Recipe

NAME = re.compile(r"[a-z0-9][\w.-]*/[a-z0-9][\w.-]*", re.ASCII | re.IGNORECASE)
OWN_FOLDERS = ("models", "runs")
"""Folders where our commands put models: `models/smollm2` is a directory even before it exists, not a hub name."""
CONFIG_FILES = ("config.json", "adapter_config.json")


def is_hub_name(path: str) -> bool:
    """Whether the path can only be a name on the hub."""
    folder = path.partition("/")[0]
    return NAME.fullmatch(path) is not None and folder not in OWN_FOLDERS and not Path(folder).exists()


def local_directory(path: str, *, revision: str = "") -> str:
    """The cached snapshot if `path` is a name on the hub that has one, else `path`."""
    if not is_hub_name(path):
        return path
    from huggingface_hub import try_to_load_from_cache

    for name in CONFIG_FILES:
        cached = try_to_load_from_cache(path, name, revision=revision or None)
        if isinstance(cached, str):
            return str(Path(cached).parent)
    return path


def with_local_model(recipe: Recipe) -> Recipe:
    """The recipe with `model.path` as a directory, so workers and a later `--resume` read the same snapshot."""
    path = local_directory(recipe.model.path)
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, path=path))


def how_to_fetch(name: str) -> str:
    return f'it is not in the Hugging Face cache; fetch it with "hf download {name}" and run this again'
