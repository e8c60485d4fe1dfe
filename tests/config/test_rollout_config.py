"""The sections [rollout] and [gateway]: what may be combined, and what each mistake is told."""

from pathlib import Path

import pytest
from recipe_errors import error_of

from freerun.config.load import load_recipe
from freerun.config.recipe import Recipe
from freerun.config.rollout import RolloutConfig

EPISODE = "--rollout.episode=guess:episode"
IN_CHAT = ("--data.task=times-tables", "--data.use_chat_template=true")


def test_without_an_episode_nothing_changes() -> None:
    recipe = Recipe()
    assert not recipe.rollout.runs_sessions
    assert recipe.max_sequence_tokens == recipe.data.max_prompt_tokens + recipe.sampling.max_completion_tokens


def test_a_session_may_be_as_long_as_it_says(demo: Path) -> None:
    recipe = load_recipe(demo, [EPISODE, "--rollout.max_session_tokens=3000"])
    assert recipe.max_sequence_tokens == 3000


def test_settings_are_arguments_in_toml(demo: Path) -> None:
    recipe = load_recipe(demo, [EPISODE, "--rollout.settings", 'size=7,split="train"'])
    assert recipe.rollout.arguments == {"size": 7, "split": "train"}


def test_several_tools_are_an_array(demo: Path) -> None:
    overrides = ["--rollout.tools", "mine:add,mine:search", *IN_CHAT]
    assert load_recipe(demo, overrides).rollout.tools == ("mine:add", "mine:search")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([EPISODE, "--rollout.tools=mine:add"], "rollout.episode and rollout.tools exclude each other"),
        ([EPISODE, "--rollout.command=./agent"], "rollout.episode and rollout.command exclude each other"),
        (["--rollout.command= "], "rollout.command = ' ' is blank"),
        (["--rollout.tools=mine:add"], "rollout.tools needs data.use_chat_template = true"),
        (["--rollout.settings=size=7"], "rollout.settings are the arguments of rollout.episode, which is empty"),
        ([EPISODE, "--rollout.settings=size"], "rollout.settings holds 'size'; each is name=value"),
        ([EPISODE, "--rollout.settings=split=train"], "whose value is not TOML"),
        ([EPISODE, "--rollout.max_session_tokens=100"], "leaves no room after a prompt of data.max_prompt_tokens"),
        (
            [EPISODE, "--rollout.max_session_tokens=70000"],
            "engine.cache_tokens = 65536 cannot hold one sequence of rollout.max_session_tokens = 70000 tokens",
        ),
        ([EPISODE, "--reward.requires_stop=true"], "judge single completions"),
        ([EPISODE, *IN_CHAT, "--data.num_shots=2"], "cannot be shown in sessions"),
        ([EPISODE, "--rollout.session_seconds=300"], "must be less than runtime.stall_seconds = 300"),
        ([EPISODE, "--rollout.history=none"], 'must be one of "template", "append"'),
        (["--gateway.address=8080"], 'gateway.address = "8080" is not host:port'),
    ],
)
def test_a_mistake_is_named(demo: Path, overrides: list[str], message: str) -> None:
    assert message in error_of(demo, *overrides)


def test_a_config_that_was_sent_is_equal() -> None:
    from freerun.types import decoder_for, encode

    config = RolloutConfig(episode="guess:episode", settings=("size=7",))
    assert decoder_for(RolloutConfig).decode(encode(config)) == config
