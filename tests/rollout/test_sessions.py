"""The workflow of sessions: one prompt becomes a group of sessions, each of several calls."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest

from freerun.chat.sequences import SessionSequence
from freerun.chat.session import Sample, SampleRequest
from freerun.errors import PinLostError
from freerun.rollout.sessions import GradeText, PlayedSession, SessionFailedError, SessionJob, Sessions
from freerun.types import Completion, Grade, Prompt, Request, Reward, Sampling, Span, Trajectory

PROMPT = Prompt(
    ordinal=17,
    key="row 17",
    text="play",
    answer="56",
    token_ids=np.arange(4, dtype=np.int32),
    row={"level": 17},
)


class NotingGenerator:
    """Answers with one token under version 3; notes requests and the sessions that have ended."""

    def __init__(self, error: Exception | None = None) -> None:
        self.requests: list[Request] = []
        self.ended: list[int] = []
        self.error = error

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        self.requests.append(request)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return (
            Completion(
                token_ids=np.array([7], np.int32),
                logprobs=np.array([-0.5], np.float32),
                spans=(Span(3, 1),),
                finish_reason="stop",
                text="x",
            ),
        )

    def end_session(self, session: int) -> None:
        self.ended.append(session)


class LengthGrader:
    num_graded = 0

    def compares(self, prompt: Prompt) -> bool:
        return False

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        assert prompt is PROMPT
        return Reward(float(len(completion.text)), True)

    async def grade_group(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Grade]:
        raise AssertionError("sessions ask for one grade each")


class InlineRunner:
    """Satisfies `SessionRunner`: plays a coroutine right here."""

    def __init__(self, play: Callable[[SessionJob, Sample, GradeText], Awaitable[PlayedSession]]) -> None:
        self.play = play
        self.jobs: list[SessionJob] = []

    async def run(self, job: SessionJob, *, sample: Sample, grade: GradeText) -> PlayedSession:
        self.jobs.append(job)
        return await self.play(job, sample, grade)


def ids(*token_ids: int) -> np.ndarray:
    return np.array(token_ids, np.int32)


def ask(*token_ids: int, call: int = 0, num_samples: int = 1) -> SampleRequest:
    return SampleRequest(token_ids=ids(*token_ids), max_tokens=5, stop=("\n",), num_samples=num_samples, call=call)


async def two_turns(job: SessionJob, sample: Sample, grade: GradeText) -> PlayedSession:
    """Two calls that share nothing: two sequences."""
    replies = [(await sample(ask(call, call + 1, call=call)))[0] for call in range(2)]
    sequences = tuple(
        SessionSequence(prompt_token_ids=ids(call, call + 1), completion=reply)
        for call, reply in enumerate(replies)
    )
    reward = await grade("four")
    assert isinstance(reward, Reward)
    return PlayedSession(sequences=sequences, reward=reward, is_truncated=job.sample == 1)


def sessions(runner: InlineRunner, *, num_samples: int = 3, is_evaluation: bool = False) -> Sessions:
    return Sessions(
        runner,
        Sampling(max_completion_tokens=9, temperature=0.5, stop_strings=("##",), stop_token_ids=(2,)),
        num_samples=num_samples,
        is_evaluation=is_evaluation,
        request_ids=itertools.count(100),
        numbers=itertools.count(40),
    )


def run(runner: InlineRunner, generator: NotingGenerator) -> tuple[Trajectory, ...]:
    return asyncio.run(sessions(runner)(PROMPT, generator, LengthGrader()))


def test_a_group_is_one_session_for_each_sample_and_each_sequence_is_a_part() -> None:
    runner, generator = InlineRunner(two_turns), NotingGenerator()
    trajectories = run(runner, generator)
    assert [(t.sample, t.part) for t in trajectories] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [t.prompt.token_ids.tolist() for t in trajectories] == [[0, 1], [1, 2]] * 3
    assert all(t.prompt.text == "play" and t.prompt.ordinal == 17 for t in trajectories)
    assert all(t.prompt.row == {} for t in trajectories), "the trainer needs no row"
    assert all(t.reward == Reward(4.0, True) for t in trajectories)
    assert [t.completion.finish_reason for t in trajectories] == [
        "stop",
        "stop",
        "length",
        "length",
        "stop",
        "stop",
    ]
    assert [t.completion.spans for t in trajectories[:2]] == [(Span(3, 1, 0),), (Span(3, 1, 1),)]


def test_a_call_has_its_sample_its_number_and_the_sampling_of_the_recipe() -> None:
    generator = NotingGenerator()
    run(InlineRunner(two_turns), generator)
    assert sorted((r.session, r.sample, r.call) for r in generator.requests) == [
        (40 + sample, sample, call) for sample in range(3) for call in range(2)
    ]
    assert len({request.request_id for request in generator.requests}) == 6
    first = generator.requests[0]
    assert (first.ordinal, first.num_samples) == (17, 1)
    assert first.sampling == Sampling(
        max_completion_tokens=5, temperature=0.5, stop_strings=("##", "\n"), stop_token_ids=(2,)
    )


def test_first_calls_of_a_group_are_made_in_one_turn_of_the_event_loop() -> None:
    generator = NotingGenerator()
    run(InlineRunner(two_turns), generator)
    assert [request.call for request in generator.requests] == [0, 0, 0, 1, 1, 1]


def test_several_replies_are_several_calls() -> None:
    generator = NotingGenerator()

    async def three_replies(job: SessionJob, sample: Sample, grade: GradeText) -> PlayedSession:
        replies = await sample(ask(1, call=4, num_samples=3))
        sequences = tuple(SessionSequence(prompt_token_ids=ids(1), completion=reply) for reply in replies)
        return PlayedSession(sequences=sequences, reward=Reward(1.0, True), is_truncated=False)

    trajectories = run(InlineRunner(three_replies), generator)
    assert sorted(request.call for request in generator.requests) == [4, 4, 4, 5, 5, 5, 6, 6, 6]
    assert all(request.num_samples == 1 for request in generator.requests)
    assert [t.completion.spans[0].call for t in trajectories[:3]] == [4, 5, 6]


def test_an_episode_is_told_what_it_plays() -> None:
    runner = InlineRunner(two_turns)
    workflow = sessions(runner, num_samples=2, is_evaluation=True)
    asyncio.run(workflow(PROMPT, NotingGenerator(), LengthGrader()))
    assert [(job.number, job.sample, job.row, job.is_evaluation) for job in runner.jobs] == [
        (40, 0, {"level": 17}, True),
        (41, 1, {"level": 17}, True),
    ]


def test_a_session_that_failed_is_tried_once_more_with_the_same_calls() -> None:
    generator = NotingGenerator()
    failed: list[SessionJob] = []

    async def fail_once(job: SessionJob, sample: Sample, grade: GradeText) -> PlayedSession:
        played = await two_turns(job, sample, grade)
        if job.sample == 1 and not failed:
            failed.append(job)
            raise SessionFailedError("the environment was away")
        return played

    trajectories = run(InlineRunner(fail_once), generator)
    assert {t.sample for t in trajectories} == {0, 1, 2}
    asked = [(r.ordinal, r.sample, r.call, r.session) for r in generator.requests if r.sample == 1]
    assert asked == [(17, 1, 0, 41), (17, 1, 1, 41)] * 2
    assert sorted(generator.ended) == [40, 41, 42]


def test_a_session_that_failed_twice_fails_the_group_and_ends_the_others() -> None:
    generator = NotingGenerator()
    aborted: list[int] = []

    async def fail(job: SessionJob, sample: Sample, grade: GradeText) -> PlayedSession:
        if job.sample == 1:
            raise SessionFailedError("the environment is away")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            aborted.append(job.sample)
            raise
        raise AssertionError

    runner = InlineRunner(fail)
    with pytest.raises(SessionFailedError, match="the environment is away"):
        run(runner, generator)
    assert sorted(job.sample for job in runner.jobs) == [0, 1, 1, 2]
    assert sorted(aborted) == [0, 2]
    assert sorted(generator.ended) == [40, 41, 42]


def test_what_the_engines_raise_fails_the_group_at_once() -> None:
    generator = NotingGenerator(PinLostError("version 4 is gone"))
    runner = InlineRunner(two_turns)
    with pytest.raises(PinLostError, match="version 4 is gone"):
        run(runner, generator)
    assert len(runner.jobs) == 3, "none is tried again"
    assert sorted(generator.ended) == [40, 41, 42]


def test_a_grader_is_told_what_a_session_has_sampled_so_far() -> None:
    seen = []

    class NotingGrader(LengthGrader):
        async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
            seen.append((prompt.row, len(completion.token_ids), completion.finish_reason))
            return await super().grade(prompt, completion)

    generator = NotingGenerator()
    runner = InlineRunner(two_turns)
    played = asyncio.run(sessions(runner, num_samples=1)(PROMPT, generator, NotingGrader()))
    num_sampled = sum(len(trajectory.completion.token_ids) for trajectory in played)
    assert num_sampled > 0
    assert seen == [({"level": 17}, num_sampled, "stop")]
