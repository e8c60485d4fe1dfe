"""Reads Hugging Face data sets: a directory written by `save_to_disk`, a folder of files, or a name on the hub.

`data.settings` are arguments of `datasets.load_dataset` (`name="main"` for a configuration, `split="train"`);
`data.held_out_path` is the split of the held-out prompts. A row's key is `gsm8k/train:17`, counted from 1.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from freerun.config.data import DataConfig
from freerun.data.rows import Row, to_prompts
from freerun.data.settings import require_extra, settings_of
from freerun.data.task_prompt import TaskPrompt
from freerun.errors import DataError

DEFAULT_SPLIT = "train"
_SAVED = ("dataset_dict.json", "state.json")
"""Files of which `save_to_disk` writes one; a folder of data files has neither."""


def read(config: DataConfig, *, split: str = "") -> tuple[TaskPrompt, ...]:
    """All prompts of a split; by default the one in `data.settings`, or "train"."""
    settings = settings_of(config)
    wanted = split or str(settings.get("split", DEFAULT_SPLIT))
    rows = _load(config.path, wanted, {name: value for name, value in settings.items() if name != "split"})
    prompts = to_prompts(numbered(f"{Path(config.path).name}/{wanted}", rows), config)
    if not prompts:
        raise DataError(f'data.path = "{config.path}": its split "{wanted}" has no rows')
    return prompts


def numbered(origin: str, rows: Any) -> Iterator[tuple[str, Row]]:
    """The rows with their keys; an error names the row that cannot be read."""
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            yield f"{origin}:{number}", row
    # Rows are decoded lazily, and a damaged file raises errors without a common base.
    except Exception as error:
        raise DataError(f"{origin}: row {number + 1} cannot be read ({type(error).__name__}: {error})") from error


def _load(path: str, split: str, settings: dict[str, Any]) -> Any:
    datasets = require_extra("datasets", needed_for='data.task = "datasets"')
    is_saved = any((Path(path) / name).is_file() for name in _SAVED)
    try:
        loaded = (
            datasets.load_from_disk(path) if is_saved else datasets.load_dataset(path, split=split, **settings)
        )
    # The library, the hub's client and the file readers raise errors without a common base.
    except Exception as error:
        raise DataError(
            f'data.path = "{path}": split "{split}" cannot be loaded ({type(error).__name__}: {error}); '
            "name an existing directory, or a data set that can be fetched from the hub; without internet access, "
            'copy here what "freerun data get NAME" writes elsewhere, and read it with data.task = "file"'
        ) from error
    return _saved_split(loaded, path, split) if is_saved else loaded


def _saved_split(saved: Any, path: str, split: str) -> Any:
    """A split of a saved `DatasetDict`; a saved `Dataset` has one split: "train", or its saved name."""
    if not isinstance(saved, dict):
        if split not in (DEFAULT_SPLIT, str(saved.split)):
            raise DataError(
                f'data.path = "{path}" was saved without splits, so it has no "{split}"; leave out '
                "data.held_out_path to hold out a data.held_out_fraction of it"
            )
        return saved
    if split not in saved:
        there = ", ".join(f'"{name}"' for name in saved)
        raise DataError(
            f'data.path = "{path}" has no split "{split}"; it has {there}: set data.settings = ["split=..."] '
            "or data.held_out_path"
        )
    return saved[split]
