"""`freerun train`: a recipe and its overrides in, a run directory out; `--dry-run` shows what would be run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser, split_overrides
from freerun.config.load import TEXT_KEYS, dump_toml, load_recipe
from freerun.config.recipe import Recipe
from freerun.config.shipped import shipped_recipes
from freerun.errors import ConfigError
from freerun.model.adapter_directory import is_adapter
from freerun.model.hub import how_to_fetch, is_hub_name, local_directory, with_local_model

EPILOG = """\
examples:
  freerun train times-tables
  freerun train times-tables --run.name sync --buffer.max_staleness 0
  freerun train gsm8k --data.path train.jsonl --data.held_out_path test.jsonl --dry-run
  freerun train times-tables --resume
  freerun train runs/times-tables --resume

configuration, as [section] and key = value in the recipe, or as --section.key value here. Here, elements of
an array are separated by commas, or written as in TOML, or the key is repeated; \\n is a line break,
\\t a tab and \\\\ a backslash in
{texts}.

{keys}
"""


def run(arguments: Sequence[str]) -> int:
    own, overrides = split_overrides(arguments)
    args = _parser(with_keys="-h" in own or "--help" in own).parse_own(own)
    if _names_a_directory(args.recipe):
        from freerun.session.run_directory import recipe_of_run

        args.recipe, overrides = recipe_of_run(args.recipe, overrides, resume=args.resume)
    recipe = load_recipe(args.recipe, overrides)
    if args.resume:
        from freerun.session.run_directory import recipe_to_resume

        recipe = recipe_to_resume(recipe, overrides)
    else:
        check_files(recipe)
    recipe = with_local_model(recipe)
    if args.dry_run:
        from freerun.session.plan import describe_plan

        plan = describe_plan(recipe)
        print(dump_toml(recipe), plan, sep="\n")
        return 0

    from freerun.session.train import run_training

    return run_training(recipe, resume=args.resume)


def _names_a_directory(given: Path) -> bool:
    """Whether a run is meant; a model or data directory does not hide the shipped recipe of the same name."""
    return given.is_dir() and ((given / "config.toml").is_file() or str(given) not in shipped_recipes())


def check_files(recipe: Recipe) -> None:
    """Fail before any process is started if the model or the data is not there."""
    from freerun.data.tasks import check_demonstrations, has_alphabet

    check_data_files(recipe)
    if recipe.warm_start.num_steps:
        check_demonstrations(recipe.data)
    model = Path(local_directory(recipe.model.path))
    task = recipe.data.task
    kind = f"tiny {{}} --task {task}" if has_alphabet(task) else "smollm2 {}"
    if not recipe.model.path:
        make = kind.format("DIR")
        raise ConfigError(
            f'config: model.path is empty; name a model directory ("freerun model {make}" makes one)'
        )
    if is_adapter(model):
        raise ConfigError(
            f'config: model.path = "{model}" is an adapter; make a model of it and its base to train on: '
            f"freerun model merge {model} DIR"
        )
    if is_hub_name(recipe.model.path) and not model.is_dir():
        raise ConfigError(f'config: model.path = "{model}" is no directory here, and {how_to_fetch(str(model))}')
    if not (model / "config.json").is_file():
        remedy = f'"freerun model {kind.format(model)}" makes one'
        if not has_alphabet(task) and "smollm2" not in model.name.lower():
            remedy = (
                "name one, or a model on the Hugging Face hub as ORGANISATION/NAME "
                '("freerun model smollm2 models/smollm2" makes a small one)'
            )
        raise ConfigError(
            f'config: model.path = "{recipe.model.path}" is not a model directory (no config.json); {remedy}'
        )


def check_data_files(recipe: Recipe) -> None:
    """Fail if there is no such task, its prompts are in files that are not there, or no grader can read them."""
    from freerun.data.mixture import parts_of
    from freerun.data.tasks import check_task

    for part in parts_of(recipe.data).values():
        check_task(part)
        grader = recipe.reward.grader
        if part.task.startswith("reasoning-gym/") and "reasoning-gym" not in grader and ":" not in grader:
            raise ConfigError(
                f'config: reward.grader = "{grader}" cannot read the answers of data.task = "{part.task}"; '
                'set reward.grader = "reasoning-gym"'
            )


def _parser(*, with_keys: bool) -> Parser:
    epilog = ""
    if with_keys:
        from freerun.config.help import describe_keys

        epilog = EPILOG.format(keys=describe_keys(), texts=", ".join(TEXT_KEYS))
    parser = Parser("freerun train", "Train a model by a recipe.", epilog)
    parser.usage = "freerun train RECIPE [--section.key value ...] [--dry-run] [--resume]"
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        type=Path,
        help="TOML file, name of a shipped recipe such as times-tables, or a run to --resume",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved configuration and the plan; run nothing"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run of this name, with the settings it was started with, from its newest checkpoint",
    )
    return parser
