"""Built-in tasks, what they can do, and the held-out split."""

import itertools
import math
import random
import re
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.cli.arguments import split_overrides
from freerun.config.data import DataConfig
from freerun.config.load import load_recipe
from freerun.data import euclid
from freerun.data.mixture import open_stream
from freerun.data.task_prompt import TaskPrompt
from freerun.data.tasks import alphabet_of, demonstrations_of, load_prompts
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ConfigError, ModelError

ROOT = Path(__file__).parents[2]
TIMES_TABLES = DataConfig(task="times-tables")
EUCLID = DataConfig(task="euclid", settings=("max_number=30",))


def all_prompts(config: DataConfig) -> dict[str, TaskPrompt]:
    prompts = load_prompts(config)
    return {prompt.key: prompt for prompt in prompts.training + prompts.held_out}


# Procedural tasks


def test_times_tables_are_all_products_of_two_digits() -> None:
    prompts = all_prompts(TIMES_TABLES)
    assert len(prompts) == 100
    assert prompts["7*8"] == TaskPrompt(key="7*8", text="Question: What is 7 * 8?\nAnswer:", answer="56")
    assert prompts["0*9"].answer == "0"


def test_euclid_subtracts_in_place_until_both_numbers_are_equal() -> None:
    prompts = all_prompts(DataConfig(task="euclid", settings=("max_number=48",)))
    assert prompts["48,36"] == TaskPrompt(key="48,36", text="^48,36>", answer="12,36>12,24>12,12=12$")
    assert prompts["36,48"].answer == "36,12>24,12>12,12=12$"
    assert prompts["12,24"].answer == "12,12=12$"


def test_euclid_asks_for_every_pair_of_different_numbers() -> None:
    prompts = all_prompts(EUCLID)
    assert len(prompts) == 30 * 29
    for key, prompt in prompts.items():
        a, b = map(int, key.split(","))
        assert prompt.answer.endswith(f"={math.gcd(a, b)}$")
        assert set(prompt.text + prompt.answer) <= set(alphabet_of("euclid"))


def test_a_task_without_an_alphabet_says_which_have_one() -> None:
    with pytest.raises(ModelError, match=r'"times-tables" has no alphabet, .*data\.task to "euclid"'):
        alphabet_of("times-tables")


# Demonstrations


def steps_of(prompt_text: str, completion: str) -> list[tuple[int, int]]:
    *steps, last = (prompt_text[1:] + completion).split(">")
    form = re.fullmatch(r"(\d+,\d+)=(\d+)\$", last)
    assert form, completion
    pairs = [(int(a), int(b)) for a, b in (step.split(",") for step in [*steps, form[1]])]
    assert pairs[-1] == (int(form[2]), int(form[2]))
    return pairs


def right_step(a: int, b: int) -> tuple[int, int]:
    return (a - b, b) if a > b else (a, b - a)


def test_demonstrations_without_errors_are_the_answers_of_training_prompts() -> None:
    answers = {p.text: p.answer for p in load_prompts(EUCLID).training}
    taken = itertools.islice(demonstrations_of(EUCLID, seed=1, error_rate=0.0), 2 * len(answers))
    seen = [text for text, completion in taken if answers[text] == completion]
    assert len(seen) == 2 * len(answers)
    assert set(seen[: len(answers)]) == set(answers)


def test_demonstrations_err_as_often_as_asked() -> None:
    demonstrations = itertools.islice(demonstrations_of(EUCLID, seed=2, error_rate=0.2), 3000)
    verdicts = []
    for text, completion in demonstrations:
        pairs = steps_of(text, completion)
        verdicts += [right_step(*before) == after for before, after in itertools.pairwise(pairs)]
    # Steps beyond the length of the right derivation never err, which takes a little off the rate.
    assert 0.14 < verdicts.count(False) / len(verdicts) <= 0.2


@given(
    a=st.integers(1, 60),
    b=st.integers(1, 60),
    seed=st.integers(),
    error_rate=st.floats(0, 1, exclude_max=True),
)
def test_a_wrong_step_has_one_wrong_positive_number_and_the_derivation_ends(
    a: int, b: int, seed: int, error_rate: float
) -> None:
    if a == b:
        return
    prompt = TaskPrompt(key=f"{a},{b}", text=f"^{a},{b}>", answer="")
    pairs = steps_of(prompt.text, euclid.demonstration(prompt, random.Random(seed), error_rate))
    assert len(pairs) <= 2 * max(a, b)
    for before, after in itertools.pairwise(pairs):
        assert min(after) >= 1
        assert max(after) <= max(before)
        assert sum(x != y for x, y in zip(after, right_step(*before), strict=True)) <= 1


def test_the_same_seed_gives_the_same_demonstrations() -> None:
    def first(seed: int) -> list[tuple[str, str]]:
        return list(itertools.islice(demonstrations_of(EUCLID, seed=seed, error_rate=0.3), 50))

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_a_task_without_demonstrations_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r'data\.task = "times-tables" has no demonstrations'):
        demonstrations_of(TIMES_TABLES, seed=0, error_rate=0.0)


# The held-out split


def test_the_split_has_the_exact_size_and_no_overlap() -> None:
    prompts = load_prompts(DataConfig(task="times-tables", held_out_fraction=0.13))
    keys = [prompt.key for prompt in prompts.training + prompts.held_out]
    assert len(prompts.held_out) == 13
    assert len(set(keys)) == 100


def test_the_split_never_changes() -> None:
    # Published numbers depend on it: if this fails, so does every comparison with an earlier run.
    assert [p.key for p in load_prompts(TIMES_TABLES).held_out][:5] == ["9*1", "3*3", "4*0", "6*1", "8*1"]


def test_a_smaller_fraction_holds_out_a_subset() -> None:
    few = load_prompts(DataConfig(task="times-tables", held_out_fraction=0.1)).held_out
    many = load_prompts(DataConfig(task="times-tables", held_out_fraction=0.4)).held_out
    assert many[:10] == few


# The commands of the documentation


def train_commands() -> list[list[str]]:
    """The arguments of every `freerun train` of docs/tasks.md, but for recipes that `freerun init` writes."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "tasks.md").read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    written = {Path(command[2]).with_suffix(".toml").name for command in commands if command[1:2] == ["init"]}
    trained = [command[2:] for command in commands if command[:2] == ["freerun", "train"]]
    return [arguments for arguments in trained if arguments[0] not in written]


@pytest.mark.parametrize("arguments", train_commands(), ids=" ".join)
def test_a_documented_training_leaves_out_no_prompt(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (recipe_file, *_), overrides = split_overrides(arguments)
    recipe = load_recipe(Path(recipe_file), overrides)
    if recipe.data.task == "file":
        return  # the data of others; that the recipe is right with these settings is all that is known here
    if not Path(recipe.model.path, "tokenizer.json").is_file():
        pytest.skip(f"{recipe.model.path} is not made")
    stream = open_stream(recipe.data, Tokenizer.load(Path(recipe.model.path)), seed=0)
    assert stream.num_too_long == 0
