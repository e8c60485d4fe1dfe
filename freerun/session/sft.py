"""SFT, the first stage of a run: supervised steps before version 0.

    demonstrations ─► trainer.supervise ─► SftStep ─► listeners
                               └─► checkpoints/step-0, with the optimizer of SFT

The seed and the step's number determine its batch, and a checkpoint holds the optimizer: with a fixed number of
threads, an interrupted and resumed run ends with the same bits as an uninterrupted one.
"""

import math
from collections.abc import Callable

from freerun.config.recipe import Recipe
from freerun.config.sft import SftConfig
from freerun.controller.checkpoint import Checkpoint, ControllerState, SftState
from freerun.controller.checkpointing import SaveCheckpoint
from freerun.data.demonstrations import SftData, open_sft_data
from freerun.data.tokenizer import Tokenizer
from freerun.errors import CheckpointError, WorkerError
from freerun.events.events import SftStep
from freerun.session.assembly import make_gate_and_buffer
from freerun.session.lifetime import Lifetime
from freerun.types import Demonstration, Doing
from freerun.workers.trainer_client import TrainerClient

ROWS_PER_MEASUREMENT = 16
"""Held-out rows per message to the trainer, which limits how long Ctrl-C waits."""


def make_sft_data(recipe: Recipe, tokenizer: Tokenizer, checkpoint: Checkpoint | None) -> SftData | None:
    """The demonstrations of SFT; None if the recipe has no SFT or SFT is over."""
    if not recipe.sft.is_on or (checkpoint is not None and checkpoint.state.sft is None):
        return None
    data = open_sft_data(recipe, tokenizer)
    if checkpoint is not None and checkpoint.state.sft and checkpoint.state.sft.fingerprint != data.fingerprint:
        raise CheckpointError(
            f"{checkpoint.directory}: the demonstrations or the tokenizer have changed since it was saved; "
            "restore them, or start a run with another run.name"
        )
    return data


def cosine_learning_rate(step: int, *, num_steps: int, peak: float, ramp_steps: int) -> float:
    """A linear ramp over the first steps, then a cosine from the peak down to a tenth of it."""
    ramp = min(1.0, (step + 1) / ramp_steps) if ramp_steps else 1.0
    fall = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / num_steps))
    return peak * ramp * fall


def sft_learning_rate(config: SftConfig, step: int, *, num_steps: int) -> float:
    """The learning rate of the step with index `step`, from 0."""
    return cosine_learning_rate(step, num_steps=num_steps, peak=config.lr, ramp_steps=config.warmup_steps)


class SftStage:
    """Trains from the checkpoint's step, or from the first, to the last one."""

    def __init__(
        self,
        recipe: Recipe,
        data: SftData,
        trainer: TrainerClient,
        *,
        life: Lifetime,
        save: SaveCheckpoint,
        state: SftState | None = None,
    ) -> None:
        self.step = state.step if state else 0
        self._recipe = recipe
        self._config = recipe.sft
        self._data = data
        self._trainer = trainer
        self._life = life
        self._save = save
        self._must_stop: Callable[[], bool] = lambda: False

    async def run(self, must_stop: Callable[[], bool]) -> None:
        """Train to the last step, or to the end of the step in which it must stop."""
        self._life.act("controller", Doing("training", "SFT"))
        self._life.on_stop(lambda: None)  # the loops below check `must_stop`
        self._must_stop = must_stop
        if self.step == 0 and (held_out_loss := await self._measure()) is not None:
            self._emit(held_out_loss=held_out_loss)
        for batch in self._data.batches(self.step):
            if must_stop():
                return
            await self._train(batch)
            if self.step % self._config.save_every_steps == 0 and self.step < self._data.num_steps:
                await self.save()

    async def save(self) -> None:
        """Write a checkpoint of the current step; RL has not begun."""
        _, buffer = make_gate_and_buffer(self._recipe, None)
        state = ControllerState(
            version=0,
            cursor=0,
            buffer=buffer.snapshot(),
            seconds=self._life.seconds,
            data_fingerprint="",
            sft=SftState(step=self.step, fingerprint=self._data.fingerprint),
        )
        await self._save(state)

    async def _train(self, batch: list[Demonstration]) -> None:
        config, num_steps = self._config, self._data.num_steps
        lr = sft_learning_rate(config, self.step, num_steps=num_steps)
        loss = await self._trainer.supervise(batch, lr)
        if not math.isfinite(loss):
            raise WorkerError(
                f"SFT diverged: the loss of step {self.step + 1} is {loss}; lower sft.lr = {config.lr:g}"
            )
        self.step += 1
        is_due = self.step % config.eval_every_steps == 0 or self.step == num_steps
        held_out_loss = await self._measure() if is_due else None
        num_tokens = sum(row.num_trained for row in batch)
        self._emit(loss=loss, held_out_loss=held_out_loss, lr=lr, num_tokens=num_tokens)

    async def _measure(self) -> float | None:
        """Mean loss per trained token of the held-out rows; None if there are no rows, or if the run must stop."""
        total = num_tokens = 0.0
        for start in range(0, len(self._data.held_out), ROWS_PER_MEASUREMENT):
            if self._must_stop():
                return None
            rows = self._data.held_out[start : start + ROWS_PER_MEASUREMENT]
            num_trained = sum(row.num_trained for row in rows)
            total += num_trained * await self._trainer.supervise(rows, lr=None)
            num_tokens += num_trained
        return total / num_tokens if num_tokens else None

    def _emit(
        self, *, held_out_loss: float | None, loss: float | None = None, lr: float = 0.0, num_tokens: int = 0
    ) -> None:
        self._life.emit(
            SftStep(
                seconds=self._life.seconds,
                step=self.step,
                num_steps=self._data.num_steps,
                loss=loss,
                held_out_loss=held_out_loss,
                lr=lr,
                num_tokens=num_tokens,
            )
        )
