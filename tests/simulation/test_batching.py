"""The simulated engine against the real one: the same steps, preemptions, prefills and spans, token for token."""

import random
from collections.abc import Callable
from typing import Literal

import pytest
from tiny_models import Letters, make_request, random_model, random_weights

from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine
from freerun.engine.sequence import Sequence
from freerun.simulation.batching import BatchedSequences
from freerun.types import Request, Span

WEIGHTS = random_weights(100)
MAX_TOKENS = 60
Spans = dict[int, list[tuple[Span, ...]]]
"""Of each sample, by request."""
Facts = tuple[int, int, int, int, int, int, int, int]


class ForcedEngine(Engine):
    """The real engine, whose samples end at given lengths."""

    lengths: dict[int, list[int]]

    def _finish(self, sequence: Sequence) -> bool:
        group = sequence.group
        if sequence.num_sampled < self.lengths[group.request.request_id][group.sequences.index(sequence)]:
            return False
        sequence.finish_reason = "stop"
        self._scheduler.finish(sequence)
        return True


class Scenario:
    """Requests and loads, each before a step of this number."""

    def __init__(self, seed: int, kv_on_load: Literal["recompute", "keep", "drain"]) -> None:
        dice = random.Random(seed)
        self.config = EngineConfig(
            num_slots=dice.randint(2, 10),
            cache_tokens=dice.choice([70, 120, 400]),
            prefill_chunk_tokens=dice.choice([4, 16, 512]),
            kv_on_load=kv_on_load,
        )
        self.requests: dict[int, list[Request]] = {}
        self.lengths: dict[int, list[int]] = {}
        for number in range(dice.randint(3, 9)):
            num_samples = dice.randint(1, 5)
            request = make_request(
                number,
                prompt_length=dice.randint(1, 30),
                num_samples=num_samples,
                max_completion_tokens=30,
            )
            self.requests.setdefault(dice.choice([0, 0, dice.randint(0, 60)]), []).append(request)
            self.lengths[number] = [dice.randint(1, 30) for _ in range(num_samples)]
        self.loads = set(dice.sample(range(1, 80), 3))


def run_real(scenario: Scenario) -> tuple[Facts, Spans]:
    engine = ForcedEngine(random_model(0), scenario.config, text=Letters(), max_sequence_tokens=MAX_TOKENS, seed=7)
    engine.lengths = scenario.lengths
    engine.load(0, WEIGHTS)
    spans: Spans = {}

    def step() -> None:
        if engine.has_work:
            for request, completions in engine.step():
                spans[request.request_id] = [completion.spans for completion in completions]

    drive(
        scenario,
        submit=engine.submit,
        try_to_load=lambda version: (
            (scenario.config.kv_on_load != "drain" or engine.drain()) and engine.load(version, WEIGHTS) >= 0
        ),
        step=step,
        has_work=lambda: engine.has_work,
    )
    stats = engine.stats()
    return (
        stats.num_steps,
        stats.num_tokens,
        stats.num_preemptions,
        stats.num_prefill_tokens,
        stats.num_attended_tokens,
        stats.num_interrupts,
        stats.num_recomputed_tokens,
        stats.num_loads - 1,
    ), spans


def run_simulated(scenario: Scenario) -> tuple[Facts, Spans]:
    batch = BatchedSequences(scenario.config)
    batch.version = 0
    spans: Spans = {}

    def try_to_load(version: int) -> bool:
        batch.is_draining = scenario.config.kv_on_load == "drain"
        if batch.is_draining and batch.has_begun:
            return False
        return batch.load(version) >= 0

    def step() -> None:
        if batch.groups and (planned := batch.plan()) is not None:
            for group in batch.advance(planned, 1):
                spans[group.request.request_id] = group.spans()

    drive(
        scenario,
        submit=lambda request: batch.submit(request, scenario.lengths[request.request_id]),
        try_to_load=try_to_load,
        step=step,
        has_work=lambda: bool(batch.groups),
    )
    return (
        batch.num_steps,
        batch.num_tokens,
        batch.num_preemptions,
        batch.num_prefill_tokens,
        batch.num_attended_tokens,
        batch.num_interrupts,
        batch.num_recomputed_tokens,
        batch.num_loads,
    ), spans


def drive(
    scenario: Scenario,
    *,
    submit: Callable[[Request], None],
    try_to_load: Callable[[int], bool],
    step: Callable[[], None],
    has_work: Callable[[], bool],
) -> None:
    """One turn after another, as the worker's loop: a load that must wait is tried again before each step."""
    version, is_pending = 0, False
    for number in range(2000):
        for request in scenario.requests.get(number, []):
            submit(request)
        if number in scenario.loads and not is_pending:
            version, is_pending = version + 1, True
        if is_pending:
            is_pending = not try_to_load(version)
        step()
        if number > 80 and not has_work() and not is_pending:
            return
    raise AssertionError("the engine makes no progress")


@pytest.mark.parametrize("kv_on_load", ["recompute", "keep", "drain"])
@pytest.mark.parametrize("seed", range(8))
def test_steps_preemptions_and_spans_are_those_of_the_real_engine(
    seed: int, kv_on_load: Literal["recompute", "keep", "drain"]
) -> None:
    scenario = Scenario(seed, kv_on_load)
    facts, spans = run_real(scenario)
    assert run_simulated(scenario) == (facts, spans)


def test_the_scenarios_preempt_interrupt_and_recompute() -> None:
    """Or the comparison above would compare nothing."""
    facts = [run_simulated(Scenario(seed, "recompute"))[0] for seed in range(8)]
    totals = [sum(column) for column in zip(*facts, strict=True)]
    assert all(total > 10 for total in totals), totals


@pytest.mark.parametrize("seed", range(30))
def test_many_steps_at_once_are_the_same_as_one_by_one(seed: int) -> None:
    scenario = Scenario(seed, "keep")

    def run(at_most: Callable[[int], int]) -> tuple[list[tuple[int, int, list[tuple[Span, ...]]]], int, int, int]:
        batch = BatchedSequences(scenario.config)
        batch.version = 0
        for requests in scenario.requests.values():
            for request in requests:
                batch.submit(request, scenario.lengths[request.request_id])
        finished = []
        while (planned := batch.plan()) is not None:
            for group in batch.advance(planned, at_most(planned.num_steps)):
                finished.append((batch.num_steps, group.request.request_id, group.spans()))
        return finished, batch.num_steps, batch.num_attended_tokens, batch.num_preemptions

    dice = random.Random(seed)
    one_by_one = run(lambda num_steps: 1)
    assert run(lambda num_steps: num_steps) == one_by_one
    assert run(lambda num_steps: dice.randint(1, num_steps)) == one_by_one


def test_an_aborted_request_leaves_nothing_behind() -> None:
    scenario = Scenario(1, "recompute")
    batch = BatchedSequences(scenario.config)
    batch.version = 0
    for requests in scenario.requests.values():
        for request in requests:
            batch.submit(request, scenario.lengths[request.request_id])
    for _ in range(5):
        planned = batch.plan()
        assert planned is not None
        batch.advance(planned, 1)
    for request_id in list(batch.groups):
        batch.abort(request_id)
    batch.abort(12345)
    assert (batch.plan(), batch.cache_tokens_used, list(batch.waiting), batch.running) == (None, 0, [], {})
