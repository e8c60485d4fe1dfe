"""Products that are padded where they must be: a row's bits do not depend on what is computed beside it."""

from collections.abc import Callable

import numpy as np
import pytest
from tiny_models import Letters, make_request, random_model, random_weights
from torch import Tensor

from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine
from freerun.model import steady_rows as module
from freerun.model.steady_rows import steady_rows
from freerun.types import Completion

WEIGHTS = random_weights(1)
REQUESTS = [
    make_request(1, num_samples=1, max_completion_tokens=30),
    make_request(2, num_samples=2, prompt_length=3, max_completion_tokens=12),
    make_request(3, num_samples=6, prompt_length=2, max_completion_tokens=20),
]


def changing_below(number: int) -> Callable[[Tensor], Tensor]:
    """A product whose results depend on its number of rows if there are fewer than this."""
    return lambda x_RC: x_RC + 1.0 / len(x_RC) if len(x_RC) < number else x_RC


@pytest.mark.parametrize(("number", "expected"), [(0, 1), (2, 2), (4, 4), (5, 1), (1000, 1)])
def test_the_least_number_of_rows_that_is_enough_is_found_or_none(
    monkeypatch: pytest.MonkeyPatch, number: int, expected: int
) -> None:
    monkeypatch.setattr(module, "_products", lambda model: iter([(changing_below(number), 8)]))
    assert steady_rows(random_model(0)) == expected


def completions(min_rows: int, chosen: list[int]) -> dict[tuple[int, int], Completion]:
    engine = Engine(random_model(0), EngineConfig(num_slots=16), text=Letters(), max_sequence_tokens=100, seed=7)
    engine.load(0, WEIGHTS)
    engine._min_rows = min_rows
    for request in REQUESTS:
        if request.request_id in chosen:
            engine.submit(request)
    found: dict[tuple[int, int], Completion] = {}
    while engine.has_work:
        for request, of_group in engine.step():
            found |= {(request.request_id, sample): each for sample, each in enumerate(of_group)}
    return found


def test_padding_changes_no_token_and_no_logprob_by_more_than_rounding() -> None:
    plain, padded = completions(1, [1, 2, 3]), completions(4, [1, 2, 3])
    assert plain.keys() == padded.keys()
    for key, completion in plain.items():
        assert completion.token_ids.tolist() == padded[key].token_ids.tolist()
        np.testing.assert_allclose(completion.logprobs, padded[key].logprobs, atol=1e-5)


def test_an_engine_probes_its_products_unless_it_is_asked_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_products", lambda model: iter([(changing_below(3), 8)]))
    for asked, expected in ((False, 1), (True, 3)):
        config = EngineConfig(num_slots=2, steady_rows=asked)
        engine = Engine(random_model(0), config, text=Letters(), max_sequence_tokens=100, seed=7)
        engine.load(0, WEIGHTS)
        assert engine._min_rows == engine.twin()._min_rows == expected


def test_padded_rows_are_not_counted() -> None:
    engine = Engine(random_model(0), EngineConfig(num_slots=2), text=Letters(), max_sequence_tokens=100, seed=7)
    engine.load(0, WEIGHTS)
    engine._min_rows = 4
    engine.submit(make_request(1, prompt_length=2, max_completion_tokens=5))
    while engine.has_work:
        engine.step()
    assert engine.stats().num_tokens == 5
    assert engine.stats().num_prefill_tokens == 1
