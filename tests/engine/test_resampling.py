"""Recorded completions are sampled again with the same tokens; one that differs is named, and how close it was."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tiny_models import TINY, Letters, make_request, random_model, random_weights

from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine
from freerun.engine.resampling import RecordedCall, Resampled, Resampling
from freerun.model.steady_rows import MOST_PADDED, _products, _steady_from
from freerun.types import Completion, Request, Sampling

WEIGHTS = {version: random_weights(100 + version) for version in range(4)}
LIMIT = 30
LOADS = {9: 1, 14: 2, 22: 3}


def requests(**sampling: Any) -> list[Request]:
    return [
        make_request(1, prompt_length=5, num_samples=4, max_completion_tokens=LIMIT, **sampling),
        make_request(2, prompt_length=1, num_samples=3, max_completion_tokens=9, **sampling),
        make_request(3, prompt_length=14, num_samples=5, max_completion_tokens=25, **sampling),
    ]


def record(config: EngineConfig, load_at: dict[int, int], asked: list[Request]) -> list[RecordedCall]:
    """What an engine samples that loads new weights before some of its steps."""
    engine = Engine(random_model(0), config, text=Letters(), max_sequence_tokens=100, seed=7)
    engine.load(0, WEIGHTS[0])
    for request in asked:
        engine.submit(request)
    calls: list[RecordedCall] = []
    step = 0
    while engine.has_work:
        if step in load_at:
            engine.load(load_at[step], WEIGHTS[load_at[step]])
        for request, completions in engine.step():
            calls += recorded(request, completions)
        step += 1
    return calls


def recorded(request: Request, completions: tuple[Completion, ...]) -> Iterator[RecordedCall]:
    for index, completion in enumerate(completions):
        yield RecordedCall(
            ordinal=request.ordinal,
            sample=index,
            part=0,
            call=0,
            prompt_token_ids=request.prompt_token_ids,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            versions=completion.versions,
        )


def sample_again(config: EngineConfig, calls: list[RecordedCall], **sampling: float) -> list[Resampled]:
    resampling = Resampling(
        random_model(0),
        config,
        text=Letters(),
        max_sequence_tokens=100,
        seed=7,
        sampling=Sampling(max_completion_tokens=LIMIT, **sampling),  # type: ignore[arg-type]
        calls=calls,
    )
    for version, weights in WEIGHTS.items():
        resampling.load(version, weights)
    return resampling.results


def has_steady_rows() -> bool:
    """Whether a row of a product has the same bits among four and more rows on this processor."""
    model = random_model(0)
    return max(_steady_from(*product, model) for product in _products(model)) <= MOST_PADDED


@pytest.mark.parametrize(
    ("overrides", "has_bits"),
    [
        ({}, True),
        ({"kv_on_load": "keep"}, False),  # which tokens were computed one by one is not recorded
        ({"num_slots": 3}, True),  # siblings do not run in step
        ({"prefill_chunk_tokens": 3}, True),
        ({"cache_tokens": 120}, False),  # some are preempted, and recomputed under the same version
    ],
)
def test_interrupted_completions_are_sampled_again_with_their_tokens(
    overrides: dict[str, object], has_bits: bool
) -> None:
    settings: dict[str, object] = {"num_slots": 16, "cache_tokens": 800, "prefill_chunk_tokens": 16}
    config = EngineConfig(**(settings | overrides))  # type: ignore[arg-type]
    calls = record(config, LOADS, requests())
    assert sum(call.is_interrupted for call in calls) >= 3
    results = sample_again(config, calls)
    assert len(results) == 12
    for result in results:
        assert result.is_same, result
        assert result.num_drawn == len(result.call.token_ids)
        assert result.largest_difference < 1e-5
        if has_bits and has_steady_rows():
            assert result.num_equal_logprobs == result.num_drawn, result


def test_a_completion_has_the_same_bits_whoever_computed_its_prompt_and_in_which_chunks() -> None:
    asked = [*requests(), make_request(4, prompt_length=60, num_samples=2, max_completion_tokens=LIMIT)]
    # Another group with the prompt of the first, which it computes for both.
    twin = msgspec.structs.replace(asked[0], request_id=9, ordinal=9)
    config = EngineConfig(num_slots=16, prefill_chunk_tokens=7)
    calls = record(config, LOADS, [twin, *asked])
    for ordinal in (1, 2, 3, 4, 9):
        for again in (config, replace(config, prefill_chunk_tokens=512)):
            of_group = [call for call in calls if call.ordinal == ordinal]
            for result in sample_again(again, of_group):
                assert result.is_same
                assert result.num_equal_logprobs == result.num_drawn or not has_steady_rows()


def test_temperature_top_k_and_top_p_are_as_recorded() -> None:
    sampling = {"temperature": 0.6, "top_p": 0.8, "top_k": 9}
    calls = record(EngineConfig(num_slots=16), LOADS, requests(**sampling))
    assert all(result.is_same for result in sample_again(EngineConfig(num_slots=16), calls, **sampling))
    assert not all(result.is_same for result in sample_again(EngineConfig(num_slots=16), calls))


def test_each_group_alone_and_in_any_order_is_sampled_as_it_was_among_the_others() -> None:
    config = EngineConfig(num_slots=5, cache_tokens=120)
    calls = record(config, LOADS, requests())
    for chosen in ([1], [3], [3, 2, 1]):
        of_groups = [call for ordinal in chosen for call in calls if call.ordinal == ordinal]
        assert all(result.is_same for result in sample_again(config, of_groups))


def test_a_token_that_differs_is_named_with_how_close_the_call_was() -> None:
    config = EngineConfig(num_slots=16)
    calls = record(config, LOADS, requests())
    place = 5
    original = int(calls[0].token_ids[place])
    tokens = calls[0].token_ids.copy()
    tokens[place] = (original + 1) % TINY.vocab_size
    damaged, *others = sample_again(config, [replace(calls[0], token_ids=tokens), *calls[1:]])
    other = damaged.first_other
    assert other is not None
    assert (other.position, other.version) == (place, calls[0].versions[place])
    assert (other.recorded, other.drawn) == (tokens[place], original)
    assert other.drawn_probability == pytest.approx(np.exp(calls[0].logprobs[place]), rel=1e-4)
    assert 0 < other.distance <= other.drawn_probability
    assert damaged.num_drawn == len(tokens)
    assert not damaged.is_same
    assert all(result.is_same for result in others)


def test_a_token_next_to_the_drawn_one_is_as_far_as_the_random_number_is_from_their_edge() -> None:
    config = EngineConfig(num_slots=16)
    call = record(config, {}, requests())[0]
    tokens = call.token_ids.copy()
    tokens[0] += 1 if tokens[0] + 1 < TINY.vocab_size else -1
    (result,) = sample_again(config, [replace(call, token_ids=tokens)])
    assert result.first_other is not None
    assert result.first_other.distance < result.first_other.drawn_probability


def test_under_other_weights_the_tokens_are_others() -> None:
    config = EngineConfig(num_slots=16)
    calls = record(config, LOADS, requests())
    moved = [replace(call, versions=(call.versions + 1) % 4) for call in calls if not call.is_interrupted]
    assert moved
    assert not any(result.is_same for result in sample_again(config, moved))


def test_tokens_given_between_the_calls_of_a_session_are_not_drawn() -> None:
    config = EngineConfig(num_slots=16)
    first = make_request(1, prompt_length=5, max_completion_tokens=LIMIT)
    [call] = record(config, {}, [first])
    given = np.concatenate((call.prompt_token_ids, call.token_ids, np.array([3, 4, 5], np.int32)))
    engine = Engine(random_model(0), config, text=Letters(), max_sequence_tokens=100, seed=7)
    engine.load(1, WEIGHTS[1])
    asked = Request(
        request_id=2, ordinal=1, prompt_token_ids=given, num_samples=1, sampling=first.sampling, call=1, session=8
    )
    engine.submit(asked)
    while engine.has_work:
        for request, completions in engine.step():
            [second] = recorded(request, completions)
    results = sample_again(config, [call, replace(second, call=1)])
    assert [result.is_same for result in results] == [True, True]
    results = sample_again(config, [call, second])
    assert [result.is_same for result in results] == [True, False]
