"""What the nouns say about sampled and given tokens, and about the parts of a sample."""

import numpy as np

from freerun.types import Completion, Group, Prompt, Reward, Span, Trajectory, decoder_for, encode

SPANS = (Span(3, 2), Span(None, 3), Span(3, 1, call=1), Span(4, 1, call=1))


def completion_of(*spans: Span) -> Completion:
    num_tokens = sum(span.num_tokens for span in spans)
    ids, logprobs = np.arange(num_tokens, dtype=np.int32), np.zeros(num_tokens, dtype=np.float32)
    return Completion(token_ids=ids, logprobs=logprobs, spans=spans, finish_reason="stop", text="")


def trajectory_of(sample: int, part: int, reward: float, *spans: Span) -> Trajectory:
    prompt = Prompt(ordinal=0, key="", text="", answer="", token_ids=np.arange(3, dtype=np.int32))
    completion = completion_of(*(spans or (Span(0, 1),)))
    return Trajectory(
        prompt=prompt, sample=sample, part=part, completion=completion, reward=Reward(reward, reward > 0)
    )


def test_only_sampled_tokens_have_a_version_and_a_call() -> None:
    completion = completion_of(*SPANS)
    assert completion.is_sampled.tolist() == [True, True, False, False, False, True, True]
    assert completion.num_sampled == 4
    assert completion.versions.tolist() == [3, 3, 3, 4]
    assert completion.calls.tolist() == [0, 0, 1, 1]
    assert completion.oldest_version == 3


def test_a_completion_of_given_tokens_alone_has_no_versions() -> None:
    completion = completion_of(Span(None, 2))
    assert completion.num_sampled == 0
    assert completion.is_sampled.tolist() == [False, False]
    assert completion.versions.tolist() == []
    assert completion.versions.dtype == np.int32


def test_a_group_counts_samples_and_not_their_parts() -> None:
    trajectories = (trajectory_of(0, 0, 1.0), trajectory_of(1, 0, 0.5, Span(2, 1)), trajectory_of(0, 1, 1.0))
    group = Group(ordinal=0, start_version=0, trajectories=trajectories)
    assert group.num_samples == 2
    assert [[t.part for t in sample.parts] for sample in group.samples] == [[0, 1], [0]]
    assert [reward.value for reward in group.rewards] == [1.0, 0.5]


def test_given_tokens_and_parts_cross_a_socket() -> None:
    sent = trajectory_of(2, 1, 1.0, *SPANS)
    received: Trajectory = decoder_for(Trajectory).decode(encode(sent))
    assert received.part == 1
    assert received.completion.spans == SPANS
    np.testing.assert_array_equal(received.completion.is_sampled, sent.completion.is_sampled)
