"""Random sessions of several calls, and the same session as different sets of sequences.

A session is a list of calls. Each continues an earlier one, or the prompt, after some given tokens:

    prompt ── call 0 ── given ── call 1 ── given ── call 3
                 └───── given ── call 2

as_calls:      one sequence per call
as_sequences:  one per leaf; a call that several leaves share is sampled in the first, and is given in the others
"""

from dataclasses import dataclass

import numpy as np
from training_batches import VERSION, VOCABULARY

from freerun.types import Completion, Group, Prompt, Reward, Span, Trajectory


@dataclass(frozen=True)
class Call:
    """What one call was given after the call it continues, and what it sampled."""

    parent: int | None
    """None continues the prompt itself."""
    given: list[int]
    token_ids: list[int]
    logprobs: list[float]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Session:
    prompt: Prompt
    sample: int
    reward: Reward
    calls: list[Call]

    def path(self, call: int) -> list[int]:
        """The calls that lead to this one, and itself."""
        parent = self.calls[call].parent
        return [*(self.path(parent) if parent is not None else ()), call]

    def context(self, call: int) -> list[int]:
        """All tokens the policy saw when it made this call."""
        parent = self.calls[call].parent
        before = self.prompt.token_ids.tolist() if parent is None else self.ids_up_to(parent)
        return [*before, *self.calls[call].given]

    def ids_up_to(self, call: int) -> list[int]:
        return [*self.context(call), *self.calls[call].token_ids]


def as_calls(session: Session) -> tuple[Trajectory, ...]:
    return tuple(_trajectory(session, part, [call]) for part, call in enumerate(range(len(session.calls))))


def as_sequences(session: Session) -> tuple[Trajectory, ...]:
    parents = {call.parent for call in session.calls}
    sequences: list[Trajectory] = []
    trained: set[int] = set()
    for leaf in (call for call in range(len(session.calls)) if call not in parents):
        own = [call for call in session.path(leaf) if call not in trained]
        sequences.append(_trajectory(session, len(sequences), own))
        trained.update(own)
    return tuple(sequences)


def _trajectory(session: Session, part: int, path: list[int]) -> Trajectory:
    """One sequence in which the calls of `path` are sampled."""
    first = session.calls[path[0]]
    token_ids, logprobs, spans = [*first.token_ids], [*first.logprobs], [*first.spans]
    for call in (session.calls[i] for i in path[1:]):
        token_ids += [*call.given, *call.token_ids]
        logprobs += [*[0.0] * len(call.given), *call.logprobs]
        spans += [*([Span(None, len(call.given))] if call.given else []), *call.spans]
    prompt = session.prompt
    return Trajectory(
        prompt=Prompt(
            ordinal=prompt.ordinal, key="", text="", answer="",
            token_ids=np.array(session.context(path[0]), np.int32),
        ),
        sample=session.sample,
        part=part,
        completion=Completion(
            token_ids=np.array(token_ids, np.int32),
            logprobs=np.array(logprobs, np.float32),
            spans=tuple(spans),
            finish_reason="stop",
            text="",
        ),
        reward=session.reward,
    )  # fmt: skip


def make_call(rng: np.random.Generator, call: int, parent: int | None) -> Call:
    num_tokens = int(rng.integers(1, 5))
    num_old = int(rng.integers(0, num_tokens))
    newest = VERSION - int(rng.integers(0, 2))
    spans = (Span(newest - 1, num_old, call), Span(newest, num_tokens - num_old, call))
    return Call(
        parent=parent,
        given=rng.integers(0, VOCABULARY, int(rng.integers(0 if parent is None else 1, 5))).tolist(),
        token_ids=rng.integers(0, VOCABULARY, num_tokens).tolist(),
        logprobs=rng.normal(-3, 0.5, num_tokens).tolist(),
        spans=tuple(span for span in spans if span.num_tokens),
    )


def make_session(
    rng: np.random.Generator, prompt: Prompt, sample: int, *, branches: bool, has_turns: bool = False
) -> Session:
    """One to four calls; each continues the one before it or, with branches, any earlier one or the prompt."""
    calls: list[Call] = []
    for number in range(int(rng.integers(1, 5))):
        parent = number - 1 if number else None
        if branches and number and rng.random() < 0.5:
            parent = [None, *range(number)][int(rng.integers(0, number + 1))]
        calls.append(make_call(rng, number, parent))
    turns = tuple(rng.normal(0, 1, len(calls)).tolist()) if has_turns else ()
    value = sum(turns) if turns else float(rng.normal(0, 3))
    return Session(prompt, sample, Reward(value, value > 0, turns=turns), calls)


def make_sessions(
    seed: int = 0, *, num_groups: int = 3, group_size: int = 3, branches: bool = False, has_turns: bool = False
) -> list[list[Session]]:
    """Groups of sessions of one prompt each."""
    rng = np.random.default_rng(seed)
    groups = []
    for ordinal in range(num_groups):
        token_ids = rng.integers(0, VOCABULARY, int(rng.integers(1, 6))).astype(np.int32)
        prompt = Prompt(ordinal=ordinal, key="", text="", answer="", token_ids=token_ids)
        groups.append(
            [make_session(rng, prompt, i, branches=branches, has_turns=has_turns) for i in range(group_size)]
        )
    return groups


def group_of(trajectories: list[Trajectory]) -> Group:
    return Group(ordinal=trajectories[0].prompt.ordinal, start_version=0, trajectories=tuple(trajectories))


def one_sequence_per_call(sessions: list[list[Session]]) -> list[Group]:
    return [group_of([t for session in group for t in as_calls(session)]) for group in sessions]


def as_few_sequences_as_possible(sessions: list[list[Session]]) -> list[Group]:
    return [group_of([t for session in group for t in as_sequences(session)]) for group in sessions]
