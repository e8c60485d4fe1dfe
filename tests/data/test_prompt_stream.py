"""The stream of prompts: seeded, resumable, every prompt once per epoch."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_prompts import content, make_tokenizer, prompts_of

from freerun.config.data import DataConfig
from freerun.data.source import PromptSource
from freerun.data.task_prompt import TaskPrompts
from freerun.data.tasks import load_prompts
from freerun.data.tokenizer import Tokenizer
from freerun.errors import DataError

TIMES_TABLES = DataConfig(task="times-tables")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("model"))


@given(num_prompts=st.integers(1, 30), seed=st.integers(), epoch=st.integers(0, 50))
def test_every_epoch_is_a_permutation_of_the_training_prompts(
    tokenizer: Tokenizer, num_prompts: int, seed: int, epoch: int
) -> None:
    source = PromptSource(prompts_of(num_prompts), tokenizer, config=TIMES_TABLES, seed=seed)
    ordinals = range(epoch * num_prompts, (epoch + 1) * num_prompts)
    assert sorted(int(source.at(ordinal).answer) for ordinal in ordinals) == list(range(num_prompts))


@given(num_prompts=st.integers(1, 9), seed=st.integers(), asked=st.lists(st.integers(0, 99)))
def test_any_ordinal_gives_what_taking_in_order_gives(
    tokenizer: Tokenizer, num_prompts: int, seed: int, asked: list[int]
) -> None:
    def make() -> PromptSource:
        return PromptSource(prompts_of(num_prompts), tokenizer, config=TIMES_TABLES, seed=seed)

    walked, asked_at_random = make(), make()
    taken = [content(walked.take()) for _ in range(100)]
    assert [content(asked_at_random.at(ordinal)) for ordinal in asked] == [taken[ordinal] for ordinal in asked]
    assert walked.cursor == 100


@given(num_prompts=st.integers(1, 9), seed=st.integers(), stop=st.integers(0, 40))
def test_a_source_resumed_at_its_cursor_goes_on_as_if_uninterrupted(
    tokenizer: Tokenizer, num_prompts: int, seed: int, stop: int
) -> None:
    def make() -> PromptSource:
        return PromptSource(prompts_of(num_prompts), tokenizer, config=TIMES_TABLES, seed=seed)

    uninterrupted, before, after = make(), make(), make()
    expected = [content(uninterrupted.take()) for _ in range(stop + 20)]
    first = [content(before.take()) for _ in range(stop)]
    after.cursor = before.cursor
    assert first + [content(after.take()) for _ in range(20)] == expected


def test_the_order_depends_on_the_seed_and_on_the_epoch(tokenizer: Tokenizer) -> None:
    def order(seed: int, epoch: int) -> list[str]:
        source = PromptSource(prompts_of(30), tokenizer, config=TIMES_TABLES, seed=seed)
        return [source.at(30 * epoch + i).answer for i in range(30)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(2, 0)
    assert order(1, 0) != order(1, 1)


def test_a_prompt_carries_its_ordinal_task_text_answer_and_tokens(tokenizer: Tokenizer) -> None:
    source = PromptSource(load_prompts(TIMES_TABLES), tokenizer, config=TIMES_TABLES, seed=0)
    prompt = source.at(1234)
    a, b = map(int, prompt.key.removeprefix("times-tables:").split("*"))
    assert prompt.ordinal == 1234
    assert prompt.text == f"Question: What is {a} * {b}?\nAnswer:"
    assert prompt.answer == str(a * b)
    assert prompt.token_ids.dtype == np.int32
    assert tokenizer.decode(prompt.token_ids) == "^" + prompt.text


def test_rows_of_a_file_keep_their_key(tokenizer: Tokenizer) -> None:
    source = PromptSource(prompts_of(3), tokenizer, config=DataConfig(path="a.jsonl"), seed=0)
    assert {source.take().key for _ in range(3)} == {"0", "1", "2"}


def test_held_out_prompts_have_negative_ordinals_and_do_not_depend_on_the_seed(tokenizer: Tokenizer) -> None:
    prompts = load_prompts(TIMES_TABLES)
    first, other = (PromptSource(prompts, tokenizer, config=TIMES_TABLES, seed=s) for s in (1, 2))
    assert [p.ordinal for p in first.held_out(4)] == [-1, -2, -3, -4]
    assert [content(p) for p in first.held_out(4)] == [content(p) for p in other.held_out(4)]
    assert len(first.held_out(1000)) == 20
    training = {first.take().key for _ in range(first.epoch_size)}
    assert len(training) == 80
    assert training.isdisjoint(p.key for p in first.held_out(1000))


def test_a_negative_ordinal_is_not_in_the_stream(tokenizer: Tokenizer) -> None:
    source = PromptSource(prompts_of(3), tokenizer, config=TIMES_TABLES, seed=0)
    with pytest.raises(ValueError, match="ordinal -1 is negative"):
        source.at(-1)


def test_prompts_that_are_too_long_are_left_out_and_counted(tokenizer: Tokenizer) -> None:
    # Prompt i takes i + 2 tokens: the bos token, i times x, the question mark.
    config = DataConfig(task="times-tables", max_prompt_tokens=6)
    prompts = TaskPrompts(training=prompts_of(10).training, held_out=prompts_of(3, 7).held_out)
    source = PromptSource(prompts, tokenizer, config=config, seed=0)
    assert source.epoch_size == 5
    assert {source.take().answer for _ in range(20)} == {"0", "1", "2", "3", "4"}
    assert [p.answer for p in source.held_out(9)] == ["3", "4"]
    assert source.num_too_long == 5 + 5


def test_a_limit_that_leaves_no_prompt_says_how_far_to_raise_it(tokenizer: Tokenizer) -> None:
    config = DataConfig(task="times-tables", max_prompt_tokens=1)
    with pytest.raises(DataError, match=r"max_prompt_tokens = 1 leaves out all 10 .*raise it to 2 or more"):
        PromptSource(prompts_of(10), tokenizer, config=config, seed=0)


def test_a_tokenizer_that_knows_no_character_of_a_prompt_is_refused(tmp_path: Path) -> None:
    digits = make_tokenizer(tmp_path / "digits", "0123456789")
    with pytest.raises(DataError, match=r"times-tables:0: the tokenizer knows no character of '\?'"):
        PromptSource(prompts_of(2), digits, config=TIMES_TABLES, seed=0)


def test_the_chat_template_wraps_the_text_and_brings_its_own_bos_token(tokenizer: Tokenizer) -> None:
    config = DataConfig(task="times-tables", use_chat_template=True)
    prompt = PromptSource(prompts_of(1), tokenizer, config=config, seed=0).take()
    assert prompt.text == "^<user>?>"
    assert tokenizer.decode(prompt.token_ids) == prompt.text


# The single-turn workflow
