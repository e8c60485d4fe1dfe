"""How prompts are worded: system prompt, solved examples, raw text and chats."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_prompts import make_tokenizer

from freerun.config.data import DataConfig
from freerun.data.source import PromptSource
from freerun.data.task_prompt import TaskPrompt
from freerun.data.tasks import load_prompts
from freerun.data.tokenizer import Tokenizer
from freerun.data.wording import Wording
from freerun.errors import DataError

ASKED = TaskPrompt(key="3", text="Q: 3?\nA:", answer="9")
SHOTS = [
    TaskPrompt(key="1", text="Q: 1?\nA:", answer="1"),
    TaskPrompt(key="2", text="Q: 2?\nA:", answer="4", shot="2 2 4"),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("model"))


def worded(tokenizer: Tokenizer, shots: list[TaskPrompt], **settings: Any) -> str:
    return Wording(DataConfig(task="times-tables", **settings), shots, tokenizer).of(ASKED).text


def test_solved_examples_come_first_worded_like_the_question(tokenizer: Tokenizer) -> None:
    assert worded(tokenizer, SHOTS) == "Q: 1?\nA: 1\n\nQ: 2?\nA: 2 2 4\n\nQ: 3?\nA:"


def test_no_space_is_added_where_there_is_one(tokenizer: Tokenizer) -> None:
    shot = TaskPrompt(key="f", text="def f():\n", answer="tests", shot="    return 1")
    assert worded(tokenizer, [shot]) == "def f():\n    return 1\n\nQ: 3?\nA:"


def test_a_system_prompt_is_a_paragraph_before_everything(tokenizer: Tokenizer) -> None:
    assert worded(tokenizer, SHOTS[:1], system_prompt="Be brief.") == "Be brief.\n\nQ: 1?\nA: 1\n\nQ: 3?\nA:"


def test_in_a_chat_examples_are_earlier_turns(tokenizer: Tokenizer) -> None:
    text = worded(tokenizer, SHOTS, system_prompt="Be brief.", use_chat_template=True)
    assert text == ("^<system>Be brief.<user>Q: 1?\nA:<assistant>1<user>Q: 2?\nA:<assistant>2 2 4<user>Q: 3?\nA:>")


def test_an_example_with_nothing_to_show_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"1: has no completion to show; set data\.num_shots = 0"):
        worded(tokenizer, [TaskPrompt(key="1", text="Q", answer="")])


def test_examples_are_fixed_training_prompts_that_are_neither_trained_on_nor_held_out(
    tokenizer: Tokenizer,
) -> None:
    without = load_prompts(DataConfig(task="times-tables"))
    config = DataConfig(task="times-tables", num_shots=3)
    prompts = load_prompts(config)
    assert prompts.held_out == without.held_out
    assert len(prompts.training) == 77
    assert {*prompts.training, *prompts.shots} == set(without.training)
    first, other = (PromptSource(prompts, tokenizer, config=config, seed=seed) for seed in (1, 2))
    shown = [
        text.rpartition("\n\n")[0] for text in (first.at(0).text, other.at(5).text, first.held_out(1)[0].text)
    ]
    assert len(set(shown)) == 1
    assert all(f"{shot.text} {shot.answer}" in shown[0] for shot in prompts.shots)


def test_an_example_shows_what_the_recipe_wants_to_see_not_only_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    rows = [{"question": str(n), "answer": f"think #### {n}"} for n in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(path=str(path), answer_after="####", num_shots=1, shot_template="{answer}.")
    (shot,) = load_prompts(config).shots
    assert (shot.shot, shot.answer) == (f"think #### {shot.answer}.", shot.answer)


def test_so_many_examples_that_none_is_left_to_train_on_are_refused() -> None:
    with pytest.raises(DataError, match=r"data\.num_shots = 80 of 80 training prompts leaves none"):
        load_prompts(DataConfig(task="times-tables", num_shots=80))
