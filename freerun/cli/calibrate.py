"""`freerun calibrate`: how long engine, trainer, loads and grades take here, and how long completions are."""

from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.config.load import load_recipe
from freerun.errors import FreerunError
from freerun.model.hub import with_local_model

_DIRECTORY = Path("calibrations")
EPILOG = """\
examples:
  freerun calibrate runs/times-tables
  freerun calibrate times-tables --seconds 60

A run is only read. A recipe is trained for a minute in a temporary directory. `freerun simulate` and
`freerun plan` take the file with --calibration. Measure on an idle machine: docs/planning.md.
"""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser().parse_with_keys(arguments)

    from freerun.session.run_directory import names_a_run
    from freerun.simulation.calibration import calibrate_run, write_calibration

    if names_a_run(args.target):
        if overrides:
            raise FreerunError(f'"{overrides[0]}" cannot change a run that is only read; name a recipe to measure')
        calibration = calibrate_run(args.target)
    else:
        from freerun.simulation.measuring import calibrate_recipe

        recipe = with_local_model(load_recipe(args.target, overrides))
        calibration = calibrate_recipe(recipe, seconds=args.seconds)
    path = args.out or _DIRECTORY / f"{calibration.run}.toml"
    write_calibration(calibration, path)
    print(f"{calibration}\nwritten to {path}")
    return 0


def _parser() -> Parser:
    usage = "RUN | RECIPE [--seconds S] [--out FILE] [--section.key value ...]"
    parser = Parser("freerun calibrate", "Measure what a simulation needs to know.", EPILOG, usage=usage)
    parser.take("target", "RUN | RECIPE", "the directory of a run, or a recipe to measure")
    parser.take("--seconds", "S", "how long a recipe is measured; default 60", type=float, default=60.0)
    parser.take("--out", "FILE", f"where to write it; default: below {_DIRECTORY}")
    return parser
