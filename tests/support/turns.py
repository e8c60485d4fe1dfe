"""Sessions of several turns on an engine: each prompt continues an earlier turn, or branches off it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from engine_reference import logprobs_of_full_forward
from tiny_models import TINY, random_model
from torch import Tensor

from freerun.engine.engine import Engine
from freerun.engine.pinned import PinnableEngine
from freerun.types import Completion, Request, Sampling


@dataclass(frozen=True)
class Turn:
    """A request and what was sampled for it."""

    request: Request
    completion: Completion

    @property
    def tokens(self) -> list[int]:
        return [*self.request.prompt_token_ids.tolist(), *self.completion.token_ids.tolist()]


@dataclass
class Session:
    """What one session has asked for, and got."""

    number: int
    prompt: list[int]
    num_sampled: int = 6
    """Tokens of a turn."""
    pinned_version: int | None = None
    num_calls: int = 0
    turns: list[Turn] = field(default_factory=list)

    def next_request(self, *, request_id: int, prompt: list[int]) -> Request:
        request = Request(
            request_id=request_id,
            ordinal=self.number,
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            num_samples=1,
            call=self.num_calls,
            session=self.number,
            sampling=Sampling(max_completion_tokens=self.num_sampled),
            pinned_version=self.pinned_version,
        )
        self.num_calls += 1
        return request

    def continued(self, num_observed: int) -> list[int]:
        """The prompt of its next turn: the whole conversation, and an observation that only this session makes."""
        if not self.turns:
            return self.prompt
        rng = np.random.default_rng((self.number, self.num_calls))
        return [*self.turns[-1].tokens, *rng.integers(0, TINY.vocab_size, num_observed).tolist()]


class Table:
    """An engine and the sessions that are played on it; `weights` has what a version loads."""

    def __init__(self, engine: Engine | PinnableEngine, weights: Mapping[int, Mapping[str, Tensor]]) -> None:
        self.engine = engine
        self.weights = weights
        self.num_requests = 0
        self.in_flight: dict[int, Session] = {}

    def call(self, session: Session, prompt: list[int]) -> None:
        """Submit a request of the session."""
        request = session.next_request(request_id=self.num_requests, prompt=prompt)
        self.num_requests += 1
        self.engine.submit(request)
        self.in_flight[request.request_id] = session

    def step(self) -> None:
        for request, (completion,) in self.engine.step() if self.engine.has_work else ():
            self.in_flight.pop(request.request_id).turns.append(Turn(request, completion))

    def finish(self) -> None:
        """Step until nothing is left to do."""
        for _ in range(2000):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine makes no progress")

    def load(self, version: int) -> None:
        self.engine.load(version, self.weights[version])

    def play(
        self,
        sessions: list[Session],
        *,
        num_turns: int,
        load_at: Mapping[int, int] | None = None,
        num_observed: int = 4,
        drains: bool = False,
    ) -> None:
        """All turns of all sessions, which overlap; `load_at` maps a step to the version wanted from it on."""
        wanted: list[int] = []
        for step in range(2000):
            for session in sessions:
                if session.num_calls < num_turns and session not in self.in_flight.values():
                    self.call(session, session.continued(num_observed))
            wanted += [load_at[step]] if load_at and step in load_at else []
            # When drained, the engine loads what is wanted as soon as its sequences have finished.
            if wanted and (not drains or self.engine.drain()):
                self.load(wanted.pop(0))
            self.step()
            if not self.engine.has_work and all(len(session.turns) == num_turns for session in sessions):
                return
        raise AssertionError("the engine makes no progress")


def assert_exact(sessions: list[Session], weights: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Every token's logprob is that of a full forward under the version that labels it."""
    for turn in (turn for session in sessions for turn in session.turns):
        completion = turn.completion
        assert len(completion.token_ids) == len(completion.logprobs) == len(completion.versions)
        for version in set(completion.versions.tolist()):
            mine = completion.versions == version
            expected = logprobs_of_full_forward(random_model(0), weights[version], turn.request, completion)
            np.testing.assert_allclose(completion.logprobs[mine], expected[mine], atol=1e-4)
