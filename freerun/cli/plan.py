"""`freerun plan`: how to divide GPUs between rollouts and training, how fast it would be, and what limits it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser
from freerun.config.load import load_recipe
from freerun.config.recipe import Recipe
from freerun.errors import FreerunError, ModelError

if TYPE_CHECKING:
    import argparse

    from freerun.simulation.splits import Machine
    from freerun.simulation.workload import Workload

EPILOG = """\
examples:
  freerun plan examples/eight-nodes.toml --gpus 64 --kind h100 --model qwen2.5-7b --lengths 1200
  freerun plan examples/eight-nodes.toml --gpus 128 --kind a100 --model qwen2.5-7b --price 1.1
  freerun plan examples/eight-nodes.toml --gpus 64 --kind h100 --model qwen2.5-7b --calibration calibrations/x.toml

Nothing is run: the controller of freerun runs with simulated workers in virtual time, for some 20 seconds. Without
--lengths or --calibration the lengths of completions are a guess, and they decide much. docs/planning.md explains
the output, and docs/results/simulation.md how wrong it may be.
"""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser().parse_with_keys(arguments)
    if args.gpus is None:
        raise FreerunError("freerun plan needs --gpus N: how many GPUs the run may use")
    recipe = load_recipe(args.recipe, overrides)
    machine, workload = machine_of(args, recipe), workload_of(args, recipe)

    from freerun.simulation.plan import make_plan
    from freerun.simulation.plan_text import describe
    from freerun.simulation.run import check_can_simulate

    check_can_simulate(recipe)
    price = machine.gpu.price if args.price is None else args.price
    plan = make_plan(recipe, machine, workload, args.gpus)
    print(describe(plan, recipe, machine, workload, price=price))
    return 0


def machine_of(args: "argparse.Namespace", recipe: Recipe) -> "Machine":
    """The GPUs and the model that the arguments name."""
    from freerun.simulation.hardware import find_gpu
    from freerun.simulation.shapes import find_shape
    from freerun.simulation.splits import Machine

    gpu = find_gpu(args.kind, args.hardware)
    try:
        shape = find_shape(args.model, recipe.model.path)
    except ModelError as error:
        raise FreerunError(f"{error}; or name its size, such as --model qwen2.5-7b") from error
    return Machine(gpu, args.kind, shape)


def workload_of(args: "argparse.Namespace", recipe: Recipe) -> "Workload":
    """Lengths and grading times, from a calibration or from the arguments."""
    from freerun.simulation.workload import guess_workload

    if args.calibration is not None:
        from freerun.simulation.calibration import read_calibration

        return read_calibration(args.calibration).workload
    return guess_workload(
        recipe,
        mean=args.lengths,
        likeness=args.likeness,
        prompt_tokens=args.prompt_tokens,
        grade_seconds=args.grade_seconds,
    )


def take_machine(parser: Parser) -> None:
    """Add the options for the simulated machine and the lengths."""
    parser.take("--gpus", "N", "GPUs in all", type=int)
    parser.take("--kind", "NAME", "which GPUs: h100, h200, a100 ...; default h100", type=str, default="h100")
    parser.take("--hardware", "FILE", "a TOML file that describes your GPUs")
    parser.take("--model", "NAME", "size of a well-known model; default: that of model.path", type=str, default="")
    parser.take("--lengths", "MEAN", "mean tokens of a completion", type=float)
    parser.take("--likeness", "SHARE", "how alike in length the samples of a prompt are", type=float, default=0.5)
    parser.take("--prompt-tokens", "N", "tokens of a prompt", type=int)
    parser.take("--grade-seconds", "S", "of one completion; default 0", type=float, default=0.0)
    parser.take("--calibration", "FILE", "lengths and grades that `freerun calibrate` measured")


def _parser() -> Parser:
    usage = "RECIPE --gpus N --kind NAME [--lengths MEAN] [--price DOLLARS] [--section.key value ...]"
    parser = Parser("freerun plan", "Plan a run on GPUs.", EPILOG, usage=usage)
    parser.take("recipe", "RECIPE", "TOML file, or name of a shipped recipe")
    take_machine(parser)
    parser.take("--price", "DOLLARS", "of a GPU for an hour; default: an example of 2026", type=float)
    return parser
