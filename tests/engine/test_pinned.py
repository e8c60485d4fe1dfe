"""An evaluation has one version, whatever is loaded while it runs, and rollouts go on beside it."""

from typing import Any

import msgspec
import numpy as np
import pytest
from engine_reference import logprobs_of_full_forward
from tiny_models import Letters, make_request, random_model, random_weights

from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine
from freerun.engine.pinned import PinnableEngine
from freerun.errors import RequestError, WeightsError
from freerun.types import Completion, Request

WEIGHTS = {version: random_weights(100 + version) for version in range(4)}
LIVE = [make_request(i, num_samples=2, prompt_length=4 + i, max_completion_tokens=40) for i in range(3)]
EVALUATION = [
    msgspec.structs.replace(
        make_request(100 + i, num_samples=3, prompt_length=6, max_completion_tokens=20, ordinal=-1 - i),
        pinned_version=1,
    )
    for i in range(2)
]


def make_engine(num_slots: int = 8) -> PinnableEngine:
    config = EngineConfig(num_slots=num_slots, cache_tokens=600, prefill_chunk_tokens=16)
    engine = PinnableEngine(Engine(random_model(0), config, text=Letters(), max_sequence_tokens=100, seed=7))
    engine.load(1, {name: weight.clone() for name, weight in WEIGHTS[1].items()})
    return engine


def test_pinned_tokens_are_of_one_version_while_live_ones_go_on_under_newer_weights() -> None:
    engine = make_engine()
    buffer = {name: weight.clone() for name, weight in WEIGHTS[1].items()}
    engine.load(1, buffer)
    engine.pin(1)
    for request in (*LIVE, *EVALUATION):
        engine.submit(request)
    finished: dict[int, tuple[Request, tuple[Completion, ...]]] = {}
    live_tokens = []
    step = 0
    while engine.has_work:
        if step in (10, 20):
            engine.load(step // 10 + 1, WEIGHTS[step // 10 + 1])
        if step == 20:  # two versions on, the trainer writes into the buffer that version 1 was read from
            for weight in buffer.values():
                weight.zero_()
        finished |= {request.request_id: (request, done) for request, done in engine.step()}
        live_tokens.append(engine._live.stats().num_tokens)
        step += 1
    assert finished.keys() == {0, 1, 2, 100, 101}
    for request, completions in finished.values():
        for completion in completions:
            if request.pinned_version == 1:
                assert set(completion.versions.tolist()) == {1}
                expected = logprobs_of_full_forward(random_model(0), WEIGHTS[1], request, completion)
                np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
            else:
                assert set(completion.versions.tolist()) == {1, 2, 3}
    # While both have work every other step is a live one: nobody waits for the evaluation.
    assert all(after > before for before, after in zip(live_tokens[4:30:2], live_tokens[6:32:2], strict=True))


def test_what_is_sampled_live_does_not_depend_on_an_evaluation_beside_it() -> None:
    def sample(*, is_evaluating: bool) -> dict[int, list[list[int]]]:
        engine = make_engine()
        if is_evaluating:
            engine.pin(1)
        for request in (*LIVE, *(EVALUATION if is_evaluating else ())):
            engine.submit(request)
        finished: dict[int, Any] = {}
        while engine.has_work:
            finished |= {r.request_id: [c.token_ids.tolist() for c in done] for r, done in engine.step()}
        return {request_id: tokens for request_id, tokens in finished.items() if request_id < 100}

    assert sample(is_evaluating=True) == sample(is_evaluating=False)


def test_letting_go_of_a_version_gives_up_its_requests_and_keeps_the_counts() -> None:
    engine = make_engine()
    engine.pin(1)
    engine.submit(EVALUATION[0])
    for _ in range(6):
        engine.step()
    before = engine.stats()
    assert before.num_evaluating == 3
    assert before.num_tokens > 0
    engine.unpin()
    assert not engine.has_work
    after = engine.stats()
    assert (after.num_tokens, after.num_steps, after.num_evaluating) == (before.num_tokens, before.num_steps, 0)
    with pytest.raises(RequestError, match="version 1 is not pinned here"):
        engine.submit(EVALUATION[0])


def test_only_the_version_in_use_can_be_pinned() -> None:
    with pytest.raises(WeightsError, match="version 5 cannot be pinned: the engine holds 1"):
        make_engine().pin(5)
