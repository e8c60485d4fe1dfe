"""Recipes: what is written is what is run, and what cannot be run is named where it was written."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipe_errors import error_of

from freerun.config.data import DataConfig
from freerun.config.help import describe_keys
from freerun.config.load import dump_toml, key_types, load_recipe, stages
from freerun.config.recipe import Recipe, RunConfig, SamplingConfig
from freerun.config.section import field_docs
from freerun.config.train import TrainConfig
from freerun.errors import ConfigError

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*(ROOT / "recipes").glob("*.toml"), *(ROOT / "examples").glob("*.toml")])


def test_an_empty_recipe_is_the_defaults_under_the_name_of_its_file(demo: Path) -> None:
    assert load_recipe(demo, []) == Recipe(run=RunConfig(name="demo"))


def test_a_name_in_the_recipe_wins_over_the_file_name(demo: Path) -> None:
    demo.write_text('[run]\nname = "other"')
    assert load_recipe(demo, []).run.name == "other"


def test_a_data_section_without_a_task_reads_a_file(demo: Path) -> None:
    demo.write_text('[data]\npath = "train.jsonl"')
    assert load_recipe(demo, []).data == DataConfig(task="file", path="train.jsonl")


def test_overrides_win_over_the_recipe_in_both_spellings(demo: Path) -> None:
    demo.write_text("[train]\nlr = 1\nnum_steps = 5")
    recipe = load_recipe(demo, ["--train.lr", "1e-5", "--buffer.max_staleness=0", "--reward.incorrect", "-1"])
    assert recipe.train == TrainConfig(lr=1e-5, num_steps=5)
    assert recipe.buffer.max_staleness == 0
    assert recipe.reward.incorrect == -1.0


def test_of_a_repeated_override_the_last_wins(demo: Path) -> None:
    assert load_recipe(demo, ["--run.seed", "1", "--run.seed", "2"]).run.seed == 2


def test_an_integer_is_accepted_where_a_number_is_expected(demo: Path) -> None:
    demo.write_text("[reward]\ncorrect = 1\nincorrect = 0")
    value = load_recipe(demo, []).reward.correct
    assert (value, type(value)) == (1.0, float)


@pytest.mark.parametrize(
    "overrides",
    [
        ["--sampling.stop", "a,b"],
        ["--sampling.stop", "a", "--sampling.stop=b"],
        ["--sampling.stop", '["a", "b"]'],
        ["--sampling.stop", '["a"]', "--sampling.stop", "b"],
    ],
    ids=["commas", "repeated", "TOML", "TOML, repeated"],
)
def test_stop_strings_are_comma_separated_or_repeated_and_replace_the_recipe(
    demo: Path, overrides: list[str]
) -> None:
    demo.write_text('[sampling]\nstop = ["from the file"]')
    assert load_recipe(demo, overrides).sampling.stop == ("a", "b")


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        (r'["\n", "###, "]', ("\n", "###, ")),
        (r'["\\n"]', (r"\n",)),
        ("[]", ()),
        ("[/INST]", ("[/INST]",)),
        ("[1]", ("[1]",)),
    ],
)
def test_an_array_may_be_written_as_in_a_recipe(tmp_path: Path, text: str, stop: tuple[str, ...]) -> None:
    demo = tmp_path / "demo.toml"
    demo.write_text("")
    assert load_recipe(demo, ["--sampling.stop", text]).sampling.stop == stop


def test_arrays_of_numbers_take_integers_and_refuse_texts(demo: Path) -> None:
    demo.write_text('[data]\nmixture = ["svamp", "times-tables"]\nweights = [3, 0.5]')
    assert load_recipe(demo, []).data.weights == (3.0, 0.5)
    assert load_recipe(demo, ["--data.weights", "0.7,0.3"]).data.weights == (0.7, 0.3)
    assert error_of(demo, "--data.weights", "1,x") == (
        'config: data.weights = [1.0, "x"] on the command line must be an array of numbers between 1e-9 and 1e9'
    )


def test_booleans_are_written_as_in_toml(demo: Path) -> None:
    assert load_recipe(demo, ["--objective.dynamic_sampling", "true"]).objective.dynamic_sampling
    assert error_of(demo, "--objective.dynamic_sampling", "yes") == (
        'config: objective.dynamic_sampling = "yes" on the command line must be true or false'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[buffer]\nmax_stalness = 1",
            'config: unknown key "buffer.max_stalness" in demo.toml; did you mean "buffer.max_staleness"?',
        ),
        (
            "[train]\nmax_staleness = 1",
            'config: unknown key "train.max_staleness" in demo.toml; did you mean "buffer.max_staleness"?',
        ),
        (
            "[bufer]\nmax_staleness = 1",
            'config: unknown key "bufer.max_staleness" in demo.toml; did you mean "buffer.max_staleness"?',
        ),
        ("lr = 1e-5", 'config: unknown key "lr" in demo.toml; did you mean "train.lr"?'),
        ("[bufer]", 'config: unknown key "bufer" in demo.toml; did you mean "buffer"?'),
        ("[x]\nqqq = 1", 'config: unknown key "x.qqq" in demo.toml; "freerun train --help" lists all keys'),
        (
            "train = 3",
            "config: train = 3 in demo.toml must be a section; write [train] on a separate line "
            "and its keys below",
        ),
        ('[train]\nlr = "fast"', 'config: train.lr = "fast" in demo.toml must be a number between 1e-20 and 10'),
        ("[train]\nlr = nan", "config: train.lr = nan in demo.toml must be a number between 1e-20 and 10"),
        ("[train]\nlr = true", "config: train.lr = true in demo.toml must be a number between 1e-20 and 10"),
        (
            "[train]\nnum_steps = true",
            "config: train.num_steps = true in demo.toml must be an integer between 0 and 1,000,000,000",
        ),
        (
            "[train]\nnum_steps = 1.0",
            "config: train.num_steps = 1.0 in demo.toml must be an integer between 0 and 1,000,000,000",
        ),
        ("[run]\nname = 3", "config: run.name = 3 in demo.toml must be a string of UTF-8 text"),
        (
            '[sampling]\nstop = "x"',
            'config: sampling.stop = "x" in demo.toml must be an array of strings',
        ),
        (
            '[buffer]\npolicy = "wiat"',
            'config: buffer.policy = "wiat" in demo.toml must be one of "wait", "drop", "requeue"; '
            'did you mean "wait"?',
        ),
        (
            "[buffer]\nmax_staleness = -1",
            "config: buffer.max_staleness = -1 in demo.toml must be an integer between 0 and 1,000,000,000",
        ),
        ("[train]\n\nlr = = 1", "config: demo.toml:3: not valid TOML: Invalid value"),
        ('[run]\nname = "x', "config: demo.toml:2: not valid TOML: Unterminated string"),
    ],
)
def test_a_mistake_in_the_recipe_is_named(demo: Path, text: str, message: str) -> None:
    demo.write_text(text)
    assert error_of(demo) == message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["--buffer.max_stalness=1"],
            'config: unknown key "buffer.max_stalness" on the command line; did you mean "buffer.max_staleness"?',
        ),
        (
            ["--train.num-steps", "3"],
            'config: unknown key "train.num-steps" on the command line; did you mean "train.num_steps"?',
        ),
        (
            ["--train.num_steps", "1e3"],
            'config: train.num_steps = "1e3" on the command line must be an integer between 0 and 1,000,000,000',
        ),
        (["--train.lr"], "config: --train.lr on the command line needs a number between 1e-20 and 10"),
        (
            ["--train.lr", "--run.seed=1"],
            "config: --train.lr on the command line needs a number between 1e-20 and 10",
        ),
        (["0.1"], 'config: unexpected "0.1" on the command line; overrides look like --train.lr 1e-5'),
    ],
)
def test_a_mistake_on_the_command_line_is_named(demo: Path, overrides: list[str], message: str) -> None:
    assert error_of(demo, *overrides) == message


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert error_of(path) == f'config: there is no recipe "{path}"; "freerun recipes" lists the shipped ones'


texts = st.text()
paths = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
names = paths.filter(lambda n: n.isprintable() and n and "/" not in n and n[0] not in ".-" and n == n.strip())


@given(
    run=st.builds(RunConfig, name=names, directory=paths, seed=st.integers(0, 2**63 - 1)),
    data=st.builds(DataConfig, path=paths.filter(bool), template=texts, use_chat_template=st.booleans()),
    sampling=st.builds(
        SamplingConfig,
        temperature=st.floats(0.001, 1000),
        stop=st.lists(texts.filter(bool)).map(tuple),
    ),
)
def test_a_dumped_recipe_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, run: RunConfig, data: DataConfig, sampling: SamplingConfig
) -> None:
    recipe = Recipe(run=run, data=data, sampling=sampling)
    path = tmp_path_factory.getbasetemp() / "dumped.toml"
    path.write_bytes(dump_toml(recipe).encode())
    assert load_recipe(path, []) == recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_we_ship_loads(path: Path) -> None:
    recipe = load_recipe(path, [])
    assert recipe.run.name == path.stem
    assert recipe.model.path


def test_the_gsm8k_recipe_is_under_25_lines() -> None:
    path = next(path for path in RECIPES if path.stem == "gsm8k")
    assert len(path.read_text().splitlines()) < 25


def test_every_key_has_a_docstring() -> None:
    docs = {f"{name}.{key}": doc for name, section in stages().items() for key, doc in field_docs(section).items()}
    assert set(docs) == set(key_types())
    assert all(docs.values())


def test_help_shows_every_key_with_its_default() -> None:
    text = describe_keys()
    assert "--buffer.max_staleness INT  (default: 4)" in text
    assert "--sampling.top_k INT  (default: 0)" in text
    assert '--buffer.policy wait|drop|requeue  (default: "wait")' in text
    assert all(f"--{key} " in text for key in key_types())


def test_every_kind_of_field_can_be_loaded() -> None:
    recipe = Recipe()
    for section in dataclasses.fields(recipe):
        stage: Any = getattr(recipe, section.name)
        for field in dataclasses.fields(stage):
            assert isinstance(getattr(stage, field.name), str | int | float | tuple | dict)


def test_overrides_may_be_values_by_key(demo: Path) -> None:
    values = {"train.lr": 1, "model.path": Path("models/x"), "sampling.stop": ("a,b", "\n"), "lora.rank": 4}
    recipe = load_recipe(str(demo), values)
    assert (recipe.train.lr, recipe.model.path, recipe.lora.rank) == (1.0, "models/x", 4)
    assert recipe.sampling.stop == ("a,b", "\n")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": {"lr": 1e-5}}, 'config: "train" in the overrides is a section, not a key; write "train.KEY"'),
        ({"train.lrr": 1e-5}, 'config: unknown key "train.lrr" in the overrides; did you mean "train.lr"?'),
        ({"train.lr": "1e-5"}, 'config: train.lr = "1e-5" in the overrides must be a number between 1e-20 and 10'),
        (
            {"train.num_steps": True},
            "config: train.num_steps = true in the overrides must be an integer between 0 and 1,000,000,000",
        ),
        ({3: 1}, 'config: unknown key "3" in the overrides; "freerun train --help" lists all keys'),
    ],
)
def test_a_mistake_in_values_by_key_is_named(demo: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(demo, values)
    assert str(caught.value) == message


def test_a_recipe_for_live_traffic_without_data_evaluates_nothing(demo: Path) -> None:
    live = "[online]\nfeedback_seconds = 60\n[sampling]\ngroup_size = 1\n[buffer]\npolicy = 'drop'\n"
    demo.write_text(live + "[objective]\nadvantage = 'global'\n[rollout]\nmax_session_tokens = 100\n")
    assert error_of(demo) == (
        "config: online.feedback_seconds trains on what clients ask, and without [data] there is nothing to "
        "evaluate on; set eval.num_prompts = 0, or name held-out prompts in [data]"
    )
    assert load_recipe(demo, ["--eval.num_prompts", "0"]).online.is_on
    assert load_recipe(demo, ["--data.task", "euclid"]).data.task == "euclid"
