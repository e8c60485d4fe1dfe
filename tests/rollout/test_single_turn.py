"""The default workflow: one prompt becomes a graded group."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import numpy as np
import pytest

from freerun.config.recipe import SamplingConfig
from freerun.errors import RolloutError
from freerun.rollout.single_turn import GradingFailed, SingleTurn, to_sampling
from freerun.types import Completion, Grade, GradeFailed, Prompt, Request, Reward, Sampling, Span

PROMPT = Prompt(
    ordinal=17, key="times-tables:7*8", text="7*8=", answer="56", token_ids=np.arange(4, dtype=np.int32)
)


def completion(text: str) -> Completion:
    return Completion(
        token_ids=np.arange(2, dtype=np.int32),
        logprobs=np.zeros(2, dtype=np.float32),
        spans=(Span(0, 2),),
        finish_reason="stop",
        text=text,
    )


class EchoGenerator:
    """Answers sample i with the text `i`."""

    def __init__(self, missing: int = 0) -> None:
        self.requests: list[Request] = []
        self.missing = missing

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        self.requests.append(request)
        return tuple(completion(str(request.sample + i)) for i in range(request.num_samples - self.missing))

    def end_session(self, session: int) -> None: ...

    async def load(self, version: int) -> None: ...

    def stats(self) -> tuple[()]:
        return ()


class FunctionGrader:
    num_graded = 0

    def compares(self, prompt: Prompt) -> bool:
        return False

    def __init__(self, grade_text: Callable[[str], Awaitable[Grade]]) -> None:
        self.grade_text = grade_text

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        return await self.grade_text(completion.text)

    async def grade_group(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Grade]:
        return await asyncio.gather(*(self.grade(prompt, completion) for completion in completions))


def workflow(num_samples: int, config: SamplingConfig | None = None) -> SingleTurn:
    sampling = to_sampling(config or SamplingConfig(), stop_token_ids=(0, 2))
    return SingleTurn(sampling, num_samples=num_samples, request_ids=itertools.count())


def test_a_group_comes_back_in_sample_order_with_its_rewards_whatever_finishes_first() -> None:
    async def grade(text: str) -> Grade:
        await asyncio.sleep(0.02 / (1 + int(text)))
        return Reward(value=float(text), is_correct=text == "2")

    group = asyncio.run(workflow(4)(PROMPT, EchoGenerator(), FunctionGrader(grade)))
    assert [t.sample for t in group] == [0, 1, 2, 3]
    assert [t.completion.text for t in group] == ["0", "1", "2", "3"]
    assert [t.reward.value for t in group] == [0.0, 1.0, 2.0, 3.0]
    assert all(t.prompt is PROMPT for t in group)


def test_all_completions_of_a_group_are_graded_at_the_same_time() -> None:
    async def run() -> int:
        all_started = asyncio.Event()
        started = itertools.count(1)

        async def grade(text: str) -> Grade:
            if next(started) == 5:
                all_started.set()
            async with asyncio.timeout(60):
                await all_started.wait()
            return Reward(value=0.0, is_correct=False)

        return len(await workflow(5)(PROMPT, EchoGenerator(), FunctionGrader(grade)))

    assert asyncio.run(run()) == 5


async def grade_as_wrong(text: str) -> Grade:
    return Reward(value=-5.0, is_correct=False)


class HeldGenerator(EchoGenerator):
    """Keeps the first sample until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        if request.sample == 0:
            await self.released.wait()
        return await super().generate(request)


def test_a_completion_is_graded_while_its_siblings_are_still_sampled() -> None:
    async def run() -> list[str]:
        generator, graded = HeldGenerator(), []

        async def grade(text: str) -> Grade:
            graded.append(text)
            if len(graded) == 2:
                generator.released.set()
            return Reward(value=0.0, is_correct=False)

        async with asyncio.timeout(60):
            await workflow(3)(PROMPT, generator, FunctionGrader(grade))
        return graded

    assert asyncio.run(run()) == ["1", "2", "0"]


def test_a_grader_that_compares_gets_all_completions_at_once() -> None:
    seen = []

    class ComparingGrader(FunctionGrader):
        def compares(self, prompt: Prompt) -> bool:
            return True

        async def grade_group(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Grade]:
            seen.append([completion.text for completion in completions])
            return await super().grade_group(prompt, completions)

    group = asyncio.run(workflow(3)(PROMPT, EchoGenerator(), ComparingGrader(grade_as_wrong)))
    assert seen == [["0", "1", "2"]]
    assert [t.reward.value for t in group] == [-5.0] * 3


def test_a_group_fails_when_its_last_sample_has_ended_and_aborts_none() -> None:
    async def run() -> HeldGenerator:
        class RefusingGenerator(HeldGenerator):
            async def generate(self, request: Request) -> tuple[Completion, ...]:
                if request.sample == 1:
                    raise RolloutError("refused")
                return await super().generate(request)

        generator = RefusingGenerator()
        group = asyncio.create_task(workflow(2)(PROMPT, generator, FunctionGrader(grade_as_wrong)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not group.done()
        generator.released.set()
        with pytest.raises(RolloutError, match="refused"):
            await group
        return generator

    assert [request.sample for request in asyncio.run(run()).requests] == [0]


def test_each_sample_is_a_request_with_the_sampling_and_an_id_of_its_own() -> None:
    config = SamplingConfig(max_completion_tokens=9, temperature=0.7, top_k=5, top_p=0.9, stop=("\n",))
    generator, single_turn = EchoGenerator(), workflow(3, config)

    async def run_twice() -> None:
        await single_turn(PROMPT, generator, FunctionGrader(grade_as_wrong))
        await single_turn(PROMPT, generator, FunctionGrader(grade_as_wrong))

    asyncio.run(run_twice())
    first = generator.requests[0]
    assert [(request.request_id, request.sample) for request in generator.requests] == [
        (0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2),
    ]  # fmt: skip
    assert {request.ordinal for request in generator.requests} == {17}
    assert first.prompt_token_ids is PROMPT.token_ids
    assert first.num_samples == 1
    assert first.sampling == Sampling(
        max_completion_tokens=9,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        stop_strings=("\n",),
        stop_token_ids=(0, 2),
    )


def test_one_failed_grade_fails_the_group_with_the_graders_reason() -> None:
    async def grade(text: str) -> Grade:
        return GradeFailed("took longer than 10 s") if text == "2" else Reward(1.0, True)

    with pytest.raises(GradingFailed, match=r"times-tables:7\*8: grading sample 2 failed: took longer") as caught:
        asyncio.run(workflow(4)(PROMPT, EchoGenerator(), FunctionGrader(grade)))
    assert caught.value.reason == "took longer than 10 s"
    assert isinstance(caught.value, RolloutError)


def test_a_generator_that_loses_samples_is_found_out() -> None:
    with pytest.raises(RolloutError, match="returned 0 completions for a request of 1"):
        asyncio.run(workflow(4)(PROMPT, EchoGenerator(missing=1), FunctionGrader(grade_as_wrong)))


def test_the_row_of_a_prompt_reaches_the_grader_but_not_the_trainer() -> None:
    prompt = msgspec.structs.replace(PROMPT, row={"level": 3})
    seen = []

    class RowGrader(FunctionGrader):
        async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
            seen.append(prompt.row)
            return await super().grade(prompt, completion)

    group = asyncio.run(workflow(2)(prompt, EchoGenerator(), RowGrader(grade_as_wrong)))
    assert seen == [{"level": 3}] * 2
    assert [(t.prompt.row, t.prompt.key) for t in group] == [({}, PROMPT.key)] * 2
