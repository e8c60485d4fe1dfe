"""`freerun train`: trains by a recipe and overrides into a run directory; `--dry-run` shows the plan."""

from collections.abc import Sequence

from freerun.cli.arguments import Parser
from freerun.config.load import TEXT_KEYS, dump_toml, load_recipe
from freerun.config.recipe import Recipe
from freerun.model.hub import with_local_model

EPILOG = """\
examples:
  freerun train times-tables
  freerun train times-tables --run.name sync --buffer.max_staleness 0
  freerun train gsm8k --data.path train.jsonl --data.held_out_path test.jsonl --dry-run
  freerun train times-tables --resume
  freerun train runs/times-tables --resume

Every key below is written as key = value under its [section] in the recipe, or as --section.key value here.
An array is written with commas (a,b), as in TOML (["a", "b"]), or by repeating the key. In
{texts},
\\n is a line break, \\t a tab and \\\\ a backslash.

{keys}
"""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser(with_keys=not {"-h", "--help"}.isdisjoint(arguments)).parse_with_keys(arguments)
    from freerun.session.run_directory import names_a_run, recipe_of_run

    if names_a_run(args.recipe):
        args.recipe, overrides = recipe_of_run(args.recipe, overrides, resume=args.resume)
    recipe = load_recipe(args.recipe, overrides)
    return start_run(recipe, overrides, resume=args.resume, dry_run=args.dry_run)


def start_run(recipe: Recipe, overrides: Sequence[str], *, resume: bool, dry_run: bool) -> int:
    """Run the recipe, resume its run, or only print the plan; returns the exit code."""
    if resume:
        from freerun.session.run_directory import recipe_to_resume

        recipe = recipe_to_resume(recipe, overrides)
    recipe = with_local_model(recipe)
    if dry_run:
        from freerun.session.plan import describe_plan

        plan = describe_plan(recipe, resume=resume)
        print(dump_toml(recipe), plan, sep="\n")
        return 0

    from freerun.session.train import run_training

    return run_training(recipe, resume=resume)


def _parser(*, with_keys: bool) -> Parser:
    epilog = ""
    if with_keys:
        from freerun.config.help import describe_keys

        epilog = EPILOG.format(keys=describe_keys(), texts=", ".join(TEXT_KEYS))
    usage = "RECIPE [--section.key value ...] [--dry-run] [--resume]"
    parser = Parser("freerun train", "Train a model by a recipe.", epilog, usage=usage)
    parser.take(
        "recipe", "RECIPE", "TOML file, name of a shipped recipe such as times-tables, or a run to --resume"
    )
    parser.flag("--dry-run", "print the resolved configuration and the plan; run nothing")
    parser.flag("--resume", "continue the run of this name, with its settings, from its newest checkpoint")
    return parser
