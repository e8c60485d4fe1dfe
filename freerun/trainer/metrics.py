"""What a training step reports about itself. A metric that cannot be computed is absent, never NaN.

    reward, accuracy, completion_length     means over the samples of the batch; the length counts sampled tokens
    equal_group_share, cut_off_share ...    whether there is something to learn from: `group_metrics.py`
    reward/<part>                           mean of one part of the reward, before its weight, over the
                                            samples that have it; absent for a reward of one part
    num_calls, num_sequences                means over the samples, where one of them is a session of several calls
    staleness_mean, staleness_max           trainer version minus the oldest version in a sample
    num_tokens, num_sequence_tokens         sampled tokens; with prompts and what was given between calls
    loss                                    of the whole step, all terms, as the objective aggregates it
    entropy                                 minus the mean current logprob of the sampled tokens, in the pass
                                            each is trained in: a sample estimate, unbiased only where the
                                            behaviour is the current policy
    exact_entropy                           mean over tokens, with an entropy bonus
    reference_kl                            KL(current, reference) by the k3 estimator, over tokens, with a KL term
    clip_fraction                           tokens held back by the trust region
    masked_fraction                         tokens left out by the correction (masked, m2po, your own)
    value_loss                              the critic's half squared error, aggregated like the loss
    explained_variance                      1 - var(return - value) / var(return) over tokens, with the values at
                                            the start of the step; absent where all returns are equal
    behaviour_weight_mean, _max             exp(proximal - behaviour) over tokens; 1 is on-policy
    effective_sample_size                   (sum w)^2 / (n sum w^2) of those weights, a share in (0, 1]
    engine_trainer_kl                       KL(behaviour, proximal) by the k3 estimator, over tokens sampled
                                            under the trainer's own version: engine and trainer should agree
    grad_norm                               before clipping, mean over the updates applied
    lr                                      of the last update
    num_updates                             updates applied: minibatches, or 0 if there was nothing to learn from
    skipped_updates                         updates whose gradient norm was not finite
    train_tokens_per_second                 tokens that went forward and backward, over the whole step's time

Means over tokens are over the sampled tokens of all ranks.

Entropy and metrics of proximal logprobs cover only the tokens that were computed, so not those of skipped
trajectories with advantage 0. Without a correction there is no proximal forward: the latter then cover the first
minibatch, a representative share of the batch (`packing.deal_minibatches`).

Shapes: L loss tokens (sampled tokens of a micro-batch).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from freerun.config.objective import ObjectiveConfig
from freerun.trainer.batch import MicroBatch
from freerun.trainer.group_metrics import group_metrics
from freerun.trainer.logprobs import PolicyOutputs
from freerun.trainer.loss import Loss
from freerun.trainer.optimizer import Update
from freerun.trainer.ranks import Ranks, add_numbers, gather_floats
from freerun.types import Reward, WholeSample


def staleness_of(samples: Sequence[WholeSample], version: int) -> list[int]:
    return [version - sample.oldest_version for sample in samples]


def count_staleness(samples: Sequence[WholeSample], version: int) -> dict[int, int]:
    """Number of samples by staleness, freshest first."""
    return dict(sorted(Counter(staleness_of(samples, version)).items()))


def batch_metrics(
    groups: Sequence[tuple[WholeSample, ...]], version: int, objective: ObjectiveConfig
) -> dict[str, float]:
    """Metrics of a batch that do not depend on training."""
    samples = [sample for group in groups for sample in group]
    lengths = [sample.num_sampled for sample in samples]
    staleness = staleness_of(samples, version)
    sequences = [part for sample in samples for part in sample.parts]
    num_read = sum(len(t.prompt.token_ids) + len(t.completion.token_ids) for t in sequences)
    return (
        {
            "reward": float(np.mean([sample.reward.value for sample in samples])),
            "accuracy": float(np.mean([sample.reward.is_correct for sample in samples])),
            "completion_length": float(np.mean(lengths)),
            "num_tokens": float(sum(lengths)),
            "num_sequence_tokens": float(num_read),
            "staleness_mean": float(np.mean(staleness)),
            "staleness_max": float(max(staleness)),
        }
        | group_metrics(groups, compares_within_groups=objective.compares_within_groups)
        | _session_means(samples)
        | _reward_part_means([sample.reward for sample in samples])
    )


def _session_means(samples: Sequence[WholeSample]) -> dict[str, float]:
    num_calls, num_sequences = [s.num_calls for s in samples], [len(s.parts) for s in samples]
    if max(num_calls) == 1:
        return {}
    return {"num_calls": float(np.mean(num_calls)), "num_sequences": float(np.mean(num_sequences))}


def _reward_part_means(rewards: Sequence[Reward]) -> dict[str, float]:
    # A user's function may return different parts for different completions.
    names = sorted({name for reward in rewards for name in reward.parts})
    return {
        f"reward/{name}": float(np.mean([reward.parts[name] for reward in rewards if name in reward.parts]))
        for name in names
    }


def behaviour_metrics(log_weights: NDArray[np.float64], is_fresh: NDArray[np.bool_]) -> dict[str, float]:
    """How far behaviour and proximal policy differ; `is_fresh` marks tokens of the trainer's version."""
    # Weights that overflow belong to an update that is skipped; the meter leaves them out.
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(log_weights)
        metrics = {
            "behaviour_weight_mean": float(weights.mean()),
            "behaviour_weight_max": float(weights.max()),
            "effective_sample_size": float(weights.sum() ** 2 / (weights.size * np.square(weights).sum())),
        }
        if is_fresh.any():
            fresh = log_weights[is_fresh]
            metrics["engine_trainer_kl"] = float(np.mean(np.expm1(fresh) - fresh))
    return metrics


def explained_variance(values: NDArray[np.float64], returns: NDArray[np.float64]) -> dict[str, float]:
    """The share of the returns' variance that the critic predicts: 1 is all, 0 or less no better than the mean."""
    if returns.max() == returns.min():
        return {}
    return {"explained_variance": float(1 - (returns - values).var() / returns.var())}


class StepMeter:
    """Collects the results of one step's passes and updates, and combines them over the ranks."""

    def __init__(self, objective: ObjectiveConfig, ranks: Ranks, *, version: int, is_truncated: bool) -> None:
        self._objective = objective
        self._ranks = ranks
        self._version = version
        self._is_truncated = is_truncated
        self._losses: list[Loss] = []
        self._num_computed_tokens = 0
        self._current: list[NDArray[np.float64]] = []
        self._entropies: list[NDArray[np.float64]] = []
        self._values: list[NDArray[np.float64]] = []
        self._returns: list[NDArray[np.float64]] = []
        self._log_weights: list[NDArray[np.float64]] = []
        self._is_fresh: list[NDArray[np.float64]] = []
        self._updates: list[Update] = []
        self.log_weights: NDArray[np.float64] = np.empty(0)
        """Log-weights of the tokens of all ranks, in the order of passes; set by `metrics`."""

    def add_pass(self, micro_batch: MicroBatch, outputs: PolicyOutputs, loss: Loss) -> None:
        self._losses.append(replace(loss, total=loss.total.detach(), is_clipped_L=None))
        is_idle = micro_batch.packed.num_loss_tokens == 0
        self._num_computed_tokens += 0 if is_idle else micro_batch.packed.token_ids_T.numel()
        self._current.append(_as_array(outputs.logprobs_L))
        for values_L, collected in (
            (outputs.entropies_L, self._entropies),
            (micro_batch.values_L, self._values),
            (micro_batch.returns_L, self._returns),
        ):
            if values_L is not None:
                collected.append(_as_array(values_L))

    def add_proximal(self, micro_batch: MicroBatch, proximal_logprobs_L: Tensor) -> None:
        self._log_weights.append(_as_array(proximal_logprobs_L - micro_batch.behaviour_logprobs_L))
        # Behaviour logprobs after top-k or top-p are of another distribution: comparing them says nothing.
        is_fresh_L = (micro_batch.versions_L == self._version) & (not self._is_truncated)
        self._is_fresh.append(_as_array(is_fresh_L))

    def add_update(self, update: Update) -> None:
        self._updates.append(update)

    def metrics(self, *, seconds: float) -> dict[str, float]:
        """Everything collected, under the names of the module's table."""
        applied = [update.grad_norm for update in self._updates if update.is_applied]
        loss, num_computed_tokens = add_numbers(
            self._ranks, [sum(float(loss.total) for loss in self._losses), self._num_computed_tokens]
        )
        metrics = {
            "loss": loss,
            "num_updates": float(len(applied)),
            "skipped_updates": float(len(self._updates) - len(applied)),
            "train_tokens_per_second": num_computed_tokens / seconds,
        }
        if applied:
            metrics["grad_norm"] = float(np.mean(applied))
        if self._updates:
            metrics["lr"] = self._updates[-1].lr
        if self._current:
            current = gather_floats(self._ranks, self._current)
            metrics["entropy"] = float(-current.mean())
            metrics |= self._objective_metrics(current.size)
        if self._log_weights:
            self.log_weights = gather_floats(self._ranks, self._log_weights)
            metrics |= behaviour_metrics(self.log_weights, gather_floats(self._ranks, self._is_fresh) > 0)
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def _objective_metrics(self, num_tokens: int) -> dict[str, float]:
        """The parts of the loss; most exist only for some objectives."""
        num_clipped, num_masked, reference_kl, value_loss = add_numbers(
            self._ranks,
            [
                sum(loss.num_clipped for loss in self._losses),
                sum(loss.num_masked for loss in self._losses),
                sum(loss.reference_kl for loss in self._losses),
                sum(loss.value_loss for loss in self._losses),
            ],
        )
        metrics = {"clip_fraction": num_clipped / num_tokens}
        if self._objective.leaves_out_tokens:
            metrics["masked_fraction"] = num_masked / num_tokens
        if self._objective.kl_coefficient > 0:
            metrics["reference_kl"] = reference_kl / num_tokens
        if self._entropies:
            metrics["exact_entropy"] = float(gather_floats(self._ranks, self._entropies).mean())
        if self._objective.has_critic:
            metrics["value_loss"] = value_loss
            values, returns = (gather_floats(self._ranks, parts) for parts in (self._values, self._returns))
            metrics |= explained_variance(values, returns)
        return metrics


def _as_array(values_L: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values_L.double().numpy(force=True)
    return array
