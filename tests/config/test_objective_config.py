"""Presets: a name and what was written beside it, and nothing that contradicts itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recipe_errors import error_of

from freerun.config.load import dump_toml, load_recipe
from freerun.config.objective import PRESETS, ObjectiveConfig


def objective(path: Path, *overrides: str) -> ObjectiveConfig:
    return load_recipe(path, overrides).objective


def test_without_a_word_the_objective_is_the_papers(demo: Path) -> None:
    assert objective(demo) == PRESETS["areal"] == ObjectiveConfig()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_in_the_recipe_sets_every_key(demo: Path, name: Any) -> None:
    demo.write_text(f'[objective]\npreset = "{name}"')
    assert objective(demo) == PRESETS[name]


def test_keys_of_the_recipe_and_the_command_line_win_over_the_preset(demo: Path) -> None:
    demo.write_text('[objective]\npreset = "gspo"\nclip_low = 0.01')
    expected = replace(PRESETS["gspo"], clip_low=0.01, kl_coefficient=0.1)
    assert objective(demo, "--objective.kl_coefficient", "0.1") == expected


def test_keys_without_a_preset_change_areal(demo: Path) -> None:
    demo.write_text('[objective]\nadvantage = "grpo"')
    assert objective(demo) == replace(PRESETS["areal"], advantage="grpo")


def test_a_preset_on_the_command_line_replaces_the_section_of_the_recipe(demo: Path) -> None:
    demo.write_text('[objective]\npreset = "gspo"\nclip_low = 0.01\nadvantage = "dr_grpo"')
    assert objective(demo, "--objective.preset", "rloo") == PRESETS["rloo"]
    assert objective(demo, "--objective.preset=rloo", "--objective.clip", "ppo") == replace(
        PRESETS["rloo"], clip="ppo"
    )


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_with_an_override_reads_back_equal_and_gives_way_to_another(demo: Path, name: str) -> None:
    recipe = load_recipe(demo, ["--objective.preset", name, "--objective.entropy_coefficient", "0.01"])
    demo.write_text(dump_toml(recipe))
    assert load_recipe(demo, []) == recipe
    assert objective(demo, "--objective.preset", "dapo") == PRESETS["dapo"]


def test_an_unknown_preset_is_named_with_the_nearest(demo: Path) -> None:
    message = error_of(demo, "--objective.preset", "isepop")
    assert message.startswith(
        'config: objective.preset = "isepop" on the command line must be one of "areal", "ppo", '
    )
    assert message.endswith('did you mean "icepop"?')


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("clip_low=0",), "config: objective.clip_low = 0.0 on the command line must be a number in (0, 1]"),
        (
            ("clip_high=-1",),
            "config: objective.clip_high = -1.0 on the command line must be a number between 1e-9 and 1e9",
        ),
        (("dual_clip=1",), "config: objective.dual_clip = 1.0 on the command line must be a number in (1, 1e9]"),
        (
            ("weight_cap=0.5",),
            "config: objective.weight_cap = 0.5 on the command line must be a number between 1 and 1e9",
        ),
        (("weight_low=2",), "config: objective.weight_low = 2.0 and objective.weight_high = 5.0 must enclose 1"),
        (
            ("kl_coefficient=-1",),
            "config: objective.kl_coefficient = -1.0 on the command line must be a number between 0 and 1e9",
        ),
        (("gae_gamma=0",), "config: objective.gae_gamma = 0.0 on the command line must be a number in (0, 1]"),
        (
            ("gae_lambda=2",),
            "config: objective.gae_lambda = 2.0 on the command line must be a number between 0 and 1",
        ),
        (
            ("preset=m2po", "ratio=sequence"),
            'config: objective.correction = "m2po" leaves out single tokens, objective.ratio = "sequence" has one',
        ),
        (
            ("preset=ppo", "ratio=sequence"),
            'config: objective.advantage = "gae" differs from token to token, objective.ratio = "sequence" needs',
        ),
        (
            ("advantage=rloo", "advantage_normalisation=token"),
            'config: objective.advantage_normalisation = "token" needs objective.advantage = "global", "grpo" or',
        ),
    ],
)
def test_values_that_make_no_sense_are_named(demo: Path, overrides: tuple[str, ...], message: str) -> None:
    assert error_of(demo, *(f"--objective.{override}" for override in overrides)).startswith(message)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("areal", "ppo")])
def test_presets_that_compare_within_groups_refuse_groups_of_one(demo: Path, name: str) -> None:
    message = error_of(demo, "--objective.preset", name, "--sampling.group_size", "1")
    assert message.startswith("config: sampling.group_size = 1 leaves nothing to compare within a group")


@pytest.mark.parametrize("name", ["areal", "ppo"])
def test_presets_that_do_not_compare_within_groups_take_groups_of_one(demo: Path, name: str) -> None:
    assert load_recipe(demo, ["--objective.preset", name, "--sampling.group_size", "1"]).sampling.group_size == 1
