"""Answers that the graders cannot read are found before a run begins."""

import numpy as np
import pytest

from freerun.config.reward import RewardConfig
from freerun.errors import DataError
from freerun.reward.graders import check_answers
from freerun.types import Prompt

ENTRY = '{"question": "2 + 3", "answer": "5", "metadata": {"source_dataset": "chain_sum"}}'


def prompts(*answers: str) -> list[Prompt]:
    return [
        Prompt(ordinal=n, key=f"train.jsonl:{n}", text="?", answer=answer, token_ids=np.array([1], np.int32))
        for n, answer in enumerate(answers, start=1)
    ]


@pytest.mark.parametrize(
    ("grader", "good", "bad", "complaint"),
    [
        ("number", "it is 1,234.", "none", "the answer 'none' holds no number"),
        ("number", "1/2", "1/0", "the answer '1/0' holds no number"),
        ("code", "assert double(2) == 4", "assert double(", "the answer is not a Python program"),
        ("code", "assert double(2) == 4", "assert 1 == 1", "calls no function"),
        ("reasoning-gym", ENTRY, "5", "not the JSON of a reasoning_gym entry"),
        ("reasoning-gym", ENTRY, "{}", "not the JSON of a reasoning_gym entry"),
        ("format + 0.1 * number", "3", "three", "the answer 'three' holds no number"),
    ],
)
def test_an_answer_that_a_grader_cannot_read_is_named_by_its_key(
    grader: str, good: str, bad: str, complaint: str
) -> None:
    config = RewardConfig(grader=grader)
    check_answers(config, prompts(good, good))
    with pytest.raises(DataError, match=f'\\Atrain.jsonl:2: the grader ".*" cannot grade it: .*{complaint}'):
        check_answers(config, prompts(good, bad))


def test_the_first_five_are_shown_and_all_are_counted() -> None:
    with pytest.raises(DataError) as caught:
        check_answers(RewardConfig(), prompts("1", *["none"] * 7))
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines[:5]] == [f"train.jsonl:{n}" for n in range(2, 7)]
    assert lines[5:] == ["7 of 8 answers cannot be read; fix them or change reward.grader"]


def test_graders_that_can_use_any_text_and_the_users_own_are_not_checked() -> None:
    check_answers(RewardConfig(grader="exact + format + my_task:grade"), prompts("anything"))
