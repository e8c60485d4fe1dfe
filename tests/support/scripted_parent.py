"""A trainer worker in this process, whose parent says what a script says."""

import dataclasses
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from training_batches import CONFIG, MAX_COMPLETION_TOKENS, OBJECTIVE, TEMPERATURE, VERSION, make_groups

from freerun.config.lora import LoraConfig
from freerun.model.tiny import make_tiny
from freerun.weights.buffers import create_buffers, shared_route
from freerun.workers.messages import StartTrainer, ToTrainer, TrainStep
from freerun.workers.train_worker import TrainWorker

NUM_LAYERS = 2


STEP = TrainStep(groups=tuple(make_groups()))


class ScriptedParent:
    """A controller that sends its commands, and then hangs up; it counts how often a step looks for more."""

    num_threads = 1

    def __init__(self, *commands: ToTrainer) -> None:
        self.sent: list[Any] = []
        self.num_looks = 0
        self._commands: Iterator[ToTrainer] = iter(commands)

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def receive(self, timeout_seconds: float) -> ToTrainer | None:
        if not timeout_seconds:
            self.num_looks += 1
            return None
        if (command := next(self._commands, None)) is None:
            raise EOFError
        return command


def make_model(directory: Path) -> Path:
    sizes = {"hidden_size": 24, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 40}
    make_tiny(directory, alphabet=string.ascii_letters, seed=5, num_layers=NUM_LAYERS, **sizes)
    return directory


def serve(directory: Path, *commands: ToTrainer, **start: Any) -> ScriptedParent:
    """What a trainer of one micro-batch a step, which borrows cores, does on these commands."""
    model = make_model(directory / "model")
    settings: dict[str, Any] = {
        "model_directory": str(model),
        "adapter_directory": "",
        "lora": LoraConfig(),
        "seed": 0,
        "companions_directory": str(model),
        "train": dataclasses.replace(CONFIG, micro_batch_tokens=4096),
        "objective": OBJECTIVE,
        "temperature": TEMPERATURE,
        "max_completion_tokens": MAX_COMPLETION_TOKENS,
        "is_truncated": False,
        "version": VERSION,
        "optimizer_file": "",
        "reference_directory": "",
        "borrows_cores": True,
        "weights": shared_route(create_buffers("borrowed")),
    }
    parent = ScriptedParent(*commands)
    with pytest.raises(EOFError):
        TrainWorker(parent, StartTrainer(**(settings | start))).serve()  # type: ignore[arg-type]
    return parent
