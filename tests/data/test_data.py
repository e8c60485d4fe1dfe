"""The stream of prompts and the workflow that turns one of them into a group."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_prompts import content, make_tokenizer, problems_of

from freerun.config.data import DataConfig
from freerun.config.recipe import SamplingConfig
from freerun.data.source import PromptSource
from freerun.data.tasks import Problems, load_problems
from freerun.data.tokenizer import Tokenizer
from freerun.errors import DataError, RolloutError
from freerun.rollout.single_turn import GradingFailed, SingleTurn
from freerun.types import Completion, Grade, GradeFailed, Prompt, Request, Reward, Sampling, Span

TIMES_TABLES = DataConfig(task="times-tables")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("model"))


# The stream


@given(num_problems=st.integers(1, 30), seed=st.integers(), epoch=st.integers(0, 50))
def test_every_epoch_is_a_permutation_of_the_training_problems(
    tokenizer: Tokenizer, num_problems: int, seed: int, epoch: int
) -> None:
    source = PromptSource(problems_of(num_problems), tokenizer, config=TIMES_TABLES, seed=seed)
    ordinals = range(epoch * num_problems, (epoch + 1) * num_problems)
    assert sorted(int(source.at(ordinal).answer) for ordinal in ordinals) == list(range(num_problems))


@given(num_problems=st.integers(1, 9), seed=st.integers(), asked=st.lists(st.integers(0, 99)))
def test_any_ordinal_gives_what_taking_in_order_gives(
    tokenizer: Tokenizer, num_problems: int, seed: int, asked: list[int]
) -> None:
    def make() -> PromptSource:
        return PromptSource(problems_of(num_problems), tokenizer, config=TIMES_TABLES, seed=seed)

    walked, asked_at_random = make(), make()
    taken = [content(walked.take()) for _ in range(100)]
    assert [content(asked_at_random.at(ordinal)) for ordinal in asked] == [taken[ordinal] for ordinal in asked]
    assert walked.cursor == 100


@given(num_problems=st.integers(1, 9), seed=st.integers(), stop=st.integers(0, 40))
def test_a_source_resumed_at_its_cursor_goes_on_as_if_uninterrupted(
    tokenizer: Tokenizer, num_problems: int, seed: int, stop: int
) -> None:
    def make() -> PromptSource:
        return PromptSource(problems_of(num_problems), tokenizer, config=TIMES_TABLES, seed=seed)

    uninterrupted, before, after = make(), make(), make()
    expected = [content(uninterrupted.take()) for _ in range(stop + 20)]
    first = [content(before.take()) for _ in range(stop)]
    after.cursor = before.cursor
    assert first + [content(after.take()) for _ in range(20)] == expected


def test_the_order_depends_on_the_seed_and_on_the_epoch(tokenizer: Tokenizer) -> None:
    def order(seed: int, epoch: int) -> list[str]:
        source = PromptSource(problems_of(30), tokenizer, config=TIMES_TABLES, seed=seed)
        return [source.at(30 * epoch + i).answer for i in range(30)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(2, 0)
    assert order(1, 0) != order(1, 1)


def test_a_prompt_carries_its_ordinal_task_text_answer_and_tokens(tokenizer: Tokenizer) -> None:
    source = PromptSource(load_problems(TIMES_TABLES), tokenizer, config=TIMES_TABLES, seed=0)
    prompt = source.at(1234)
    a, b = map(int, prompt.key.removeprefix("times-tables:").split("*"))
    assert prompt.ordinal == 1234
    assert prompt.text == f"Question: What is {a} * {b}?\nAnswer:"
    assert prompt.answer == str(a * b)
    assert prompt.token_ids.dtype == np.int32
    assert tokenizer.decode(prompt.token_ids) == "^" + prompt.text


def test_rows_of_a_file_keep_their_key(tokenizer: Tokenizer) -> None:
    source = PromptSource(problems_of(3), tokenizer, config=DataConfig(path="a.jsonl"), seed=0)
    assert {source.take().key for _ in range(3)} == {"0", "1", "2"}


def test_held_out_prompts_have_negative_ordinals_and_do_not_depend_on_the_seed(tokenizer: Tokenizer) -> None:
    problems = load_problems(TIMES_TABLES)
    first, other = (PromptSource(problems, tokenizer, config=TIMES_TABLES, seed=s) for s in (1, 2))
    assert [p.ordinal for p in first.held_out(4)] == [-1, -2, -3, -4]
    assert [content(p) for p in first.held_out(4)] == [content(p) for p in other.held_out(4)]
    assert len(first.held_out(1000)) == 20
    training = {first.take().key for _ in range(first.epoch_size)}
    assert len(training) == 80
    assert training.isdisjoint(p.key for p in first.held_out(1000))


def test_a_negative_ordinal_is_not_in_the_stream(tokenizer: Tokenizer) -> None:
    source = PromptSource(problems_of(3), tokenizer, config=TIMES_TABLES, seed=0)
    with pytest.raises(ValueError, match="ordinal -1 is negative"):
        source.at(-1)


def test_prompts_that_are_too_long_are_left_out_and_counted(tokenizer: Tokenizer) -> None:
    # Problem i takes i + 2 tokens: the bos token, i times x, the question mark.
    config = DataConfig(task="times-tables", max_prompt_tokens=6)
    problems = Problems(training=problems_of(10).training, held_out=problems_of(3, 7).held_out)
    source = PromptSource(problems, tokenizer, config=config, seed=0)
    assert source.epoch_size == 5
    assert {source.take().answer for _ in range(20)} == {"0", "1", "2", "3", "4"}
    assert [p.answer for p in source.held_out(9)] == ["3", "4"]
    assert source.num_too_long == 5 + 5


def test_a_limit_that_leaves_no_prompt_says_how_far_to_raise_it(tokenizer: Tokenizer) -> None:
    config = DataConfig(task="times-tables", max_prompt_tokens=1)
    with pytest.raises(DataError, match=r"max_prompt_tokens = 1 leaves out all 10 .*raise it to 2 or more"):
        PromptSource(problems_of(10), tokenizer, config=config, seed=0)


def test_a_tokenizer_that_knows_no_character_of_a_prompt_is_refused(tmp_path: Path) -> None:
    digits = make_tokenizer(tmp_path / "digits", "0123456789")
    with pytest.raises(DataError, match=r"times-tables:0: the tokenizer knows no character of '\?'"):
        PromptSource(problems_of(2), digits, config=TIMES_TABLES, seed=0)


def test_the_chat_template_wraps_the_text_and_brings_its_own_bos_token(tokenizer: Tokenizer) -> None:
    config = DataConfig(task="times-tables", use_chat_template=True)
    prompt = PromptSource(problems_of(1), tokenizer, config=config, seed=0).take()
    assert prompt.text == "^<user>?>"
    assert tokenizer.decode(prompt.token_ids) == prompt.text


# The single-turn workflow

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
        return tuple(completion(str(i)) for i in range(request.num_samples - self.missing))

    async def load(self, version: int) -> None: ...

    def stats(self) -> tuple[()]:
        return ()


class FunctionGrader:
    num_graded = 0

    def __init__(self, grade_text: Callable[[str], Awaitable[Grade]]) -> None:
        self.grade_text = grade_text

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        return await self.grade_text(completion.text)


def workflow(num_samples: int, config: SamplingConfig | None = None) -> SingleTurn:
    return SingleTurn(
        config or SamplingConfig(), num_samples=num_samples, stop_token_ids=(0, 2), request_ids=itertools.count()
    )


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
            async with asyncio.timeout(5):
                await all_started.wait()
            return Reward(value=0.0, is_correct=False)

        return len(await workflow(5)(PROMPT, EchoGenerator(), FunctionGrader(grade)))

    assert asyncio.run(run()) == 5


async def grade_as_wrong(text: str) -> Grade:
    return Reward(value=-5.0, is_correct=False)


def test_the_request_carries_the_sampling_and_an_id_of_its_own() -> None:
    config = SamplingConfig(max_completion_tokens=9, temperature=0.7, top_k=5, top_p=0.9, stop=("\n",))
    generator, single_turn = EchoGenerator(), workflow(3, config)

    async def run_twice() -> None:
        await single_turn(PROMPT, generator, FunctionGrader(grade_as_wrong))
        await single_turn(PROMPT, generator, FunctionGrader(grade_as_wrong))

    asyncio.run(run_twice())
    first, second = generator.requests
    assert (first.request_id, second.request_id) == (0, 1)
    assert first.ordinal == second.ordinal == 17
    assert first.prompt_token_ids is PROMPT.token_ids
    assert first.num_samples == 3
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
    with pytest.raises(RolloutError, match="returned 3 completions for a request of 4"):
        asyncio.run(workflow(4)(PROMPT, EchoGenerator(missing=1), FunctionGrader(grade_as_wrong)))
