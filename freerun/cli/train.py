"""`freerun train`: a recipe and its overrides in, a run directory out; `--dry-run` shows what would be run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser, split_overrides
from freerun.config.load import TEXT_KEYS, dump_toml, load_recipe
from freerun.model.hub import with_local_model
from freerun.session.input_files import check_files, names_a_run

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
    if names_a_run(args.recipe):
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
