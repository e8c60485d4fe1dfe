"""The messages between the controller and its agent workers. Token ids, texts and rewards cross; objects do not.

    controller ── StartAgents ──► worker ── AgentsReady | AgentsRefused ──► controller       once
    controller ── RunSession ───► worker ── SessionDone | SessionFailed ──► controller       for each session
    controller ◄── Call, AskGrade ── worker ◄── Called, GradeGiven ── controller             while it runs

If the engines cannot answer a call, the controller fails the session and sends `AbortSession`: a worker gets an
answer to each of its calls, or is told to stop.
"""

import msgspec

from freerun.chat.sequences import SessionSequence
from freerun.chat.session import SampleRequest
from freerun.config.rollout import GatewayConfig, RolloutConfig
from freerun.rollout.sessions import SessionJob
from freerun.types import Completion, Grade, Reward, Sampling


class _Message(msgspec.Struct, frozen=True, kw_only=True, eq=False, tag=True):
    pass


class StartAgents(_Message, frozen=True, kw_only=True):
    """Import the user's code and read the tokenizer."""

    rollout: RolloutConfig
    gateway: GatewayConfig
    sampling: Sampling
    """Sampling settings of every call; a call may ask for fewer tokens and more stop strings."""
    model_directory: str
    """Where the tokenizer and the chat template are."""
    model_name: str
    """The model name that clients use for the policy."""
    uses_chat_template: bool
    system_prompt: str
    seed: int
    """The run's seed; with the ordinal it seeds `task.random`."""


class RunSession(_Message, frozen=True, kw_only=True):
    number: int
    """Identifies this attempt at the session in all messages; every attempt has a new number."""
    job: SessionJob


class AbortSession(_Message, frozen=True, kw_only=True):
    """Abort the session: its result is no longer wanted."""

    number: int


class Called(_Message, frozen=True, kw_only=True):
    """The answer to a `Call`."""

    number: int
    call: int
    completions: tuple[Completion, ...]


class GradeGiven(_Message, frozen=True, kw_only=True):
    """The answer to an `AskGrade`."""

    number: int
    grading: int
    grade: Grade


class AgentsReady(_Message, frozen=True, kw_only=True):
    pass


class AgentsRefused(_Message, frozen=True, kw_only=True):
    """The recipe names an episode, tool or program that cannot be used."""

    reason: str


class Call(_Message, frozen=True, kw_only=True):
    """A request of a session to the policy."""

    number: int
    request: SampleRequest


class CancelCall(_Message, frozen=True, kw_only=True):
    """The episode no longer waits for the answer."""

    number: int
    call: int


class AskGrade(_Message, frozen=True, kw_only=True):
    """A request of a session to the run's graders."""

    number: int
    grading: int
    """Unique within its session."""
    text: str


class SessionDone(_Message, frozen=True, kw_only=True):
    number: int
    sequences: tuple[SessionSequence, ...]
    reward: Reward
    is_truncated: bool
    """Whether the session reached a limit of turns, tokens or time."""


class SessionFailed(_Message, frozen=True, kw_only=True):
    """The session failed: it has no reward, which is not the same as a reward of 0."""

    number: int
    reason: str


class LoopHeld(_Message, frozen=True, kw_only=True):
    """Blocking code holds the event loop, so no session of this worker continues; sent every second."""

    number: int | None
    """The session that the blocking code belongs to; None if it is not known."""


class WornOut(_Message, frozen=True, kw_only=True):
    """Too much user code hangs in this worker: replace it when its sessions have ended."""


ToAgent = StartAgents | RunSession | AbortSession | Called | GradeGiven
FromAgent = (
    AgentsReady | AgentsRefused | Call | CancelCall | AskGrade | SessionDone | SessionFailed | LoopHeld | WornOut
)
