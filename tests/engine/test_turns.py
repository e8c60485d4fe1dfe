"""Turns of sessions: exact over parked caches, loads, preemptions and branches; nothing is computed twice."""

from typing import Any

import msgspec
import numpy as np
import pytest
from engine_reference import logprobs_of_full_forward, logprobs_with_kept_cache
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import TINY, Letters, make_request, random_model, random_weights
from turns import Session, Table, assert_exact

from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine
from freerun.engine.pinned import PinnableEngine
from freerun.engine.sampler import streams

MAX_SEQUENCE_TOKENS = 100
WEIGHTS = {version: random_weights(100 + version) for version in range(4)}
ROOM = {"num_slots": 8, "cache_tokens": 400, "prefill_chunk_tokens": 16, "parked_tokens": 1000}


def make_engine(**overrides: object) -> Engine:
    config = EngineConfig(**(ROOM | overrides))  # type: ignore[arg-type]
    engine = Engine(random_model(0), config, text=Letters(), max_sequence_tokens=MAX_SEQUENCE_TOKENS, seed=7)
    engine.load(0, WEIGHTS[0])
    return engine


def make_table(**overrides: object) -> Table:
    return Table(make_engine(**overrides), WEIGHTS)


def make_sessions(count: int, *, prompt_length: int = 9, num_sampled: int = 6) -> list[Session]:
    def prompt(number: int) -> list[int]:
        tokens: list[int] = np.random.default_rng(number).integers(0, TINY.vocab_size, prompt_length).tolist()
        return tokens

    return [Session(number, prompt(number), num_sampled) for number in range(count)]


ROOMS = [
    {},
    {"parked_tokens": 0},
    {"parked_tokens": 60},
    {"num_slots": 2},
    {"prefill_chunk_tokens": 3},
    {"cache_tokens": 100},
]


@pytest.mark.parametrize("overrides", ROOMS)
def test_every_turn_of_a_session_equals_a_full_forward(overrides: dict[str, int]) -> None:
    table, sessions = make_table(**overrides), make_sessions(5, num_sampled=12)
    table.play(sessions, num_turns=4)
    assert_exact(sessions, WEIGHTS)
    stats = table.engine.stats()
    assert (stats.num_adopted_tokens > 0) == (overrides.get("parked_tokens") != 0)
    assert (stats.num_preemptions > 0) == ("cache_tokens" in overrides)


@pytest.mark.parametrize("overrides", ROOMS)
@pytest.mark.parametrize("kv_on_load", ["recompute", "drain"])
def test_a_load_between_or_within_turns_changes_the_version_and_stays_exact(
    kv_on_load: str, overrides: dict[str, int]
) -> None:
    table, sessions = make_table(kv_on_load=kv_on_load, **overrides), make_sessions(4, num_sampled=10)
    table.play(sessions, num_turns=4, load_at={4: 1, 11: 2, 17: 3}, drains=kv_on_load == "drain")
    assert_exact(sessions, WEIGHTS)
    turns = [turn for session in sessions for turn in session.turns]
    assert {version for turn in turns for version in turn.completion.versions.tolist()} == {0, 1, 2, 3}
    assert any(len(turn.completion.spans) > 1 for turn in turns) == (kv_on_load == "recompute")


def test_a_turn_computes_only_what_follows_the_turn_before() -> None:
    table, [session] = make_table(), make_sessions(1, prompt_length=20)
    table.play([session], num_turns=3, num_observed=4)
    stats = table.engine.stats()
    # Of each turn the last token was sampled but never computed; it precedes the observation.
    assert stats.num_prefill_tokens == 19 + 2 * 4
    assert stats.num_adopted_tokens == (20 + 5) + (20 + 6 + 4 + 5)
    assert stats.num_parked_tokens == 20 + 6 + 4 + 6 + 4 + 5


@pytest.mark.parametrize("kv_on_load", ["recompute", "drain"])
def test_a_load_drops_what_is_parked_unless_caches_are_kept(kv_on_load: str) -> None:
    table, [session] = make_table(kv_on_load=kv_on_load), make_sessions(1)
    table.play([session], num_turns=1)
    assert table.engine.stats().num_parked_tokens > 0
    table.load(1)
    assert table.engine.stats().num_parked_tokens == 0
    table.play([session], num_turns=2)
    assert table.engine.stats().num_adopted_tokens == 0
    assert_exact([session], WEIGHTS)


@pytest.mark.parametrize("load_at", [{3: 1}, {6: 1}, {7: 1}, {2: 1, 9: 2, 16: 3}])
def test_a_kept_cache_holds_what_each_version_computed_over_all_turns(load_at: dict[int, int]) -> None:
    table, sessions = make_table(kv_on_load="keep"), make_sessions(3)
    table.play(sessions, num_turns=4, load_at=load_at)
    for session in sessions:
        sampled = [logprob for turn in session.turns for logprob in turn.completion.logprobs.tolist()]
        turns = [(turn.request, turn.completion) for turn in session.turns]
        expected = logprobs_with_kept_cache(random_model(0), WEIGHTS, turns)
        np.testing.assert_allclose(sampled, expected, atol=1e-4)
        assert session.turns[-1].completion.versions[-1] == max(load_at.values())
    assert table.engine.stats().num_adopted_tokens > 0


def test_a_kept_and_parked_cache_serves_no_other_session() -> None:
    table, [first, second] = make_table(kv_on_load="keep"), make_sessions(2)
    second.prompt = first.prompt
    table.play([first], num_turns=1)
    table.load(1)
    # The same prompt again: the first session has it parked, from version 0. Both are computed at the same time.
    table.call(first, first.prompt)
    table.call(second, second.prompt)
    table.finish()
    assert table.engine.stats().num_adopted_tokens == len(first.prompt) - 1
    assert_exact([second], WEIGHTS)
    again = first.turns[1]
    under_the_new = logprobs_of_full_forward(random_model(0), WEIGHTS[1], again.request, again.completion)
    assert np.abs(again.completion.logprobs - under_the_new).max() > 1e-2


def test_nothing_is_adopted_from_another_session_with_the_same_words() -> None:
    table, [first, second] = make_table(), make_sessions(2)
    second.prompt = first.prompt
    table.play([first], num_turns=1)
    table.play([second], num_turns=1)
    assert table.engine.stats().num_adopted_tokens == 0


@pytest.mark.parametrize("load_at", [{}, {1: 1}])
def test_equal_first_prompts_of_a_groups_sessions_are_computed_once(load_at: dict[int, int]) -> None:
    table, sessions = make_table(prefill_chunk_tokens=16), make_sessions(6)
    prompt = np.random.default_rng(0).integers(0, TINY.vocab_size, 40).tolist()
    for session in sessions:
        session.prompt = prompt
    table.play(sessions, num_turns=1, load_at=load_at)
    # A load after the first chunk of 16 makes that one be computed again, and nothing else.
    assert table.engine.stats().num_prefill_tokens == 39 + (16 if load_at else 0)
    assert_exact(sessions, WEIGHTS)


def test_a_request_without_a_session_shares_its_prompt_with_other_requests_too() -> None:
    engine = make_engine(prefill_chunk_tokens=64)
    for request_id in (1, 2):
        prompt = np.arange(20, dtype=np.int32 if request_id == 1 else np.int64)
        engine.submit(msgspec.structs.replace(make_request(request_id, num_samples=2), prompt_token_ids=prompt))
    while engine.has_work:
        engine.step()
    assert engine.stats().num_prefill_tokens == 19


def test_replies_to_one_call_share_what_their_session_has_parked() -> None:
    table, [session] = make_table(), make_sessions(1)
    table.play([session], num_turns=1)
    before = table.engine.stats()
    prompt = session.continued(8)
    for _ in range(3):
        table.call(session, prompt)
    table.finish()
    after = table.engine.stats()
    assert after.num_prefill_tokens - before.num_prefill_tokens == 8
    assert after.num_adopted_tokens == 9 + 5
    assert len({tuple(turn.completion.token_ids.tolist()) for turn in session.turns[1:]}) == 3
    assert_exact([session], WEIGHTS)


def test_an_aborted_request_leaves_nothing_parked() -> None:
    table, [session] = make_table(), make_sessions(1)
    engine = table.engine
    request = session.next_request(request_id=0, prompt=session.prompt)
    # Some of its samples have finished, others have not even begun.
    engine.submit(msgspec.structs.replace(request, num_samples=12))
    while not engine.stats().num_parked_tokens:
        engine.step()
    engine.abort(0)
    assert (engine.stats().num_parked_tokens, engine.has_work) == (0, False)


def test_an_ended_session_leaves_nothing_parked() -> None:
    table, [first, second] = make_table(), make_sessions(2)
    table.play([first, second], num_turns=2)
    before = table.engine.stats().num_parked_tokens
    table.engine.end_session(first.number)
    assert table.engine.stats().num_parked_tokens == before // 2
    table.engine.end_session(second.number)
    table.engine.end_session(99)
    assert table.engine.stats().num_parked_tokens == 0


def test_an_evaluation_over_turns_has_one_version_while_newer_ones_are_loaded() -> None:
    config = EngineConfig(num_slots=8, cache_tokens=600, prefill_chunk_tokens=16)
    engine = PinnableEngine(
        Engine(random_model(0), config, text=Letters(), max_sequence_tokens=MAX_SEQUENCE_TOKENS, seed=7)
    )
    engine.load(0, {name: weight.clone() for name, weight in WEIGHTS[0].items()})
    engine.pin(0)
    table, sessions = Table(engine, WEIGHTS), make_sessions(6)
    for session in sessions[3:]:
        session.pinned_version = 0
    table.play(sessions, num_turns=3, load_at={5: 1, 9: 2})
    assert_exact(sessions, WEIGHTS)
    evaluated = [turn.completion for session in sessions[3:] for turn in session.turns]
    assert {version for completion in evaluated for version in completion.versions.tolist()} == {0}
    assert engine._pinned is not None
    assert engine._pinned.stats().num_adopted_tokens == 3 * ((9 + 5) + (9 + 6 + 4 + 5))
    assert engine.stats().num_adopted_tokens > engine._pinned.stats().num_adopted_tokens
    for session in sessions:
        engine.end_session(session.number)
    assert engine.stats().num_parked_tokens == engine._pinned.stats().num_parked_tokens == 0


def test_the_first_call_has_the_random_numbers_of_a_request_without_a_session() -> None:
    known = [0xE61D01FDE2D4992E, 0x3CAE9033F91F56E4, 0xAC26CD4A6AA85396, 0xF16EE0479317ABCD]
    assert streams(7, 3, 4).tolist() == known
    assert streams(7, 3, 2, first=2).tolist() == known[2:]
    assert streams(7, 3, 1, first=1, call=0).tolist() == known[1:2]


def test_the_random_numbers_of_different_calls_and_samples_are_unrelated() -> None:
    states = [
        state
        for ordinal in range(4)
        for sample in range(4)
        for call in range(8)
        for state in streams(7, ordinal, 1, first=sample, call=call).tolist()
    ]
    assert len(set(states)) == len(states)


def test_sample_k_of_a_group_of_sessions_draws_what_sample_k_of_one_request_draws() -> None:
    whole = make_request(1, num_samples=3)
    engine = make_engine()
    engine.submit(whole)
    for sample in range(3):
        engine.submit(
            msgspec.structs.replace(whole, request_id=2 + sample, num_samples=1, sample=sample, session=sample)
        )
    finished: dict[int, Any] = {}
    while engine.has_work:
        finished |= {request.request_id: completions for request, completions in engine.step()}
    for sample in range(3):
        [alone] = finished[2 + sample]
        assert alone.token_ids.tolist() == finished[1][sample].token_ids.tolist()


CALLS = st.tuples(
    st.just("call"),
    st.integers(0, 3),  # session
    st.integers(0, 5),  # which of its turns it continues
    st.sampled_from([0, 0, 0, 3, 9]),  # tokens that are cut off before it goes on elsewhere
    st.integers(0, 6),  # tokens observed
    st.integers(1, 8),  # tokens sampled
)
EVENTS = st.one_of(
    CALLS,
    CALLS,
    st.tuples(st.just("steps"), st.integers(1, 12)),
    st.tuples(st.just("load")),
    st.tuples(st.just("abort")),
    st.tuples(st.just("end"), st.integers(0, 3)),
)


def play_events(table: Table, sessions: list[Session], events: list[tuple[Any, ...]]) -> None:
    engine = table.engine
    assert isinstance(engine, Engine)
    for kind, *arguments in events:
        if kind == "call":
            number, which, num_cut, num_observed, num_sampled = arguments
            session = sessions[number]
            past = session.turns[which % len(session.turns)].tokens if session.turns else session.prompt
            past = past[: max(1, len(past) - num_cut)]
            prompt = past + [(number + session.num_calls) % TINY.vocab_size] * num_observed
            if len(prompt) + num_sampled <= MAX_SEQUENCE_TOKENS // 2:
                session.num_sampled = num_sampled
                table.call(session, prompt)
        elif kind == "steps":
            for _ in range(arguments[0]):
                table.step()
        elif kind == "load" and engine.version is not None and engine.version < max(WEIGHTS):
            while engine.config.kv_on_load == "drain" and not engine.drain():
                table.step()
            table.load(engine.version + 1)
        elif kind == "abort" and table.in_flight:
            request_id = next(iter(table.in_flight))
            del table.in_flight[request_id]
            engine.abort(request_id)
        elif kind == "end":
            engine.end_session(sessions[arguments[0]].number)
        assert engine.stats().num_parked_tokens <= engine.config.parked_tokens
    table.finish()


@pytest.mark.parametrize("kv_on_load", ["recompute", "drain"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    events=st.lists(EVENTS, min_size=3, max_size=30),
    num_slots=st.integers(1, 6),
    prefill_chunk_tokens=st.sampled_from([2, 7, 64]),
    cache_tokens=st.sampled_from([51, 80, 400]),
    parked_tokens=st.sampled_from([0, 20, 60, 1000]),
    has_equal_prompts=st.booleans(),
)
def test_whatever_overlaps_branches_ends_or_is_interrupted_every_logprob_is_exact(
    kv_on_load: str, events: list[tuple[Any, ...]], has_equal_prompts: bool, **room: int
) -> None:
    table, sessions = make_table(kv_on_load=kv_on_load, **room), make_sessions(4)
    if has_equal_prompts:
        for session in sessions:
            session.prompt = sessions[0].prompt
    play_events(table, sessions, events)
    assert not table.in_flight
    assert_exact(sessions, WEIGHTS)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    events=st.lists(EVENTS, min_size=3, max_size=30),
    num_slots=st.integers(1, 6),
    cache_tokens=st.sampled_from([51, 80, 400]),
    parked_tokens=st.sampled_from([20, 60, 1000]),
)
def test_a_session_that_begins_after_a_load_meets_no_kept_cache(
    events: list[tuple[Any, ...]], **room: int
) -> None:
    table, sessions = make_table(kv_on_load="keep", **room), make_sessions(4)
    newcomer = Session(99, sessions[0].prompt)
    for session in sessions[:2]:
        session.prompt = newcomer.prompt
    play_events(table, sessions, events)
    for session in sessions:  # and something runs beside it
        table.call(session, session.prompt)
    for _ in range(3):
        table.step()
    table.load(max(WEIGHTS))
    table.call(newcomer, newcomer.prompt)
    table.finish()
    assert_exact([newcomer], WEIGHTS)
