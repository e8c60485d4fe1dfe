"""The start of a step: everything that must be computed before the weights change, stored in the micro-batches.

    proximal logprobs     by a forward without gradient, with the weights at the start of the step (Eq. 5).
                          The first minibatch is trained with exactly these weights, so its training forward,
                          detached, is the proximal one: the same bits, no second forward. Not needed without a
                          correction.
    reference logprobs    with a KL term
    advantages, returns   with a critic: from the values at the start, normalised over all tokens of the step
    is_kept               M2PO: which tokens are trained on, decided over all tokens of the step

The last two need every minibatch of every rank, including the first, before any of them is trained.

Shapes: L loss tokens (sampled tokens of a micro-batch).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from freerun.config.objective import ObjectiveConfig
from freerun.trainer.batch import MicroBatch
from freerun.trainer.correction import drifts, keep_small_drifts
from freerun.trainer.critic import advantages_and_returns
from freerun.trainer.logprobs import PolicyOutputs
from freerun.trainer.phases import PhaseClock
from freerun.trainer.ranks import Ranks, decide_together
from freerun.trainer.timeline import Timeline

Minibatch = list[MicroBatch]
OnProgress = Callable[[str, int, int], None]
"""Called with the activity, and the minibatch and micro-batch that come next."""


@torch.no_grad()
def prepare(
    minibatches: Sequence[Minibatch],
    objective: ObjectiveConfig,
    *,
    policy: Callable[[MicroBatch], PolicyOutputs],
    reference: Callable[[MicroBatch], PolicyOutputs],
    timeline: Timeline | None,
    on_progress: OnProgress,
    phases: PhaseClock,
    ranks: Ranks,
) -> list[Minibatch]:
    """The minibatches with everything that the objective needs from the start of the step filled in."""
    prepared: list[Minibatch] = []
    for m, minibatch in enumerate(minibatches):
        if objective.decides_over_the_step or (objective.uses_proximal and m > 0):
            with phases.phase("proximal"):
                batches = _reporting(minibatch, "proximal", m, on_progress)
                minibatch = [_with_proximal(batch, policy(batch)) for batch in batches]
        if objective.kl_coefficient > 0:
            with phases.phase("reference"):
                batches = _reporting(minibatch, "reference", m, on_progress)
                minibatch = [replace(batch, reference_logprobs_L=reference(batch).logprobs_L) for batch in batches]
        prepared.append(minibatch)
    with phases.phase("rating"):
        if timeline is not None:
            prepared = _over_the_step(prepared, lambda batches: rate_tokens(batches, timeline, objective, ranks))
        if objective.correction == "m2po":
            prepared = _over_the_step(prepared, lambda batches: mask_tokens(batches, ranks))
    return prepared


def rate_tokens(
    micro_batches: Sequence[MicroBatch], timeline: Timeline, objective: ObjectiveConfig, ranks: Ranks
) -> list[MicroBatch]:
    """Set advantages and returns of all tokens of a step, from the critic's values."""
    advantages, returns = advantages_and_returns(
        torch.cat([_known(batch.values_L).double().cpu() for batch in micro_batches]),
        torch.cat([_known(batch.places_L).cpu() for batch in micro_batches]),
        timeline,
        gamma=objective.gae_gamma,
        lam=objective.gae_lambda,
        ranks=ranks,
    )
    sizes = [batch.packed.num_loss_tokens for batch in micro_batches]
    advantages_by_batch = advantages.float().split(sizes)
    returns_by_batch = returns.float().split(sizes)
    return [
        replace(
            batch,
            advantages_L=advantages_L.to(batch.advantages_L.device),
            returns_L=returns_L.to(batch.advantages_L.device),
        )
        for batch, advantages_L, returns_L in zip(
            micro_batches, advantages_by_batch, returns_by_batch, strict=True
        )
    ]


def mask_tokens(micro_batches: Sequence[MicroBatch], ranks: Ranks) -> list[MicroBatch]:
    """Apply M2PO's decision over all tokens of a step."""
    if not micro_batches:
        return []
    drifts_by_batch = [
        drifts(_known(batch.proximal_logprobs_L) - batch.behaviour_logprobs_L, batch.advantages_L)
        for batch in micro_batches
    ]
    is_kept = decide_together(ranks, torch.cat(drifts_by_batch), keep_small_drifts)
    sizes = [batch.packed.num_loss_tokens for batch in micro_batches]
    return [replace(b, is_kept_L=kept_L) for b, kept_L in zip(micro_batches, is_kept.split(sizes), strict=True)]


def _with_proximal(batch: MicroBatch, outputs: PolicyOutputs) -> MicroBatch:
    return replace(batch, proximal_logprobs_L=outputs.logprobs_L, values_L=outputs.values_L)


def _over_the_step(
    minibatches: Sequence[Minibatch], decide: Callable[[list[MicroBatch]], list[MicroBatch]]
) -> list[Minibatch]:
    """Apply `decide` to the micro-batches of all minibatches together; their order is kept."""
    decided = iter(decide([batch for minibatch in minibatches for batch in minibatch]))
    return [[next(decided) for _ in minibatch] for minibatch in minibatches]


def _reporting(minibatch: Minibatch, activity: str, m: int, on_progress: OnProgress) -> Iterator[MicroBatch]:
    for n, batch in enumerate(minibatch):
        on_progress(activity, m, n)
        yield batch


def _known(values_L: Tensor | None) -> Tensor:
    assert values_L is not None
    return values_L
