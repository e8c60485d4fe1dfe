"""Held-out evaluations during a run: one at a time, each of one version, beside the rollouts.

    load(8) ─► pin(8) ─► sample and grade the held-out prompts under 8 ─► release ─► EvalFinished(8)
               rollouts continue under 8, 9, 10 ...

The invariant: every token of an evaluation was sampled by the version it is reported for. This is checked here
for any generator. An evaluation is skipped, with the reason, if its version was lost with a worker or mixed
with another, or if it is due while another one still runs.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from freerun.errors import PinLostError
from freerun.evaluation.evaluation import Evaluation, evaluate
from freerun.events.events import EvalSkipped, Listener
from freerun.protocols import Grader, PinnedGenerator, VersionedGenerator, Workflow
from freerun.terminal.wording import brief
from freerun.types import Prompt

KEPT_SAMPLES = 1
"""Samples per held-out prompt that the store keeps from an evaluation in a run: a few to read."""


class HeldOut:
    """The evaluations of a run."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        workflow: Workflow,
        generator: VersionedGenerator,
        grader: Grader,
        *,
        num_samples: int,
        emit: Listener,
        clock: Callable[[], float],
    ) -> None:
        self._prompts = prompts
        self._workflow = workflow
        self._generator = generator
        self._grader = grader
        self._num_samples = num_samples
        self._emit = emit
        self._clock = clock
        self._running_version: int | None = None
        self._measured_version: int | None = None
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def is_on(self) -> bool:
        """Whether there are prompts to evaluate on."""
        return bool(self._prompts)

    def begin(self, version: int) -> Coroutine[Any, Any, None]:
        """Pin `version`, the last one loaded, and return the evaluation as a coroutine.

        Not a coroutine itself: the version must be pinned before a newer one is loaded.
        """
        if not self._prompts:  # eval.num_prompts = 0
            return asyncio.sleep(0)
        if not self._is_idle.is_set():
            return self._skip(version, f"the evaluation of version {self._running_version} still runs")
        self._is_idle.clear()
        self._running_version = version
        return self._evaluate(version, self._generator.pin(version))

    async def evaluate_last(self, version: int) -> None:
        """Evaluate the final version unless that is done, after waiting for an evaluation that still runs."""
        await self._is_idle.wait()
        if self._measured_version != version:
            await self.begin(version)

    async def _evaluate(self, version: int, pinned: PinnedGenerator) -> None:
        try:
            result = await evaluate(self._prompts, self._workflow, pinned, self._grader)
        except asyncio.CancelledError:
            await self._skip(version, "the run was stopped before it was over")
            raise
        finally:
            pinned.release()
            self._is_idle.set()
        if reason := _why_invalid(result, version):
            await self._skip(version, reason)
        else:
            self._measured_version = version
            seconds, num_samples = self._clock(), self._num_samples
            self._emit(
                result.as_event(seconds=seconds, version=version, num_samples=num_samples, max_kept=KEPT_SAMPLES)
            )

    async def _skip(self, version: int, reason: str) -> None:
        self._emit(EvalSkipped(seconds=self._clock(), version=version, reason=reason))


def _why_invalid(result: Evaluation, version: int) -> str:
    """Why this is not a valid evaluation of `version`; empty if it is valid."""
    lost = [failure for failure in result.failures if isinstance(failure, PinLostError)]
    if lost:
        return str(lost[0])
    if result.versions - {version}:
        return f"it was sampled by versions {sorted(result.versions)}; the generator did not keep {version}"
    if result.failures and not result.groups:
        last = brief(str(result.failures[-1]))
        return f"none of its {len(result.attempts)} prompts could be graded; the last: {last}"
    return ""
