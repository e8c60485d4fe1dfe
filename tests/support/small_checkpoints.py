"""Checkpoints of a run that are whole, made without training."""

import asyncio
import random
from pathlib import Path

from freerun.buffer.groups import BufferState, LedgerState
from freerun.controller.checkpoint import (
    CheckpointWriter,
    ControllerState,
)


def state_of(version: int, *, seconds: float = 0.0) -> ControllerState:
    buffer = BufferState(version=version, ready=(), to_restart=(), done=LedgerState(mark=0, above=()), totals={})
    return ControllerState(version=version, cursor=0, buffer=buffer, seconds=seconds, data_fingerprint="")


def begin(directory: Path, version: int, *, seconds: float = 0.0) -> CheckpointWriter:
    """A checkpoint whose trainer has written its files."""
    writer = CheckpointWriter(directory, state_of(version, seconds=seconds))
    model = writer.directory / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(random.Random(version).randbytes(300))
    (writer.directory / "optimizer.safetensors").write_bytes(b"moments" * 20)
    return writer


def save(directory: Path, version: int, *, keep: int = 9, seconds: float = 0.0) -> Path:
    return asyncio.run(begin(directory, version, seconds=seconds).seal(keep=keep))
