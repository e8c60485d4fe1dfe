"""`freerun train`: trains by a recipe and overrides into a run directory; `--dry-run` shows the plan."""

import sys
from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.config.load import TEXT_KEYS, dump_toml, load_recipe
from freerun.config.recipe import Recipe
from freerun.errors import EXIT_INTERRUPTED
from freerun.model.hub import with_local_model

EPILOG = """\
examples:
  freerun train times-tables
  freerun train times-tables --run.name sync --buffer.max_staleness 0
  freerun train gsm8k --data.path train.jsonl --data.held_out_path test.jsonl --dry-run
  freerun train times-tables --view
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
    recipe, settings = read_target(args.recipe, overrides, resume=args.resume)
    code = start_run(recipe, settings, resume=args.resume, dry_run=args.dry_run)
    if args.view and not args.dry_run and code != EXIT_INTERRUPTED:
        _view(recipe)
    return code


def _view(recipe: Recipe) -> None:
    """Serve the page of the ended run until Ctrl-C."""
    from freerun.cli.view import serve_until_stopped  # it imports numpy, which --help does not need

    run = Path(recipe.run.directory, recipe.run.name).absolute()
    print("the run has ended; Ctrl-C ends its page too", file=sys.stderr)
    serve_until_stopped(run.parent, run, recipe.page)


def read_target(target: Path, overrides: Sequence[str], *, resume: bool) -> tuple[Recipe, Sequence[str]]:
    """The recipe that `target` names, or a run's own recipe, with overrides for that run's location."""
    from freerun.session.run_directory import names_a_run, recipe_of_run

    if names_a_run(target):
        target, overrides = recipe_of_run(target, overrides, resume=resume)
    return load_recipe(target, overrides), overrides


def start_run(recipe: Recipe, overrides: Sequence[str], *, resume: bool, dry_run: bool) -> int:
    """Run the recipe, resume its run, or only print the plan; returns the exit code."""
    recipe = to_start(recipe, overrides, resume=resume)
    if dry_run:
        from freerun.session.plan import describe_plan
        from freerun.simulation.forecast import describe_forecast

        plan = describe_plan(recipe, resume=resume)
        print(dump_toml(recipe), plan, sep="\n")
        if forecast := describe_forecast(recipe):
            print(forecast)
        return 0

    from freerun.session.train import run_training

    return run_training(recipe, resume=resume)


def to_start(recipe: Recipe, overrides: Sequence[str], *, resume: bool) -> Recipe:
    """The recipe to run: the run's own if it is resumed, with its model as a directory."""
    if resume:
        from freerun.session.run_directory import recipe_to_resume

        recipe = recipe_to_resume(recipe, overrides)
    return with_local_model(recipe)


def _parser(*, with_keys: bool) -> Parser:
    epilog = ""
    if with_keys:
        from freerun.config.help import describe_keys

        epilog = EPILOG.format(keys=describe_keys(), texts=", ".join(TEXT_KEYS))
    usage = "RECIPE [--section.key value ...] [--dry-run] [--resume] [--view]"
    parser = Parser("freerun train", "Train a model by a recipe.", epilog, usage=usage)
    parser.take(
        "recipe", "RECIPE", "TOML file, name of a shipped recipe such as times-tables, or a run to --resume"
    )
    parser.flag("--dry-run", "print the resolved configuration and the plan; run nothing")
    parser.flag("--resume", "continue the run of this name, with its settings, from its newest checkpoint")
    parser.flag("--view", "serve the run's page when it has ended too, until Ctrl-C")
    return parser
