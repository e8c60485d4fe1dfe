"""A worker that answers every message immediately and computes nothing: rollout, trainer or grader.

`bench/simulated_run.py` starts it instead of the real ones, which leaves only the controller's work.
"""

import itertools
from pathlib import Path

import numpy as np

from freerun.processes.parent import Parent, run_worker
from freerun.reward import messages as grading
from freerun.types import Completion, Grade, Group, Publication, Request, Reward, Span, StepResult
from freerun.workers.messages import (
    EngineReady,
    Finished,
    Generate,
    Load,
    Loaded,
    Publish,
    Published,
    Save,
    Saved,
    StartEngine,
    StartTrainer,
    StepDone,
    ToRollout,
    ToTrainer,
    TrainerReady,
    TrainStep,
)

COMPLETION_TOKENS = 64
NUM_METRICS = 30

Asked = ToRollout | ToTrainer | grading.ToWorker


class SimulatedWorker:
    """Tokens of the last loaded version, steps that produce the next version, every other completion correct."""

    def __init__(self, parent: Parent[Asked]) -> None:
        self._parent = parent
        self._version = 0
        self._num_graded = itertools.count()
        self._token_ids = np.arange(COMPLETION_TOKENS, dtype=np.int32)
        self._logprobs = np.full(COMPLETION_TOKENS, -1.0, dtype=np.float32)

    def serve(self) -> None:
        while True:
            match self._parent.receive(timeout_seconds=3600):
                case StartEngine():
                    self._parent.send(EngineReady())
                case Generate(requests=requests):
                    for request in requests:
                        self._generate(request)
                case Load(published=published):
                    self._version = published.version
                    self._parent.send(Loaded(published=published))
                case StartTrainer():
                    self._parent.send(TrainerReady(num_parameters=0, num_trained=0))
                case TrainStep(groups=groups):
                    self._parent.send(StepDone(result=self._step(groups)))
                case Publish():
                    published = Publication(version=self._version, checksum="")
                    self._parent.send(Published(published=published))
                case Save(directory=directory):
                    (Path(directory) / "model").mkdir()
                    self._parent.send(Saved(directory=directory, error=""))
                case grading.Begin():
                    self._parent.send(grading.Ready())
                case grading.Jobs(jobs=jobs):
                    for job in jobs:
                        self._parent.send_now(grading.Graded(job.number, (self._grade(),)))

    def _generate(self, request: Request) -> None:
        completion = Completion(
            token_ids=self._token_ids,
            logprobs=self._logprobs,
            spans=(Span(self._version, COMPLETION_TOKENS),),
            finish_reason="stop",
            text="x" * COMPLETION_TOKENS,
        )
        self._parent.send(Finished(completions={request.request_id: (completion,) * request.num_samples}))

    def _step(self, groups: tuple[Group, ...]) -> StepResult:
        counts: dict[int, int] = {}
        for group in groups:
            staleness = self._version - group.oldest_version
            counts[staleness] = counts.get(staleness, 0) + len(group.trajectories)
        self._version += 1
        metrics = {f"metric_{number}": 1.0 for number in range(NUM_METRICS)}
        return StepResult(version=self._version, metrics=metrics, staleness_counts=counts)

    def _grade(self) -> Grade:
        is_correct = next(self._num_graded) % 2 == 0
        return Reward(float(is_correct), is_correct)


def serve(parent: Parent[Asked]) -> None:
    SimulatedWorker(parent).serve()


if __name__ == "__main__":
    run_worker(Asked, serve)
