"""Where `freerun sft` writes: what was asked, the losses, and one model directory that is always whole.

DIR/
    settings.json    what the training was started with
    losses.jsonl     one row per step; a row with "held_out_loss" per measurement
    model/           Hugging Face or adapter directory
        progress.json, optimizer.safetensors    only while the training is not finished

The model and where the training stands are one directory, replaced by renaming: they are of the same step.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from freerun.errors import CheckpointError, FreerunError
from freerun.model.new_directory import require_vacant

SETTINGS_FILE = "settings.json"
LOSSES_FILE = "losses.jsonl"
PROGRESS_FILE = "progress.json"
OPTIMIZER_FILE = "optimizer.safetensors"


class SftDirectory:
    """One training's files, opened for it alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = path / "model"
        self.optimizer_file = self.model / OPTIMIZER_FILE

    def find_step(self, settings: Mapping[str, Any]) -> int:
        """The step to go on from: 0 in a new directory, that of the saved progress in one of the same settings."""
        if not (self.path / SETTINGS_FILE).is_file():
            require_vacant(self.path)
            return 0
        self._require_same(settings)
        self._restore_replaced()
        return self._saved_step()

    def begin(self, settings: Mapping[str, Any], step: int) -> None:
        """Make the directory one of these settings, with the losses up to the step."""
        with self._disk_errors():
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n")
            self._forget_losses_after(step)

    def save(self, write: Callable[[Path], None], *, step: int, is_finished: bool) -> None:
        """Let `write` fill a new model directory, then put it in the place of the old one."""
        new = self.path / ".model.writing"
        shutil.rmtree(new, ignore_errors=True)
        with self._disk_errors():
            new.mkdir()
            write(new)
            if not is_finished:
                (new / PROGRESS_FILE).write_text(json.dumps({"step": step}) + "\n")
            shutil.rmtree(self._replaced, ignore_errors=True)
            if self.model.exists():
                self.model.rename(self._replaced)
            new.rename(self.model)
        shutil.rmtree(self._replaced, ignore_errors=True)

    def record(self, row: Mapping[str, float]) -> None:
        with self._disk_errors(), (self.path / LOSSES_FILE).open("a") as file:
            file.write(json.dumps(row) + "\n")

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:  # the second is how safetensors reports a full disk
            raise FreerunError(
                f'"{self.path}" cannot be written ({error}); free disk space or name another directory, what was '
                "saved before stays"
            ) from error

    @property
    def _replaced(self) -> Path:
        return self.path / ".model.replaced"

    def _restore_replaced(self) -> None:
        """A crash between two renames leaves the old model under its other name."""
        if self._replaced.exists() and not self.model.exists():
            self._replaced.rename(self.model)

    def _saved_step(self) -> int:
        if not self.model.exists():
            return 0  # it was cut off before it saved anything
        progress = self.model / PROGRESS_FILE
        if not progress.is_file():
            raise FreerunError(f'"{self.path}" holds a finished training ({self.model}); name another directory')
        try:
            return int(json.loads(progress.read_text())["step"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{progress}: cannot be read ({error!r}); remove {self.path}") from None

    def _require_same(self, settings: Mapping[str, Any]) -> None:
        path = self.path / SETTINGS_FILE
        try:
            saved = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error!r}); remove {self.path}") from None
        for key in sorted(saved.keys() | settings.keys()):
            now, before = settings.get(key), saved.get(key)
            if now != before:
                raise FreerunError(
                    f'"{self.path}" was started with {key} = {before}, not {now}; the same command continues it, '
                    "another needs another directory"
                )

    def _forget_losses_after(self, step: int) -> None:
        """Steps after the saved one are done again, and recorded again."""
        path = self.path / LOSSES_FILE
        rows = path.read_text().splitlines() if path.is_file() else []
        kept = [row for row in rows if _step_of(row) <= step] if step else []
        path.write_text("".join(f"{row}\n" for row in kept))


def _step_of(row: str) -> float:
    """The step of a row of losses; infinite for one that was cut short."""
    try:
        return float(json.loads(row)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf
