"""Word problems of our own: right answers, many stories, and a held-out part that the seed does not move."""

import hashlib
import random
import re
import string
from pathlib import Path

import pytest

from freerun.cli.main import main
from freerun.config.data import DataConfig
from freerun.data.tasks import load_prompts
from freerun.data.word_problems import demonstration, prompts
from freerun.errors import ConfigError
from freerun.events.reader import RunReader
from freerun.model.tiny import make_tiny

SIGNS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}


@pytest.mark.parametrize("settings", [{}, {"min_steps": 2, "max_steps": 3, "max_number": 50}, {"max_steps": 1}])
def test_the_steps_of_a_solution_lead_from_the_story_to_the_answer(settings: dict[str, int]) -> None:
    for prompt in prompts(size=300, **settings):
        result = None
        equations = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", prompt.shot)
        for left, sign, right, equals in equations:
            assert result is None or int(left) == result
            result = SIGNS[sign](int(left), int(right))
            assert (result, int(left) % int(right) if sign == "/" else 0) == (int(equals), 0)
            assert right in prompt.text
            assert result >= 1
        assert str(result) == prompt.answer
        assert prompt.shot.endswith(f"The answer is {prompt.answer}.")
        assert settings.get("min_steps", 1) <= len(equations) <= settings.get("max_steps", 2)


def test_a_demonstration_errs_as_often_as_asked_and_then_goes_on_from_its_error() -> None:
    told = list(prompts(size=300, min_steps=2, max_steps=3))
    rng = random.Random(0)
    assert [demonstration(prompt, rng, 0.0) for prompt in told] == [f" {prompt.shot}\n" for prompt in told]
    num_right = 0
    for prompt in told:
        text = demonstration(prompt, rng, 0.3)
        result = None
        for left, sign, right, equals in re.findall(r"(-?\d+) ([-+*/]) (\d+) = (-?\d+)", text):
            assert result is None or int(left) == result
            result = SIGNS[sign](int(left), int(right))
            assert result == int(equals)
        assert text.endswith(f"The answer is {result}.\n")
        num_right += str(result) == prompt.answer
    assert 0.3 < num_right / 300 < 0.6, "0.7 to the power of two or three steps"


def test_a_seed_decides_everything_and_no_text_comes_twice() -> None:
    first, again, other = (list(prompts(size=500, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert len({prompt.text for prompt in first}) == len({prompt.key for prompt in first}) == 500
    assert len({prompt.text for prompt in first + other}) > 900


def test_stories_differ_in_more_than_their_numbers() -> None:
    stories = {re.sub(r"\d+", "N", prompt.text) for prompt in prompts(size=1000)}
    assert len(stories) > 800


def test_what_a_prompt_says_decides_its_key_and_so_whether_it_is_held_out() -> None:
    """A larger size adds prompts; the first ones, and their keys, stay."""
    assert list(prompts(size=50)) == list(prompts(size=100))[:50]
    config = DataConfig(task="word-problems", settings=("size=400",))
    loaded = load_prompts(config)
    assert len(loaded.held_out) == 80
    assert not {prompt.text for prompt in loaded.held_out} & {prompt.text for prompt in loaded.training}
    for prompt in loaded.held_out[:5]:
        digest = hashlib.sha256(prompt.text.encode()).hexdigest()
        assert prompt.key.endswith(f"({digest[:8]})")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 1}, "size = 1 must be a whole number from 2 to 50000"),
        ({"min_steps": 3, "max_steps": 2}, "max_steps = 2 must be a whole number from 3 to 6"),
        ({"max_number": 2.5}, "max_number = 2.5 must be a whole number"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(prompts(**settings))


# The recipe

FEW_STEPS = (
    "--train.num_steps",
    "2",
    "--train.prompts_per_step",
    "4",
    "--sft.num_steps",
    "2",
    "--eval.num_prompts",
    "4",
)


@pytest.fixture
def with_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model in the place of the recipe's own."""
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 16}
    make_tiny(tmp_path / "models" / "smollm2", alphabet=string.printable, **sizes)


@pytest.mark.usefixtures("with_model")
def test_the_recipe_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "word-problems", "--dry-run", "--data.max_prompt_tokens", "512"]) == 0
    assert capsys.readouterr().out.count("the grader gives its solution 5, right") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("with_model")
def test_the_recipe_imitates_and_then_trains() -> None:
    longer = ("--data.max_prompt_tokens", "512", "--engine.cache_tokens", "65536")  # a token is one character
    assert main(["train", "word-problems", "--run.name", "short", *longer, *FEW_STEPS]) == 0
    with RunReader(Path("runs/short")) as run:
        assert [step.version for step in run.steps()] == [1, 2]
        assert run.status().state == "finished"
        rows = run.trajectories(2)
    assert rows
    assert all(row.key and row.prompt for row in rows)
