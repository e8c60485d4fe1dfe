"""One running completion, and the group of completions that a request asks for.

A sequence is its tokens and how many of them are in the cache. The engine derives its work from that: one token
missing is a decode step, more is a prefill, none missing means that the next token can be sampled. A weight load,
a preemption and a new prompt differ only in how many are missing.
"""

from dataclasses import dataclass

import numpy as np

from freerun.engine.parking import Adopted
from freerun.types import Completion, FinishReason, Request, Span


@dataclass(frozen=True, eq=False)
class Prefix:
    """One computation of a prompt's keys and values; sequences that share it have the same bits."""

    version: int
    """The version it was started under."""
    session: int | None = None
    """The session whose parked cache it continues; only requests of that session share it. None: any request."""
    adopted: Adopted | None = None
    """What it continues of that cache."""


class Sequence:
    """The tokens of one sample, the logprob and version of each sampled token, and its slot in the cache."""

    def __init__(self, group: "SequenceGroup", order: int, stream: np.uint64) -> None:
        self.group = group
        self.stream = stream
        """Hash state that makes its random numbers unique among all samples."""
        self.order = order
        """Arrival order over all sequences: the youngest is preempted first."""
        self.tokens: list[int] = group.request.prompt_token_ids.tolist()
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.is_running = False
        """Whether it has a slot; else it waits for one, or is finished."""
        self.slot = 0
        """Its place in the cache, while it is running."""
        self.began = self.ended = 0.0
        """When it took its slot for the last time, and when it left it, on this process's monotonic clock."""
        self.num_computed = 0
        """Leading tokens whose keys and values are in the cache."""
        self.prefix: Prefix | None = None
        """The computation that the cached prompt comes from; valid up to `num_computed`."""
        self.finish_reason: FinishReason | None = None
        self.is_recomputed = False
        """Whether a load or a preemption threw its cache away: what it lacks was computed before."""

    @property
    def num_missing(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def num_sampled(self) -> int:
        return len(self.logprobs)

    @property
    def sampled_tokens(self) -> list[int]:
        return self.tokens[self.group.prompt_length :]

    def append(self, token: int, logprob: float, version: int) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)

    def to_completion(self, text: str, *, now: float) -> Completion:
        assert self.finish_reason is not None
        return Completion(
            token_ids=np.array(self.sampled_tokens, dtype=np.int32),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            spans=spans_of(self.versions),
            finish_reason=self.finish_reason,
            text=text,
            slot_seconds=(now - self.began, now - self.ended),
        )


class SequenceGroup:
    """The samples of one request: they have one prompt and are returned together."""

    def __init__(self, request: Request, first_order: int, streams: np.ndarray) -> None:
        self.request = request
        self.prompt_length = len(request.prompt_token_ids)
        self.prompt_key = request.prompt_token_ids.astype(np.int32).tobytes()
        """Equal for equal prompts, of this request or another."""
        self.sequences = [Sequence(self, first_order + sample, stream) for sample, stream in enumerate(streams)]

    @property
    def is_finished(self) -> bool:
        return all(sequence.finish_reason is not None for sequence in self.sequences)


def spans_of(versions: list[int]) -> tuple[Span, ...]:
    """Run-length encoding of the versions of consecutive tokens."""
    spans: list[Span] = []
    for version in versions:
        if spans and spans[-1].version == version:
            spans[-1] = Span(version, spans[-1].num_tokens + 1)
        else:
            spans.append(Span(version, 1))
    return tuple(spans)
