"""One training step: a batch of groups in, new weights and a new version out; synchronous, without I/O.

    groups ─► rating ─────► minibatches ─► micro-batches ─► preparation ─► per minibatch:
              advantages     dealt, one     packed by        no grad, with   forward, loss, backward
              and weights    update each    Algorithm 1      the weights     per micro-batch; update
              per sample                                     before updates

Normalisation: every token has a weight in the step's loss that depends only on the objective's aggregation and the
lengths of the step's samples (`aggregation.py`), not on its minibatch or micro-batch. A minibatch's sum is
multiplied by the number of minibatches: the average over the minibatches is the step's loss. The parts of a sample
may be in different minibatches.

A trajectory of advantage 0 has a gradient of exactly 0, unless there is a KL term, an entropy bonus, a critic or
a user's clip (`axes.py`), and does not affect the gradients of others. Without these it is not computed; it
counts as consumed and in the weights of the others. If the batch contains nothing else there is no update, so
no weight decay and no momentum either: the step still makes a new version, with unchanged weights.

With several ranks (`ranks.py`) each has the whole batch, forms the same minibatches and computes its share of
their micro-batches, in the same number of passes. It computes on the device of the model's parameters; batches are
moved there once, when they are packed.

Shapes: L loss tokens (sampled tokens of a micro-batch).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor, nn

from freerun.config.objective import ObjectiveConfig
from freerun.config.train import TrainConfig
from freerun.model.decoder import Decoder
from freerun.model.device import resolve_dtype
from freerun.trainer.axes import load_axes, moves_without_advantage
from freerun.trainer.batch import (
    MicroBatch,
    Rated,
    family_of,
    idle_micro_batch,
    on_device,
    pack_trajectories,
)
from freerun.trainer.check import check_trajectory
from freerun.trainer.critic import critic_state, load_critic, make_critic
from freerun.trainer.logprobs import PolicyOutputs, policy_outputs
from freerun.trainer.loss import compute_loss
from freerun.trainer.metrics import StepMeter, batch_metrics, count_staleness
from freerun.trainer.optimizer import Optimizer, learning_rate
from freerun.trainer.packing import cut_families, deal_minibatches, pack_for_ranks
from freerun.trainer.phases import PhaseClock
from freerun.trainer.preparation import Minibatch, prepare
from freerun.trainer.ranks import Ranks, SingleRank
from freerun.trainer.rating import rate
from freerun.trainer.timeline import Timeline
from freerun.trainer.trained import TrajectoryMeter
from freerun.types import Doing, Group, StepResult


def ignore_progress(_: Doing) -> None:
    """The default: no listener."""


class PolicyTrainer:
    """Owns the policy's optimizer, critic and version; updates the model's parameters in place."""

    def __init__(
        self,
        model: Decoder,
        config: TrainConfig,
        objective: ObjectiveConfig,
        *,
        temperature: float,
        max_completion_tokens: int,
        is_truncated: bool = False,
        version: int = 0,
        on_progress: Callable[[Doing], None] = ignore_progress,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.version = version
        self.phases = PhaseClock()
        """The caller adds the phases outside a step: publishing and saving."""
        self.reference: Decoder | None = None
        """The frozen policy of version 0; the caller sets it if the objective has a KL term."""
        self._config = config
        self._objective = objective
        load_axes(objective)
        self._moves_without_advantage = moves_without_advantage(objective)
        self._temperature = temperature
        self._max_completion_tokens = max_completion_tokens
        self._is_truncated = is_truncated
        """Whether tokens were sampled with top-k or top-p, which the trainer's logprobs ignore."""
        self._on_progress = on_progress
        self._ranks = ranks or SingleRank()
        model.recompute_blocks(config.recompute_activations)
        self._device = model.embedding.weight.device
        self._dtype = resolve_dtype(config.dtype)
        self._critic: nn.Linear | None = None
        if objective.has_critic:
            self._critic = make_critic(model.config.hidden_size).to(self._device)
        self._optimizer = Optimizer(
            model, config, critic=self._critic, critic_lr_scale=objective.value_lr_scale, ranks=self._ranks
        )

    def step(self, groups: Sequence[Group]) -> StepResult:
        """Train on one batch, oldest first, and advance to the next version.

        A batch that cannot belong to this version raises ValueError before anything has changed.
        """
        started = time.perf_counter()
        self._on_progress(Doing("training", "rating the batch"))
        with self.phases.phase("rating"):
            for trajectory in (t for group in groups for t in group.trajectories):
                check_trajectory(trajectory, version=self.version)
            rated, timeline = rate(groups, self._objective, max_completion_tokens=self._max_completion_tokens)
            minibatches = self._form_minibatches(rated)
        meter = StepMeter(self._objective, self._ranks, version=self.version, is_truncated=self._is_truncated)
        trained = TrajectoryMeter(rated)
        self._update_weights(minibatches, timeline, meter, trained)
        samples_by_group = [group.samples for group in groups]
        metrics = batch_metrics(samples_by_group, self.version, self._objective)
        metrics |= meter.metrics(seconds=time.perf_counter() - started)
        self.version += 1
        return StepResult(
            version=self.version,
            metrics=metrics,
            staleness_counts=count_staleness(
                [s for of_group in samples_by_group for s in of_group], self.version - 1
            ),
            phases=self.phases.take(),
            trajectories=trained.trajectories(self._ranks, meter.log_weights, len(rated)),
        )

    def optimizer_state(self) -> dict[str, Tensor]:
        """Optimizer and critic as flat live tensors, sharded ones as shares: write them before the next step."""
        critic = {} if self._critic is None else critic_state(self._critic)
        return {**self._optimizer.state(), **critic}

    def load_optimizer_state(self, tensors: Mapping[str, Tensor]) -> None:
        self._optimizer.load_state(tensors if self._critic is None else load_critic(self._critic, tensors))

    def _form_minibatches(self, rated: Sequence[Rated]) -> list[Minibatch]:
        """Deal and pack the trajectories that can move the weights."""
        live = [r for r in rated if r.advantages.any() or self._moves_without_advantage]
        return [
            self._form_micro_batches([live[i] for i in dealt])
            for dealt in deal_minibatches([r.num_read_tokens for r in live], self._config.num_minibatches)
        ]

    def _form_micro_batches(self, rated: Sequence[Rated]) -> Minibatch:
        """Pack one minibatch by families: trajectories with a common beginning share its computation.

        Returns this rank's micro-batches.
        """
        capacity = self._config.micro_batch_tokens
        families: list[list[Rated]] = []
        for siblings in _by_prompt(rated):
            trunk = len(siblings[0].trajectory.prompt.token_ids)
            branches = [len(r.trajectory.completion.token_ids) - 1 for r in siblings]
            families += [[siblings[i] for i in run] for run in cut_families(trunk, branches, capacity=capacity)]
        by_rank = pack_for_ranks(
            [_num_tokens(family) for family in families], capacity=capacity, num_ranks=self._ranks.num_ranks
        )
        idle = idle_micro_batch(int(rated[0].trajectory.prompt.token_ids[0]))
        own = [
            pack_trajectories([r for i in pack for r in families[i]]) if pack else idle
            for pack in by_rank[self._ranks.rank]
        ]
        return [on_device(batch, self._device) for batch in own]

    def _update_weights(
        self, minibatches: list[Minibatch], timeline: Timeline | None, meter: StepMeter, trained: TrajectoryMeter
    ) -> None:
        """Make one optimizer update per minibatch, all clipped around the weights at the start of the step."""

        def report(activity: str, m: int, n: int) -> None:
            sizes = [len(minibatch) for minibatch in minibatches]
            self._on_progress(Doing("training", activity, sum(sizes[:m]) + n + 1, sum(sizes)))

        prepared = prepare(
            minibatches,
            self._objective,
            policy=self._look,
            reference=self._look_at_reference,
            timeline=timeline,
            on_progress=report,
            phases=self.phases,
            ranks=self._ranks,
        )
        for m, minibatch in enumerate(prepared):
            with self.phases.phase("training"):
                for n, micro_batch in enumerate(minibatch):
                    report("gradients", m, n)
                    outputs = self._look(micro_batch)
                    proximal_L = outputs.logprobs_L.detach() if m == 0 else micro_batch.proximal_logprobs_L
                    loss = compute_loss(
                        outputs, micro_batch, proximal_logprobs_L=proximal_L, objective=self._objective
                    )
                    (loss.total * len(minibatches)).backward()
                    meter.add_pass(micro_batch, outputs, loss)
                    trained.add_pass(micro_batch, loss.is_clipped_L, has_weights=proximal_L is not None)
                    if proximal_L is not None:
                        meter.add_proximal(micro_batch, proximal_L)
            with self.phases.phase("updating"):
                report("update of the weights", m, len(minibatch) - 1)
                meter.add_update(self._optimizer.update(self._next_lr()))

    def _look(self, micro_batch: MicroBatch) -> PolicyOutputs:
        return policy_outputs(
            self.model,
            micro_batch.packed,
            temperature=self._temperature,
            critic=self._critic,
            with_entropies=self._objective.entropy_coefficient > 0,
            dtype=self._dtype,
        )

    def _look_at_reference(self, micro_batch: MicroBatch) -> PolicyOutputs:
        if self.reference is None:
            raise ValueError(
                f"objective.kl_coefficient = {self._objective.kl_coefficient}, but there is no reference policy; "
                "set PolicyTrainer.reference before the first step"
            )
        return policy_outputs(self.reference, micro_batch.packed, temperature=self._temperature, dtype=self._dtype)

    def _next_lr(self) -> float:
        return learning_rate(self._config, version=self.version, num_updates=self._optimizer.num_updates)


def _by_prompt(rated: Iterable[Rated]) -> list[list[Rated]]:
    """Group trajectories of one ordinal by equal prompts; the parts of a session start at different prompts."""
    families: dict[tuple[int, bytes], list[Rated]] = {}
    for r in rated:
        prompt = r.trajectory.prompt
        families.setdefault((prompt.ordinal, prompt.token_ids.tobytes()), []).append(r)
    return list(families.values())


def _num_tokens(family: Sequence[Rated]) -> int:
    """Tokens the decoder reads for trajectories with the same prompt."""
    completions = [rated.trajectory.completion.token_ids for rated in family]
    return family_of(family[0].trajectory.prompt.token_ids, completions).num_tokens
