"""Packed layouts checked by hand: what the decoder reads, where it predicts, and what it predicts there."""

import numpy as np
from training_batches import make_groups, rated, trajectories_of

from freerun.model.attention import Family
from freerun.trainer.batch import pack_sequences, pack_trajectories


def test_sequences_are_laid_end_to_end_without_their_last_tokens() -> None:
    packed = pack_sequences([(np.array([10, 11, 12]), np.array([20, 21])), (np.array([13]), np.array([22]))])
    assert packed.token_ids_T.tolist() == [10, 11, 12, 20, 13]
    assert packed.positions_T.tolist() == [0, 1, 2, 3, 0]
    assert packed.families == (Family(4), Family(1))
    assert packed.predictors_L.tolist() == [2, 3, 4]
    assert packed.targets_L.tolist() == [20, 21, 22]


def test_a_sampled_pad_or_end_token_is_trained_on_like_any_other() -> None:
    packed = pack_sequences([(np.array([0, 0]), np.array([0, 5, 0, 0]))])
    assert packed.targets_L.tolist() == [0, 5, 0, 0]
    assert packed.predictors_L.tolist() == [1, 2, 3, 4]


def test_every_loss_token_carries_its_own_logprob_version_advantage_and_weight() -> None:
    trajectories = trajectories_of(make_groups())[:3]
    advantages, weights = [1.0, -2.0, 0.5], [0.25, 0.5, 0.125]
    micro_batch = pack_trajectories([rated(*row) for row in zip(trajectories, advantages, weights, strict=True)])
    assert micro_batch.call_lengths_K.tolist() == [len(t.completion.token_ids) for t in trajectories]
    rows = zip(
        micro_batch.packed.targets_L.tolist(),
        micro_batch.behaviour_logprobs_L.tolist(),
        micro_batch.versions_L.tolist(),
        micro_batch.advantages_L.tolist(),
        micro_batch.token_weights_L.tolist(),
        strict=True,
    )
    expected = [
        (token, logprob, version, advantage, weight)
        for t, advantage, weight in zip(trajectories, advantages, weights, strict=True)
        for token, logprob, version in zip(
            t.completion.token_ids.tolist(),
            t.completion.logprobs.tolist(),
            t.completion.versions.tolist(),
            strict=True,
        )
    ]
    assert list(rows) == expected


def test_neighbours_with_the_same_prompt_share_it() -> None:
    prompt = np.array([10, 11, 12])
    packed = pack_sequences([(prompt, np.array([20, 21, 22])), (prompt.copy(), np.array([30, 31]))])
    assert packed.families == (Family(3, (2, 1)),)
    assert packed.token_ids_T.tolist() == [10, 11, 12, 20, 21, 30]
    assert packed.positions_T.tolist() == [0, 1, 2, 3, 4, 3]
    assert packed.predictors_L.tolist() == [2, 3, 4, 2, 5]
    assert packed.targets_L.tolist() == [20, 21, 22, 30, 31]
