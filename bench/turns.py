"""Sessions of several turns: parked caches vs. computing each prompt from its first token.

Both sides are the same engine with SmolLM2 in fp32 on one thread; they differ in `engine.parked_tokens`. Sixteen
sessions are under way, and the next turn of each is submitted as soon as the one before has finished. Lengths are
fixed, so both sides sample the same number of tokens in the same number of turns.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.harness import Result, alternately, record, show
from bench.loads import NoText
from bench.models import smollm2
from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine
from freerun.model.checkpoint import load_model
from freerun.model.decoder import Decoder
from freerun.types import Request, Sampling

NUM_SESSIONS = 16
PROMPT_TOKENS, SAMPLED_TOKENS, OBSERVED_TOKENS = 160, 16, 24
BOUNDS = {6: (2.0, 2.5), 16: (4.0, 5.0)}
"""What must be reached with so many turns a session, and what is hoped for."""
MAX_COPIES_PERCENT, COPIES_AIM = 2.0, 1.0
PARKED_TOKENS = 32_768


@dataclass(frozen=True)
class Played:
    """What one pass over all sessions took."""

    seconds: float
    copy_seconds: float
    num_turns: int
    num_prefill_tokens: int
    num_adopted_tokens: int

    @property
    def turns_per_second(self) -> float:
        return self.num_turns / self.seconds


def measure(repetitions: int) -> None:
    torch.set_num_threads(1)
    model = load_model(smollm2())
    play(model, num_turns=2, parked_tokens=PARKED_TOKENS)  # to warm it up
    record("turns", *(result for num_turns in BOUNDS for result in compare(model, num_turns, repetitions)))


def compare(model: Decoder, num_turns: int, repetitions: int) -> tuple[Result, Result]:
    """The speed with and without parked caches, and what the copies cost."""
    show(f"{num_turns} turns a session")
    parked: list[Played] = []
    plain: list[Played] = []

    def side(played: list[Played], parked_tokens: int) -> Callable[[], float]:
        def repetition() -> float:
            played.append(play(model, num_turns=num_turns, parked_tokens=parked_tokens))
            return played[-1].turns_per_second

        return repetition

    ours, theirs = alternately(
        side(parked, PARKED_TOKENS), side(plain, 0), repetitions=repetitions, warms_up=False
    )
    settings: dict[str, Any] = {
        "num_sessions": NUM_SESSIONS,
        "prompt_tokens": PROMPT_TOKENS,
        "sampled_tokens": SAMPLED_TOKENS,
        "observed_tokens": OBSERVED_TOKENS,
        "prefilled": {"ours": parked[0].num_prefill_tokens, "theirs": plain[0].num_prefill_tokens},
        "adopted": parked[0].num_adopted_tokens,
    }
    work = f"sessions of {num_turns} turns, SmolLM2 fp32, 1 thread"
    speed = Result(
        claim=f"{work}, turns/s with parked caches",
        peer="computing each prompt from its first token",
        at_least=BOUNDS[num_turns][0],
        aim=BOUNDS[num_turns][1],
        unit="x",
        ours=ours,
        theirs=theirs,
        settings=settings,
    )
    copies = Result(
        claim=f"{work}, copies of parked caches, share of the time",
        peer="",
        at_least=MAX_COPIES_PERCENT,
        aim=COPIES_AIM,
        unit=" %",
        ours=[100 * each.copy_seconds / each.seconds for each in parked],
        theirs=[],
        lower_is_better=True,
        settings=settings,
    )
    return speed, copies


def play(model: Decoder, *, num_turns: int, parked_tokens: int) -> Played:
    """All turns of all sessions."""
    engine = make_engine(model, num_turns, parked_tokens)
    copying = Stopwatch()
    engine._parked.park = copying.timed(engine._parked.park)  # type: ignore[method-assign]
    engine._parked.adopt = copying.timed(engine._parked.adopt)  # type: ignore[method-assign]
    # The same seed for both sides: the same prompts and observations.
    rng = np.random.default_rng(0)
    given = rng.integers(1_000, 40_000, (NUM_SESSIONS, num_turns, max(PROMPT_TOKENS, OBSERVED_TOKENS)))
    contexts = [given[session, 0, :PROMPT_TOKENS].tolist() for session in range(NUM_SESSIONS)]
    begin = time.perf_counter()
    for session, context in enumerate(contexts):
        engine.submit(turn_of(session, 0, context))
    while engine.has_work:
        for request, (completion,) in engine.step():
            session, call = request.ordinal, request.call + 1
            if call < num_turns:
                observed = given[session, call, :OBSERVED_TOKENS]
                contexts[session] += [*completion.token_ids.tolist(), *observed.tolist()]
                engine.submit(turn_of(session, call, contexts[session]))
            else:
                engine.end_session(session)
    seconds, stats = time.perf_counter() - begin, engine.stats()
    expected = NUM_SESSIONS * num_turns * SAMPLED_TOKENS
    if stats.num_tokens != expected:
        raise SystemExit(f"asked for {expected} tokens, got {stats.num_tokens}")
    return Played(
        seconds, copying.seconds, NUM_SESSIONS * num_turns, stats.num_prefill_tokens, stats.num_adopted_tokens
    )


def make_engine(model: Decoder, num_turns: int, parked_tokens: int) -> Engine:
    longest = PROMPT_TOKENS + num_turns * (SAMPLED_TOKENS + OBSERVED_TOKENS)
    config = EngineConfig(num_slots=NUM_SESSIONS, parked_tokens=parked_tokens)
    engine = Engine(model, config, text=NoText(), max_sequence_tokens=longest, seed=0)
    engine.load(0, {name: parameter.data for name, parameter in model.named_parameters()})
    return engine


def turn_of(session: int, call: int, context: list[int]) -> Request:
    return Request(
        request_id=call * NUM_SESSIONS + session,
        ordinal=session,
        prompt_token_ids=np.array(context, dtype=np.int32),
        num_samples=1,
        call=call,
        session=session,
        sampling=Sampling(max_completion_tokens=SAMPLED_TOKENS),
    )


class Stopwatch:
    """Adds up the time inside some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - begin

        return call
