"""One training step: a batch of groups in, new weights and a new version out; synchronous, without I/O.

    groups ─► advantages ─► minibatches ─► micro-batches ─► [proximal forward] ─► per minibatch:
              one per        dealt, one     packed by        no grad, weights     forward, loss, backward
              trajectory     update each    Algorithm 1      before any update    per micro-batch; update

Normalisation: a minibatch's sum over tokens is divided by (completion tokens of the step / minibatches).
Every token of the step weighs the same, whatever minibatch and micro-batch it fell into, and the average over
the minibatches is the mean over the step's tokens.

The proximal policy is the weights at the start of the step (Eq. 5). The first minibatch is trained with just
these, so there its own forward, detached, is the proximal one: the same bits, no second forward. With one
minibatch there is no proximal forward at all, nor ever with the naive objective.

A trajectory of advantage 0 has a gradient of exactly 0: it counts as consumed and in the divisor, but is not
computed. If nothing else is in the batch there is no update, and so no weight decay and no momentum either:
the step still makes its version, of unchanged weights.

Shapes: L loss tokens (completion tokens of a micro-batch).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from freerun.config.train import TrainConfig
from freerun.model.decoder import Decoder
from freerun.train.advantage import compute_advantages
from freerun.train.batch import MicroBatch, check_trajectory, family_of, pack_trajectories
from freerun.train.logprobs import completion_logprobs
from freerun.train.loss import PolicyLoss, decoupled_ppo_loss, naive_ppo_loss
from freerun.train.metrics import StepMeter, batch_metrics, count_staleness
from freerun.train.optimizer import Optimizer, learning_rate
from freerun.train.packing import cut_families, deal_minibatches, pack_micro_batches
from freerun.types import Group, StepResult, Trajectory

Minibatch = list[MicroBatch]
Rated = tuple[Trajectory, float]
"""A trajectory and its advantage."""


def ignore_progress(_: str) -> None:
    """Nobody watches."""


class PolicyTrainer:
    """Owns the policy's optimizer and its version; updates the model's parameters in place."""

    def __init__(
        self,
        model: Decoder,
        config: TrainConfig,
        *,
        temperature: float,
        is_truncated: bool = False,
        version: int = 0,
        on_progress: Callable[[str], None] = ignore_progress,
    ) -> None:
        self.model = model
        self.version = version
        self._config = config
        self._temperature = temperature
        self._is_truncated = is_truncated
        """Whether tokens were drawn after top-k or top-p, which the trainer's logprobs do not know of."""
        self._on_progress = on_progress
        self._optimizer = Optimizer(model, config)

    def step(self, groups: Sequence[Group]) -> StepResult:
        """Train on one batch, oldest first, and move on to the next version.

        A batch that cannot belong to this version raises ValueError before anything has changed.
        """
        started = time.perf_counter()
        trajectories = [t for group in groups for t in group.trajectories]
        for trajectory in trajectories:
            check_trajectory(trajectory, version=self.version)
        num_loss_tokens = sum(len(t.completion.token_ids) for t in trajectories)
        meter = StepMeter(version=self.version, num_loss_tokens=num_loss_tokens, is_truncated=self._is_truncated)
        advantages = compute_advantages(groups, self._config.advantage)
        minibatches = self._form_minibatches(trajectories, advantages)
        divisor = num_loss_tokens / max(1, len(minibatches))
        self._update_weights(minibatches, divisor=divisor, meter=meter)
        metrics = batch_metrics(trajectories, self.version)
        metrics |= meter.metrics(seconds=time.perf_counter() - started)
        staleness_counts = count_staleness(trajectories, self.version)
        self.version += 1
        return StepResult(version=self.version, metrics=metrics, staleness_counts=staleness_counts)

    def optimizer_state(self) -> dict[str, Tensor]:
        """Flat and free of pickle; live tensors, to be written out before the next step."""
        return self._optimizer.state()

    def load_optimizer_state(self, tensors: Mapping[str, Tensor]) -> None:
        self._optimizer.load_state(tensors)

    def _form_minibatches(
        self, trajectories: Sequence[Trajectory], advantages: NDArray[np.float64]
    ) -> list[Minibatch]:
        """Deal and pack the trajectories that can move the weights."""
        live = [(t, float(a)) for t, a in zip(trajectories, advantages, strict=True) if a != 0]
        lengths = [len(t.prompt.token_ids) + len(t.completion.token_ids) - 1 for t, _ in live]
        return [
            self._form_micro_batches([live[i] for i in dealt])
            for dealt in deal_minibatches(lengths, self._config.num_minibatches)
        ]

    def _form_micro_batches(self, rated: Sequence[Rated]) -> Minibatch:
        """Pack one minibatch by families: samples of one prompt stay together and share its computation."""
        capacity = self._config.micro_batch_tokens
        families: list[list[Rated]] = []
        for _, members in groupby(rated, key=lambda r: r[0].prompt.ordinal):
            siblings = list(members)
            trunk = len(siblings[0][0].prompt.token_ids)
            branches = [len(t.completion.token_ids) - 1 for t, _ in siblings]
            families += [[siblings[i] for i in run] for run in cut_families(trunk, branches, capacity=capacity)]
        packs = pack_micro_batches([_num_tokens(family) for family in families], capacity=capacity)
        return [pack_trajectories([rated for i in pack for rated in families[i]]) for pack in packs]

    def _update_weights(self, minibatches: list[Minibatch], *, divisor: float, meter: StepMeter) -> None:
        """One optimizer update per minibatch, all clipped around the weights that stand here at the start."""
        proximal = self._proximal_logprobs(minibatches)
        for m, minibatch in enumerate(minibatches):
            for n, micro_batch in enumerate(minibatch):
                current_L = self._logprobs(micro_batch)
                proximal_L = current_L.detach() if m == 0 else proximal.get((m, n))
                loss = self._loss(micro_batch, current_L, proximal_L)
                (loss.total / divisor).backward()
                meter.add_pass(micro_batch, current_L, loss)
                if proximal_L is not None:
                    meter.add_proximal(micro_batch, proximal_L)
                self._report("train", m, len(minibatches), n, len(minibatch))
            meter.add_update(self._optimizer.update(self._next_lr()))

    @torch.no_grad()
    def _proximal_logprobs(self, minibatches: list[Minibatch]) -> dict[tuple[int, int], Tensor]:
        """By (minibatch, micro-batch), for the minibatches that will meet weights already updated."""
        proximal: dict[tuple[int, int], Tensor] = {}
        if self._config.objective == "decoupled":
            for m, minibatch in enumerate(minibatches[1:], start=1):
                for n, micro_batch in enumerate(minibatch):
                    proximal[m, n] = self._logprobs(micro_batch)
                    self._report("proximal", m, len(minibatches), n, len(minibatch))
        return proximal

    def _logprobs(self, micro_batch: MicroBatch) -> Tensor:
        return completion_logprobs(self.model, micro_batch.packed, temperature=self._temperature)

    def _loss(self, micro_batch: MicroBatch, current_L: Tensor, proximal_L: Tensor | None) -> PolicyLoss:
        if self._config.objective == "naive":
            return naive_ppo_loss(
                current_logprobs_L=current_L,
                behaviour_logprobs_L=micro_batch.behaviour_logprobs_L,
                advantages_L=micro_batch.advantages_L,
                clip=self._config.clip,
            )
        assert proximal_L is not None
        return decoupled_ppo_loss(
            current_logprobs_L=current_L,
            proximal_logprobs_L=proximal_L,
            behaviour_logprobs_L=micro_batch.behaviour_logprobs_L,
            advantages_L=micro_batch.advantages_L,
            clip=self._config.clip,
        )

    def _next_lr(self) -> float:
        return learning_rate(self._config, version=self.version, num_updates=self._optimizer.num_updates)

    def _report(self, activity: str, m: int, num_minibatches: int, n: int, num_micro_batches: int) -> None:
        self._on_progress(
            f"{activity}: minibatch {m + 1}/{num_minibatches}, micro-batch {n + 1}/{num_micro_batches}"
        )


def _num_tokens(family: Sequence[Rated]) -> int:
    """Tokens the decoder reads for samples of one prompt."""
    completions = [trajectory.completion.token_ids for trajectory, _ in family]
    return family_of(family[0][0].prompt.token_ids, completions).num_tokens
