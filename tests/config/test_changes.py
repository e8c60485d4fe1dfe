"""What differs between two recipes, and recipes that were kept as text."""

from freerun.config.changes import changes_between
from freerun.config.load import dump_toml, load_recipe, recipe_of_toml


def test_only_keys_that_differ_are_named_with_both_values() -> None:
    before = load_recipe("times-tables")
    after = load_recipe("times-tables", ["--train.lr", "0.5", "--objective.clip", "none"])
    assert [str(change) for change in changes_between(before, after)] == [
        'objective.clip = "none" (was "ppo")',
        f"train.lr = 0.5 (was {before.train.lr})",
    ]
    assert changes_between(before, before) == []


def test_a_recipe_that_was_written_as_text_is_the_same_recipe() -> None:
    recipe = load_recipe("times-tables", ["--objective.preset", "dapo"])
    assert recipe_of_toml(dump_toml(recipe), where="here") == recipe


def test_overrides_change_a_recipe_of_text_as_they_do_one_of_a_file() -> None:
    text = dump_toml(load_recipe("times-tables", ["--objective.clip_high", "0.5"]))
    assert recipe_of_toml(text, ["--train.lr=0.25"], where="here").train.lr == 0.25
    assert recipe_of_toml(text, ["--objective.preset", "dapo"], where="here").objective.clip_high == 0.28
