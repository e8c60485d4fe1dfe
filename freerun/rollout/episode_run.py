"""Runs the episode of one session, and turns every outcome into data.

    run_episode ──► EpisodeDone(reward, is_truncated, sequences)      to be trained on
                └─► EpisodeFailed(reason)                             tried again, or its group fails

An episode is user code. It may return nonsense, raise, exit, hang or fork; none of this ends the process or
another session, and none of it becomes a reward of 0. But a session that hits a limit is scored: if it were
discarded, the policy could learn to escape a bad reward by running into limits.

When time is up, `TruncatedError` is raised where the episode waits, so it can still score what was reached. If it
continues anyway, it is cancelled, and if it ignores that too, it is abandoned and counted.
"""

import asyncio
import os
import types
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from freerun.chat.sequences import SessionSequence
from freerun.config.user_code import end_of_traceback, sendable
from freerun.errors import FreerunError, RolloutError, TruncatedError
from freerun.rollout.clock import SessionClock
from freerun.rollout.episode import Episode, Policy, Task, leave_fork
from freerun.rollout.returned import to_reward
from freerun.types import Reward

GRACE_SHARE = 0.05
"""Share of the session's time that an episode gets to return when time is up, and again to end when cancelled."""


@dataclass(frozen=True)
class EpisodeDone:
    """A session with a reward."""

    reward: Reward
    is_truncated: bool
    """Whether the session reached a limit of turns, tokens or time."""
    sequences: tuple[SessionSequence, ...]


@dataclass(frozen=True)
class EpisodeFailed:
    """A session without a reward, which is not the same as a reward of 0."""

    reason: str


async def run_episode(
    episode: Episode, task: Task, policy: Policy, clock: SessionClock
) -> EpisodeDone | EpisodeFailed:
    """Run a session to its end; cancelling this aborts the session."""
    running = _Running(episode, task, policy, clock)
    try:
        await running.run()
    finally:
        await running.end()
        policy.session.end()
    outcome = running.outcome
    if isinstance(outcome, EpisodeFailed):
        return outcome
    sequences = policy.session.sequences()
    if not sequences:
        return EpisodeFailed(
            f"{task.key}: the session ended without a completion of the policy, so there is nothing to train on; "
            "an episode must call the policy"
        )
    is_truncated = outcome.is_truncated or clock.is_over or policy.session.is_truncated
    return EpisodeDone(outcome.reward, is_truncated, sequences)


class _Scored(NamedTuple):
    reward: Reward
    is_truncated: bool = False


_TRUNCATED = _Scored(Reward(0.0, False), is_truncated=True)


class _Running:
    """An episode in a separate task, which can be interrupted where it waits."""

    def __init__(self, episode: Episode, task: Task, policy: Policy, clock: SessionClock) -> None:
        self._clock = clock
        self._policy = policy
        self._grace_seconds = GRACE_SHARE * clock.seconds
        self._is_interrupting = False
        self._running = asyncio.create_task(self._interruptible(episode, task))

    async def run(self) -> None:
        """Return when the episode has ended, or has used up its time and a grace period to return a reward."""
        await self._wait()
        if not self._running.done():
            self._policy.session.end()  # no more calls; what was sampled is kept
            self._is_interrupting = True
            self._running.cancel()
            self._clock.extend(self._grace_seconds)
            await self._wait()

    async def _wait(self) -> None:
        """Return when the episode has ended, or when its time is over."""
        clock = asyncio.create_task(self._clock.wait())
        try:
            await asyncio.wait({self._running, clock}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            clock.cancel()

    async def end(self) -> None:
        """Cancel the episode if it still runs; abandon it if it ignores the cancellation."""
        if not self._running.done():
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=self._grace_seconds)
            if not self._running.done():
                self._policy.tools.abandoned.add(self._running)

    @property
    def outcome(self) -> _Scored | EpisodeFailed:
        if not self._running.done() or self._running.cancelled():
            return _TRUNCATED
        return self._running.result()

    @types.coroutine
    def _interruptible(self, episode: Episode, task: Task) -> Generator[Any, Any, _Scored | EpisodeFailed]:
        """Drive the episode; an interruption is raised in it as `TruncatedError` at its current await."""
        coroutine = _settle(episode, task, self._policy, self._clock)
        try:
            awaited = coroutine.send(None)
            while True:
                try:
                    yield awaited
                except BaseException as error:  # noqa: BLE001 - for the episode: what it awaits has failed
                    awaited = coroutine.throw(self._interruption(error) or error)
                else:
                    awaited = coroutine.send(None)
        except StopIteration as end:
            scored: _Scored | EpisodeFailed = end.value
            return scored
        finally:
            coroutine.close()

    def _interruption(self, error: BaseException) -> TruncatedError | None:
        """The exception to raise in the episode in place of its cancellation."""
        if not (self._is_interrupting and isinstance(error, asyncio.CancelledError)):
            return None
        self._is_interrupting = False
        self._running.uncancel()
        return TruncatedError(
            f"the session took longer than rollout.session_seconds = {self._clock.seconds:g}, without the time of "
            "the policy and of graders"
        )


async def _settle(episode: Episode, task: Task, policy: Policy, clock: SessionClock) -> _Scored | EpisodeFailed:
    """The outcome of the episode; raises only `CancelledError`, if it was cancelled from outside."""
    pid = os.getpid()
    try:
        returned = await episode(task, policy)
        is_truncated = policy.session.is_truncated or clock.is_over
        return _Scored(to_reward(returned, num_calls=policy.session.num_calls, is_truncated=is_truncated))
    except TruncatedError:
        return _TRUNCATED
    except RolloutError as error:  # from a grader, a tool server or a return value: never caused by a limit
        return EpisodeFailed(sendable(f"{task.key}: {error}"))
    except BaseException as error:  # the edge of user code: a failure is data
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        if policy.session.is_truncated or clock.is_over:
            return _TRUNCATED  # HTTP clients and programs raise errors of their own at a limit
        words = str(error) if isinstance(error, FreerunError) else f"the episode failed:\n{end_of_traceback()}"
        return EpisodeFailed(sendable(f"{task.key}: {words}"))
    finally:
        leave_fork(pid)


def _is_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
