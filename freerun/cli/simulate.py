"""`freerun simulate`: the real controller with simulated workers, in virtual time."""

from collections.abc import Sequence

from freerun.cli.arguments import Parser
from freerun.cli.plan import take_machine
from freerun.config.load import load_recipe
from freerun.errors import FreerunError

EPILOG = """\
A recipe is run on GPUs that a data sheet describes (--gpus, --kind), or on the machine that `freerun calibrate`
has measured (--calibration). It prints the lines of `freerun train`, in virtual time, and how wrong they may be.

--faults plays scenarios that a seed decides: a small recipe, faults of workers, disk and machine at given times,
and sessions that end, are stopped or killed, and are resumed. Thirteen properties must hold in all of them. The
same seed is the same scenario everywhere. One that breaks a property is shown with its timeline, and shrunk.

examples:
  freerun simulate examples/eight-nodes.toml --gpus 64 --kind h100 --model qwen2.5-7b --lengths 1200 --steps 12
  freerun simulate times-tables --calibration calibrations/times-tables.toml
  freerun simulate --faults --seed 26
  freerun simulate --faults --seeds 300
  freerun simulate --faults --seeds 100000 --processes 2
"""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser().parse_with_keys(arguments)
    if args.recipe is not None and not args.faults:
        from freerun.cli.simulate_recipe import simulate_recipe

        return simulate_recipe(args, load_recipe(args.recipe, overrides))
    if not args.faults or args.recipe is not None or overrides:
        raise FreerunError("freerun simulate takes a RECIPE, or --faults; see freerun simulate --help")

    from freerun.cli.simulate_faults import play_many, show_seed

    if args.seeds < 1 or args.processes < 0:
        raise FreerunError(f"--seeds {args.seeds} --processes {args.processes}: give numbers of 1 or more")
    if args.seeds == 1:
        return show_seed(args.seed)
    return play_many(args.seed, args.seeds, num_processes=args.processes)


def _parser() -> Parser:
    description = "Run the real controller with simulated workers, in virtual time."
    usage = (
        "RECIPE (--gpus N | --calibration FILE) [--section.key value ...]\n       freerun simulate --faults ..."
    )
    parser = Parser("freerun simulate", description, EPILOG, usage=usage)
    parser.take("recipe", "RECIPE", "TOML file, or name of a shipped recipe", nargs="?")
    take_machine(parser)
    parser.take("--steps", "N", "training steps; default: all of the recipe", type=int)
    parser.flag("--faults", "play scenarios with faults, and check what must hold in every run")
    parser.take("--seed", "N", "the scenario, or the first of several; default: 0", type=int, default=0)
    parser.take("--seeds", "N", "how many; default: 1, which is shown in full", type=int, default=1)
    parser.take("--processes", "N", "that play seeds at once; default: one per core", type=int, default=0)
    return parser
