"""One supervised fine-tuning, in this process: rows ─► batches ─► steps ─► a model directory.

Which rows make a step depends on the seed and the step's number alone, and the optimizer is saved with the model,
so that a training that was interrupted and continued is the uninterrupted one, bit for bit. The first Ctrl-C or
SIGTERM finishes the step and saves; the second stops at once.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file

from freerun.config.lora import LoraConfig
from freerun.config.sft import SftConfig
from freerun.config.train import TrainConfig
from freerun.data.demonstrations import Demonstrations, read_demonstrations
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ConfigError, FreerunError
from freerun.model.adapter_directory import model_config
from freerun.model.directory_check import check_directory
from freerun.model.projections import check_rank
from freerun.model.trained import TrainedModel
from freerun.sft.directory import OPTIMIZER_FILE, SftDirectory
from freerun.terminal.progress_lines import ProgressLines
from freerun.trainer.allocator import keep_freed_memory
from freerun.trainer.divergence import find_not_finite
from freerun.trainer.schedule import cosine_learning_rate
from freerun.trainer.supervised import SupervisedTrainer
from freerun.types import Demonstration

FREE_TO_CHANGE = ("eval_every_steps", "save_every_steps", "num_threads")
"""Settings that a continued training may change: they do not decide the weights."""


@dataclasses.dataclass(frozen=True)
class SftJob:
    """What was asked."""

    model: Path
    data: Path
    directory: Path
    config: SftConfig
    lora: LoraConfig

    def settings(self, data: Demonstrations) -> dict[str, Any]:
        """All that decides the weights: a training is continued only by the same."""
        config = {k: v for k, v in dataclasses.asdict(self.config).items() if k not in FREE_TO_CHANGE}
        lora = {f"lora_{k}": v for k, v in dataclasses.asdict(self.lora).items()}
        lora["lora_targets"] = list(self.lora.targets)
        return {"model": str(self.model.resolve()), "data": data.fingerprint, **config, **lora}


def run_sft(job: SftJob) -> int:
    """Train and save; returns the exit code."""
    console = Console()
    data = _read(job, console)
    directory = SftDirectory(job.directory)
    settings = job.settings(data)
    step = directory.find_step(settings)
    torch.set_num_threads(job.config.num_threads or len(os.sched_getaffinity(0)))
    keep_freed_memory()
    session = SftSession(job, data, directory, console, step=step)
    # Only now that the model is accepted: a directory of refused settings would refuse the corrected ones.
    directory.begin(settings, step)
    if step:
        console.print(f"continuing after step {step} of {session.num_steps}", highlight=False)
    with _stop_on_signal(session):
        return session.run()


def _read(job: SftJob, console: Console) -> Demonstrations:
    """The rows, after all that can be wrong has been looked for."""
    check_directory(job.model)
    raw = model_config(job.model)
    check_rank(job.lora, raw, job.model)
    positions = raw["max_position_embeddings"]
    if job.config.max_tokens > positions:
        raise ConfigError(
            f"config: --max-tokens {job.config.max_tokens} exceeds the {positions} positions of the model in "
            f"{job.model}; lower it"
        )
    data = read_demonstrations(job.data, Tokenizer.load(job.model), job.config)
    num_trained = sum(row.num_trained for row in data.training)
    console.print(
        f"data: {len(data.training)} rows to train on ({num_trained:,} tokens with loss), "
        f"{len(data.held_out)} held out",
        highlight=False,
    )
    if data.num_too_long:
        console.print(
            f"data: {data.num_too_long} rows exceed --max-tokens {job.config.max_tokens} and are left out",
            highlight=False,
        )
    return data


class SftSession:
    """The training from one step to the last."""

    def __init__(
        self, job: SftJob, data: Demonstrations, directory: SftDirectory, console: Console, *, step: int
    ) -> None:
        self.step = step
        self._job = job
        self._config = job.config
        self._data = data
        self._directory = directory
        self._console = console
        self._is_stopping = False
        self._order = lru_cache(maxsize=2)(self._shuffled)
        num_rows = len(data.training)
        self._end = self._config.num_steps * self._config.batch_size or self._config.num_epochs * num_rows
        self.num_steps = math.ceil(self._end / self._config.batch_size)
        self._trained = self._load()
        self._trainer = SupervisedTrainer(self._trained.decoder, _train_config(job.config))
        if step:
            self._trainer.load_optimizer_state(load_file(directory.optimizer_file))
        console.print(
            f"model: trains {self._trained.num_trained:,} of {self._trained.num_parameters:,} parameters",
            highlight=False,
        )

    def _load(self) -> TrainedModel:
        lora, seed = self._job.lora, self._config.seed
        if not self.step:
            return TrainedModel.load(self._job.model, lora, seed=seed)
        if lora.is_on:
            return TrainedModel.load(self._job.model, lora, seed=seed, adapter=self._directory.model)
        return TrainedModel.load(self._directory.model, lora, seed=seed)

    def request_stop(self) -> None:
        """Finish the step, save and return."""
        self._is_stopping = True

    def run(self) -> int:
        """All steps, or those up to a stop; returns the exit code."""
        if not self.step:
            self._measure(float("nan"))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        is_hidden = not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=is_hidden) as progress:
            bar = progress.add_task("training", total=self.num_steps, completed=self.step)
            lines = ProgressLines(self._console, self.num_steps, done=self.step)
            while self.step < self.num_steps and not self._is_stopping:
                loss = self._train_one()
                progress.update(bar, completed=self.step, description=f"loss {loss:.4f}")
                lines(self.step, f"steps  loss {loss:.4f}")
                if self.step % self._config.eval_every_steps == 0 or self.step == self.num_steps:
                    self._measure(loss)
                if self.step % self._config.save_every_steps == 0 and self.step < self.num_steps:
                    self._save()
        self._save()
        return self._conclude()

    def _train_one(self) -> float:
        config = self._config
        lr = cosine_learning_rate(
            self.step, num_steps=self.num_steps, peak=config.lr, ramp_steps=config.warmup_steps
        )
        batch = self.batch(self.step)
        loss = self._trainer.step(batch, lr)
        if not math.isfinite(loss):
            raise FreerunError(
                f"the loss of step {self.step + 1} is {loss}; lower --lr = {config.lr:g}, and see "
                f"{self._directory.path}/losses.jsonl for where it began to rise"
            )
        self.step += 1
        num_tokens = sum(row.num_trained for row in batch)
        self._directory.record({"step": self.step, "loss": loss, "lr": lr, "num_tokens": num_tokens})
        return loss

    def batch(self, step: int) -> list[Demonstration]:
        """The rows of a step: consecutive ones of the seeded order of each epoch, across its end."""
        num_rows, size = len(self._data.training), self._config.batch_size
        places = range(step * size, min((step + 1) * size, self._end))
        return [self._data.training[self._order(place // num_rows)[place % num_rows]] for place in places]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._data.training)))
        random.Random(f"{self._config.seed}/{epoch}").shuffle(order)
        return order

    def _measure(self, loss: float) -> None:
        """Held-out loss, to the record and the terminal."""
        parts = [f"step {self.step}/{self.num_steps}"]
        if not math.isnan(loss):
            parts.append(f"loss {loss:.4f}")
        if self._data.held_out:
            held_out_loss = self._trainer.loss(self._data.held_out)
            self._directory.record({"step": self.step, "held_out_loss": held_out_loss})
            parts.append(f"held-out loss {held_out_loss:.4f}")
        self._console.print("  ".join(parts), highlight=False)

    def _save(self) -> None:
        is_finished = self.step == self.num_steps

        if broken := find_not_finite(self._trained.state().items()):
            raise FreerunError(
                f"step {self.step} is not saved: {broken.replace('train.lr', f'--lr = {self._config.lr:g}')}; "
                f"what was saved in {self._directory.path} before stays"
            )

        def write(directory: Path) -> None:
            self._trained.save(self._trained.state(), directory, companions=self._job.model)
            if not is_finished:
                save_file(self._trainer.optimizer_state(), directory / OPTIMIZER_FILE)

        self._directory.save(write, step=self.step, is_finished=is_finished)

    def _conclude(self) -> int:
        if self.step < self.num_steps:
            lines = [
                f"stopped after step {self.step} of {self.num_steps}; the same command continues",
                f"model  {self._directory.model} (as it is now)",
            ]
        else:
            lines = [f"model  {self._directory.model}"]
            if self._job.lora.is_on:
                lines.append(f"next   freerun model merge {self._directory.model} DIR")
            else:
                lines.append(f"next   freerun train RECIPE --model.path {self._directory.model}")
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        return 0 if self.step == self.num_steps else 130


def _train_config(config: SftConfig) -> TrainConfig:
    """What the optimizer and the packing want to know."""
    return TrainConfig(
        lr=config.lr,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        micro_batch_tokens=config.micro_batch_tokens,
    )


@contextmanager
def _stop_on_signal(session: SftSession) -> Iterator[None]:
    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        session.request_stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
