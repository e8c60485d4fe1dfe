"""Model directories and runs with checkpoints, as far as the command line looks at them."""

import asyncio
from pathlib import Path

from freerun.buffer.groups import BufferState, LedgerState
from freerun.controller.checkpoint import CheckpointWriter, ControllerState


def make_model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    return directory


def make_run(directory: Path, steps: tuple[str, ...]) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text('[run]\nname = "kept"\n')
    for step in steps:
        version = int(step.removeprefix("step-"))
        buffer = BufferState(
            version=version, ready=(), to_restart=(), done=LedgerState(mark=0, above=()), totals={}
        )
        state = ControllerState(version=version, cursor=0, buffer=buffer, seconds=0.0, data_fingerprint="")
        writer = CheckpointWriter(directory / "checkpoints", state)
        model = make_model(writer.directory / "model")
        for file in (model / "model.safetensors", writer.directory / "optimizer.safetensors"):
            file.touch()
        asyncio.run(writer.seal(keep=100))
    return directory
