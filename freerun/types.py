"""The nouns: plain typed data that moves between stages and processes, without behaviour.

    Prompt ──► Request ──► Completion (one per sample, made of Spans) ──► Trajectory (+ Reward) ──► Batch

A sample of a prompt is one completion, or a session of several calls to the policy. A session becomes one or more
sequences: a completion then also holds the tokens that were given to the policy between its calls, and each
sequence is one part of the sample.

Everything here is a frozen msgspec struct of plain values and numpy arrays, so it crosses a socket without
pickle. `encode` and `decoder_for` define the only wire format of the package.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np

Ints = np.ndarray
"""One-dimensional int32 array: token ids."""

Floats = np.ndarray
"""One-dimensional float32 array: log-probabilities."""

FinishReason = Literal["stop", "length"]
GroupOutcome = Literal["buffered", "filtered", "failed", "dropped", "requeued", "passed_over", "unrated"]
"""How a group ended; passed_over: never started because the curriculum rests its prompt; unrated: a live session
without feedback.
"""
GivenUp = Literal["failed", "unrated", "dropped"]
"""Outcomes by which a running group is given up."""
T = TypeVar("T")


class Prompt(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A question and what is needed to grade it."""

    ordinal: int
    """Position in the run's seeded stream of prompts, across epochs: its identity in the ledger."""
    key: str
    """Its origin, shown to people: `train.jsonl:17`, `times-tables:7*8`."""
    text: str
    answer: str
    token_ids: Ints
    row: dict[str, Any] = {}
    """The fields of its data row, for sessions and graders; empty otherwise, and in a trajectory."""
    grader: str = ""
    """The grader to use instead of `reward.grader`; empty for none."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn. Behaviour logprobs are those of the distribution after all these settings."""

    max_completion_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Generate `num_samples` completions of one prompt; they share its prefill."""

    request_id: int
    ordinal: int
    """The prompt's ordinal; with the indices of sample, call and position it seeds the sampling."""
    prompt_token_ids: Ints
    num_samples: int
    sampling: Sampling
    sample: int = 0
    """Index of the first sample within its group."""
    call: int = 0
    """Index of the call within its session."""
    session: int | None = None
    """Number of its session in this run; None if no other request continues this one."""
    pinned_version: int | None = None
    """Sample every token under this version, which was pinned before; None takes the newest at each step."""


ProcessState = Literal[
    "starting", "running", "generating", "evaluating", "grading", "training", "loading", "waiting", "idle",
    "restarting", "stopping", "ended", "died",
]  # fmt: skip


class Doing(msgspec.Struct, frozen=True):
    """What a process does from now on, as data; the terminal puts it into words."""

    state: ProcessState
    what: str = ""
    """Details: what it waits for, which prompt it grades, which part of a step it computes ..."""
    num_done: int | None = None
    num_total: int | None = None


class Span(msgspec.Struct, frozen=True):
    """Consecutive tokens of one completion: sampled by one call under one version, or given to the policy."""

    version: int | None
    """None for given tokens: a user's, a tool's, an environment's."""
    num_tokens: int
    call: int = 0
    """Index of the call that sampled them, within its session."""


class Completion(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Tokens sampled for one prompt, each with its behaviour logprob and the version that sampled it.

    In a session of several calls the tokens that were given between them are included; only sampled ones are
    trained on.
    """

    token_ids: Ints
    logprobs: Floats
    """Behaviour logprobs: under the distribution each token was drawn from; 0 for given tokens."""
    spans: tuple[Span, ...]
    finish_reason: FinishReason
    text: str
    slot_seconds: tuple[float, float] | None = None
    """How long before the answer it took and left its slot; None if the engine does not report it."""

    @property
    def num_sampled(self) -> int:
        return sum(span.num_tokens for span in self.spans if span.version is not None)

    @property
    def is_sampled(self) -> np.ndarray:
        """One boolean per token; false for given tokens."""
        return _repeat([(s.version is not None, s.num_tokens) for s in self.spans], np.bool_)

    @property
    def oldest_version(self) -> int:
        return min(span.version for span in self.spans if span.version is not None)

    @property
    def versions(self) -> Ints:
        """One version per sampled token."""
        return _repeat([(s.version, s.num_tokens) for s in self.spans if s.version is not None])

    @property
    def calls(self) -> Ints:
        """For each sampled token, the index of the call that sampled it."""
        return _repeat([(s.call, s.num_tokens) for s in self.spans if s.version is not None])


class Reward(msgspec.Struct, frozen=True, tag="reward"):
    """What the grader computed; always finite."""

    value: float
    is_correct: bool
    parts: dict[str, float] = {}
    """Values of the parts of a sum, before weighting, by name; empty for a single part."""
    turns: tuple[float, ...] = ()
    """Reward of each call of a session; empty if only the whole session was judged."""


class GradeFailed(msgspec.Struct, frozen=True, tag="grade_failed"):
    """The grader could not judge, which is not the same as a reward of 0."""

    reason: str


Grade = Reward | GradeFailed


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Prompt + completion + reward: held by the buffer, consumed once by the trainer.

    A session whose history was rewritten is several sequences: parts of one sample, each with the reward of the
    whole sample. A segment that several of them share is sampled in the first one and given in the others.
    """

    prompt: Prompt
    """The prompt, with all tokens before the first one sampled in this part."""
    sample: int
    """Index of the sample within its group."""
    completion: Completion
    reward: Reward
    part: int = 0
    """Index of the part within its sample."""


class WholeSample(NamedTuple):
    """One attempt at a prompt: a completion, or all parts of a session."""

    parts: tuple[Trajectory, ...]

    @property
    def reward(self) -> Reward:
        """The reward, which all parts carry."""
        return self.parts[0].reward

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens."""
        return sum(part.completion.num_sampled for part in self.parts)

    @property
    def num_calls(self) -> int:
        """Number of calls of the session, up to the last one that sampled something."""
        spans = [span for part in self.parts for span in part.completion.spans]
        return 1 + max(span.call for span in spans if span.version is not None)

    @property
    def oldest_version(self) -> int:
        return min(part.completion.oldest_version for part in self.parts)


def samples_of(trajectories: Iterable[Trajectory]) -> tuple[WholeSample, ...]:
    """The trajectories of one prompt grouped by sample, in the order in which samples first appear."""
    parts: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        parts.setdefault(trajectory.sample, []).append(trajectory)
    return tuple(WholeSample(tuple(of_sample)) for of_sample in parts.values())


class Group(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The trajectories of one prompt, started together at one version: one or more parts of each sample."""

    ordinal: int
    start_version: int
    """The gate's version at the start: a lower bound on the version of its tokens."""
    trajectories: tuple[Trajectory, ...]

    @property
    def oldest_version(self) -> int:
        return min(t.completion.oldest_version for t in self.trajectories)

    @property
    def samples(self) -> tuple[WholeSample, ...]:
        return samples_of(self.trajectories)

    @property
    def num_samples(self) -> int:
        return len({trajectory.sample for trajectory in self.trajectories})

    @property
    def rewards(self) -> tuple[Reward, ...]:
        """The reward of each sample."""
        return tuple(sample.reward for sample in self.samples)


class Demonstration(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A text to imitate, and which of its tokens carry loss: completions, not prompts."""

    token_ids: Ints
    is_trained: np.ndarray
    """One boolean per token; false for the first, which nothing predicts."""

    @property
    def num_trained(self) -> int:
        return int(self.is_trained.sum())


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that the trainer has made available: what an engine confirms before it uses them."""

    version: int
    checksum: str


class WeightRoute(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker reaches the run's weight channel (`freerun.weights.channel`)."""

    channel: str
    """The transport: a key of `CHANNELS`."""
    descriptors: tuple[int, ...] = ()
    """File descriptors of shared memory that the worker inherits, if it runs on the controller's machine."""
    address: str = ""
    """Where the transport finds the trainer, if it runs elsewhere."""
    dtype: str = "float32"
    """`engine.dtype`, the dtype in which whole models travel."""


class TrainedTrajectory(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A step's results for one trajectory of its batch."""

    log_weights: Floats
    """Proximal minus behaviour logprob of each sampled token, as float16; empty if it was not computed."""
    advantage: float
    """Mean over its sampled tokens."""
    clipped: Ints
    """Positions of the clipped tokens among its sampled tokens."""

    @property
    def num_clipped(self) -> int:
        return len(self.clipped)


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one training step: the version it produced and its metrics."""

    version: int
    metrics: dict[str, float]
    staleness_counts: dict[int, int]
    """Number of samples of the batch by staleness."""
    phases: tuple[tuple[str, float], ...] = ()
    """What the trainer did since the previous step, with seconds; names as in `events/intervals.py`."""
    trajectories: tuple[TrainedTrajectory, ...] = ()
    """One per trajectory of the batch, in the order of the groups; empty if the trainer does not report them."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's counters since its start, and its current state."""

    version: int | None = None
    """None before the first weights."""
    num_tokens: int = 0
    """Number of completion tokens sampled."""
    num_prefill_tokens: int = 0
    """Tokens computed without being sampled: prompts and recomputed caches."""
    num_steps: int = 0
    num_attended_tokens: int = 0
    """Cached tokens of decoding sequences, summed over steps; 0 if a server does not report it."""
    busy_seconds: float = 0.0
    num_running: int = 0
    num_waiting: int = 0
    num_slots: int = 0
    num_evaluating: int = 0
    """Number of running sequences of an evaluation, which has separate slots."""
    cache_tokens_used: int = 0
    cache_tokens: int = 0
    num_interrupts: int = 0
    """Number of running sequences interrupted by a weight load."""
    num_loads: int = 0
    num_preemptions: int = 0
    load_seconds: float = 0.0
    """Time decoding was paused for loads (checksum, swap, packing) and for copies of pinned versions."""
    num_recomputed_tokens: int = 0
    """Cache entries that loads invalidated and that were recomputed: the other cost of interrupts."""
    num_adopted_tokens: int = 0
    """Prompt tokens that were not computed, because they were parked or in a server's prefix cache."""
    num_parked_tokens: int = 0
    """Tokens in the caches that sessions have parked for their next turns."""
    decode_seconds: float = 0.0
    """Part of `busy_seconds` for sampling rollouts, with their prompts."""
    recompute_seconds: float = 0.0
    """Part of `busy_seconds` for recomputing caches lost to a load or a preemption."""
    evaluate_seconds: float = 0.0
    """Part of `busy_seconds` for evaluations."""
    idle_seconds: float = 0.0
    """Time without anything to compute."""
    up_seconds: float = 0.0
    """Time since the engine was ready, on its own clock: the above, `load_seconds`, and handling messages."""


def _repeat(counted: Sequence[tuple[int, int]], dtype: type[np.generic] = np.int32) -> np.ndarray:
    """Each value repeated by its count."""
    values, counts = np.array(counted, np.int64).reshape(-1, 2).T
    return np.repeat(values, counts).astype(dtype)


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
    """A decoder that accepts only `expected`."""
    return msgspec.msgpack.Decoder(expected, dec_hook=_decode_array)
