"""Training that diverged is noticed, and never becomes a checkpoint."""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_events import make_step
from scripted_parent import STEP, ScriptedParent, serve
from small_checkpoints import begin, state_of
from tiny_models import random_model
from tiny_runs import make_run, recipe_of
from training_batches import CONFIG, VERSION

from freerun.config.train import TrainConfig
from freerun.controller.checkpoint import CheckpointWriter
from freerun.errors import CheckpointError, WorkerError
from freerun.events.store import Store
from freerun.model.finite import find_not_finite, find_overflow
from freerun.session.lifetime import Lifetime
from freerun.session.listeners import Listeners
from freerun.session.run_directory import open_run
from freerun.session.saving import Saver
from freerun.workers.messages import DIVERGED, Save, Saved, StepDone, ToTrainer

NOT_FINITE, FINITE_BUT_HUGE = 1e39, 1e15


def config(lr: float) -> TrainConfig:
    """With a learning rate that no recipe may ask for."""
    changed = dataclasses.replace(CONFIG, micro_batch_tokens=4096)
    object.__setattr__(changed, "lr", lr)
    return changed


def answers(directory: Path, *commands: ToTrainer, lr: float) -> list[Any]:
    """What the trainer says to these commands, once a checkpoint that was asked for has been answered."""
    parent: ScriptedParent = serve(directory, *commands, train=config(lr), borrows_cores=False)
    deadline = time.monotonic() + 60
    while any(isinstance(c, Save) for c in commands) and not any(isinstance(m, Saved) for m in parent.sent):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return parent.sent


@pytest.mark.parametrize(
    ("lr", "reason"),
    [(NOT_FINITE, "is not finite: training has diverged"), (FINITE_BUT_HUGE, "its logits are not finite")],
)
def test_weights_that_cannot_be_used_are_not_saved(tmp_path: Path, lr: float, reason: str) -> None:
    target = tmp_path / "checkpoint"
    target.mkdir()
    sent = answers(tmp_path, STEP, Save(directory=str(target), version=VERSION + 1), lr=lr)
    assert reason in sent[-1].error
    assert "lower train.lr" in sent[-1].error
    assert list(target.iterdir()) == []


def test_good_weights_are_saved(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    target.mkdir()
    sent = answers(tmp_path, STEP, Save(directory=str(target), version=VERSION + 1), lr=1e-3)
    assert sent[-1].error == ""
    assert (target / "optimizer.safetensors").is_file()


@pytest.mark.parametrize("lr", [NOT_FINITE, FINITE_BUT_HUGE])
def test_the_step_after_the_one_that_broke_the_weights_says_so(tmp_path: Path, lr: float) -> None:
    sent = answers(tmp_path, STEP, STEP, lr=lr)
    first, second = (message.result for message in sent if isinstance(message, StepDone))
    assert DIVERGED not in first.metrics
    assert second.metrics["skipped_updates"] > 0
    assert second.metrics[DIVERGED]


def test_numbers_that_are_not_finite_are_found_wherever_they_are() -> None:
    model = random_model(0)
    state = dict(model.named_parameters())
    assert find_not_finite(state.items()) == find_overflow(model) == ""
    assert find_not_finite([("step", torch.tensor(3)), ("empty", torch.empty(0))]) == ""
    for value in (float("nan"), float("inf"), -float("inf")):
        broken = {"good": torch.ones(9), "bad": torch.ones(7, 5)}
        broken["bad"][3, 2] = value
        assert find_not_finite(broken.items()).startswith("bad is not finite")


async def fail_to_save() -> None:
    raise CheckpointError("layers.0.norm is not finite")


def test_the_reason_names_the_newest_checkpoint_and_the_step_that_diverged(tmp_path: Path) -> None:
    async def save(life: Lifetime, writer: CheckpointWriter, saved: Awaitable[None], version: int) -> None:
        await Saver(life, writer.directory.parent, fail_to_save, keep=1).finish(writer, saved, version)

    async def fail(life: Lifetime, writer: CheckpointWriter) -> str:
        with pytest.raises(CheckpointError):
            await save(life, writer, fail_to_save(), 9)
        return life.explain(WorkerError("rollout-0 died"))

    async def run() -> tuple[str, str]:
        with open_run(recipe, resume=False) as (run, _), closing(Store(run.path)) as store:
            life = Lifetime(recipe, run.path, Listeners([store]))
            first = await fail(life, CheckpointWriter(run.checkpoints, state_of(9)))
            await save(life, begin(run.checkpoints, 6), asyncio.sleep(0), 6)
            second = await fail(life, CheckpointWriter(run.checkpoints, state_of(9)))
            assert [path.name for path in run.checkpoints.iterdir()] == ["step-6"]
            with pytest.raises(WorkerError, match=r"training diverged: after step 3 .* lower train.lr"):
                life.emit(make_step(3, (), **{DIVERGED: 1.0}))
            return first, second

    recipe = recipe_of(make_run(tmp_path))
    first, second = asyncio.run(run())
    assert first == (
        "rollout-0 died; version 9 was not saved: layers.0.norm is not finite; there is no checkpoint before it"
    )
    assert "resume the run from its newest checkpoint, " in second
    assert second.endswith("/runs/tiny/checkpoints/step-6")
