"""The nouns: plain typed data that moves between stages and processes, never with behaviour of its own.

    Prompt ──► Request ──► Completion (one per sample, made of Spans) ──► Trajectory (+ Reward) ──► Batch

Everything here is a frozen msgspec struct of plain values and numpy arrays, so that it crosses a socket
without pickle. `encode` and `decoder_for` are the one wire format of the whole package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

Ints = np.ndarray
"""One-dimensional int32 array: token ids."""

Floats = np.ndarray
"""One-dimensional float32 array: log-probabilities."""

FinishReason = Literal["stop", "length"]
T = TypeVar("T")


class Prompt(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A question and what is needed to grade it."""

    ordinal: int
    """Position in the run's seeded stream of prompts, across epochs: its identity in the ledger."""
    key: str
    """Where it comes from, for people: `train.jsonl:17`, `times-tables:7*8`."""
    text: str
    answer: str
    token_ids: Ints


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn; the behaviour logprobs are those of the distribution after all of it."""

    max_completion_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Generate `num_samples` completions of one prompt; they share its prefill."""

    request_id: int
    ordinal: int
    """Of the prompt; with the sample index and position it seeds the sampling."""
    prompt_token_ids: Ints
    num_samples: int
    sampling: Sampling
    pinned_version: int = -1
    """Sample every token under this version, which was pinned before; -1 takes the newest at each step."""


class Span(msgspec.Struct, frozen=True):
    """Consecutive tokens of one completion sampled under one version."""

    version: int
    num_tokens: int


class Completion(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Tokens sampled for one prompt, with the logprobs they were drawn with and the versions that drew them."""

    token_ids: Ints
    logprobs: Floats
    """Behaviour logprobs: of the distribution each token was drawn from."""
    spans: tuple[Span, ...]
    finish_reason: FinishReason
    text: str

    @property
    def oldest_version(self) -> int:
        return min(span.version for span in self.spans)

    @property
    def versions(self) -> Ints:
        """One version per token."""
        return np.repeat([s.version for s in self.spans], [s.num_tokens for s in self.spans]).astype(np.int32)


class Reward(msgspec.Struct, frozen=True, tag="reward"):
    """What the grader computed; always finite."""

    value: float
    is_correct: bool
    parts: dict[str, float] = {}
    """What each part of a sum was worth before its weight, by name; empty if there is only one."""


class GradeFailed(msgspec.Struct, frozen=True, tag="grade_failed"):
    """The grader could not say: never to be confused with a reward of zero."""

    reason: str


Grade = Reward | GradeFailed


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Prompt + completion + reward: what the buffer holds and the trainer consumes once."""

    prompt: Prompt
    sample: int
    """Index within its group."""
    completion: Completion
    reward: Reward


class Group(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The trajectories of one prompt, started together at one version."""

    ordinal: int
    start_version: int
    """The oldest version that any of its tokens can carry: the gate's version when it was started."""
    trajectories: tuple[Trajectory, ...]

    @property
    def oldest_version(self) -> int:
        return min(t.completion.oldest_version for t in self.trajectories)


class Demonstration(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A text to imitate, and which of its tokens are to be predicted: completions, not prompts."""

    token_ids: Ints
    is_trained: np.ndarray
    """One boolean for each token; false for the first, which nothing predicts."""

    @property
    def num_trained(self) -> int:
        return int(self.is_trained.sum())


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that the trainer has made available: what an engine confirms before it uses them."""

    version: int
    checksum: str


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one training step did: the version it produced and its metrics."""

    version: int
    metrics: dict[str, float]
    staleness_counts: dict[int, int]
    """Trajectories of the batch by staleness."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine did since it started, and what it holds now."""

    version: int = 0
    num_tokens: int = 0
    """Completion tokens sampled."""
    num_prefill_tokens: int = 0
    """Tokens computed that were not sampled in that step: prompts and recomputed caches."""
    num_steps: int = 0
    busy_seconds: float = 0.0
    num_running: int = 0
    num_waiting: int = 0
    num_slots: int = 0
    num_evaluating: int = 0
    """Sequences of an evaluation, which has slots of its own."""
    cache_tokens_used: int = 0
    cache_tokens: int = 0
    num_interrupts: int = 0
    """Live sequences whose generation a weight load interrupted."""
    num_loads: int = 0
    num_preemptions: int = 0
    load_seconds: float = 0.0
    """Time decoding stood still for loads (checksum, swap, packing) and for copies of pinned versions."""
    num_recomputed_tokens: int = 0
    """Cache entries thrown away by loads and computed again: the rest of an interrupt's cost."""


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.tobytes())
    raise NotImplementedError(f"cannot send a {type(value).__name__}")


def _decode_array(expected: type, value: Any) -> Any:
    if expected is np.ndarray:
        dtype, data = value
        return np.frombuffer(data, dtype=dtype)
    raise NotImplementedError(f"cannot receive a {expected.__name__}")


encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=_encode_array).encode


def decoder_for(expected: type[T] | Any) -> msgspec.msgpack.Decoder[T]:
    """A decoder that accepts exactly `expected` and refuses everything else."""
    return msgspec.msgpack.Decoder(expected, dec_hook=_decode_array)
