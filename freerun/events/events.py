"""What happens in a run, as typed events: the store records them, the terminal view shows them.

The controller emits each event once, in order, to everyone who listens; a listener never holds it up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from freerun.types import EngineStats, Group, StepResult, Trajectory


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", eq=False):
    """Base of all events; `seconds` is the run's clock, from its (first) start."""

    seconds: float


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    name: str
    directory: str
    num_steps: int
    version: int
    """0 for a new run, the checkpoint's version for a resumed one."""
    max_staleness: int


class Activity(Event, frozen=True, kw_only=True, tag="activity"):
    """What a process does from now on: the live view's answer to "what is it waiting for?"."""

    worker: str
    """rollout-0, trainer, grader-0, controller."""
    doing: str
    """`generating`, `training`, `waiting for rollouts 12, 14`, `starting` ..."""


class CoresMoved(Event, frozen=True, kw_only=True, tag="cores_moved"):
    """The trainer computes on these cores from now on."""

    cores: tuple[int, ...]
    num_borrowed: int
    """Those among them that are a rollout worker's."""


class GroupFinished(Event, frozen=True, kw_only=True, tag="group_finished"):
    """A group left the rollout stage: into the buffer, or out of the run."""

    ordinal: int
    outcome: Literal["buffered", "filtered", "failed", "dropped", "requeued", "passed_over"]
    """passed_over: never started, because the curriculum lets its problem rest."""
    num_tokens: int = 0
    mean_reward: float = 0.0
    reason: str = ""
    """Why it failed: the last line a person needs."""


class StepFinished(Event, frozen=True, kw_only=True, tag="step_finished"):
    result: StepResult
    groups: tuple[Group, ...]
    """The batch that was consumed: the store keeps every trajectory."""
    step_seconds: float
    wait_seconds: float
    """Time the trainer stood idle before this step."""


class WarmStartProgress(Event, frozen=True, kw_only=True, tag="warm_start"):
    step: int
    num_steps: int
    loss: float


class EngineReport(Event, frozen=True, kw_only=True, tag="engine_report"):
    worker: str
    stats: EngineStats


class WeightsLoaded(Event, frozen=True, kw_only=True, tag="weights_loaded"):
    """Every engine confirmed version and checksum."""

    version: int
    checksum: str


class ProblemResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one problem in one evaluation."""

    ordinal: int
    key: str
    num_samples: int
    """Completions graded: 0 if the problem failed."""
    num_correct: int
    mean_reward: float
    mean_length: float
    """Tokens of a completion."""
    failure: str = ""
    """Why it could not be sampled or graded."""


class EvalFinished(Event, frozen=True, kw_only=True, tag="eval_finished"):
    version: int
    """The version that sampled every token of it."""
    accuracy: float
    """Share of the completions that are right, mean over problems (pass@1); nan if none could be graded."""
    accuracy_low: float
    accuracy_high: float
    """The 95 % interval of `accuracy`; see `events/pass_at_k.py`."""
    num_prompts: int
    num_samples: int
    num_failed: int
    mean_length: float
    problems: tuple[ProblemResult, ...] = ()
    """One per prompt; the store keeps them in a table."""
    groups: tuple[tuple[Trajectory, ...], ...] = ()
    """The completions themselves, where they are to be kept: `freerun eval`."""


class EvalSkipped(Event, frozen=True, kw_only=True, tag="eval_skipped"):
    """An evaluation that was due has no result: it was not started, or its version was lost."""

    version: int
    reason: str


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="checkpoint_saved"):
    version: int
    directory: str


class WorkerDied(Event, frozen=True, kw_only=True, tag="worker_died"):
    worker: str
    reason: str
    """Exit status or silence, and the traceback if it left one."""
    is_restarted: bool


class RunFinished(Event, frozen=True, kw_only=True, tag="run_finished"):
    outcome: Literal["finished", "interrupted", "failed"]
    reason: str = ""
    version: int
    model_directory: str
    """The newest model checkpoint, ready for `transformers`; empty if none was written."""


AnyEvent = (
    RunStarted
    | Activity
    | CoresMoved
    | GroupFinished
    | StepFinished
    | WarmStartProgress
    | EngineReport
    | WeightsLoaded
    | EvalFinished
    | EvalSkipped
    | CheckpointSaved
    | WorkerDied
    | RunFinished
)
Listener = Callable[[AnyEvent], None]
