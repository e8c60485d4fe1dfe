"""`freerun eval`: held-out accuracy of a model directory, or of the newest checkpoint of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser, split_overrides
from freerun.cli.train import check_data_files
from freerun.config.load import load_recipe
from freerun.errors import CheckpointError, ConfigError, ModelError

EPILOG = """\
examples:
  freerun eval models/smollm2 --recipe recipes/times-tables.toml
  freerun eval runs/times-tables
  freerun eval runs/times-tables --eval.num_samples 8 --sampling.temperature 0.6
"""


def run(arguments: Sequence[str]) -> int:
    own, overrides = split_overrides(arguments)
    args, unknown = _parser().parse_known_args(own)
    model = find_model(args.target)
    recipe = load_recipe(args.recipe or _recipe_of(args.target), [*overrides, *unknown])
    check_data_files(recipe)

    from freerun.runtime.eval_session import run_eval

    return run_eval(recipe, model)


def find_model(target: Path) -> Path:
    """The model directory itself, or that of the run's newest checkpoint."""
    if (target / "config.json").is_file() or (target / "adapter_config.json").is_file():
        return target
    if not (target / "config.toml").is_file():
        raise ModelError(
            f'"{target}" is neither a model directory (no config.json) nor a run (no config.toml); '
            "name one, such as models/smollm2 or runs/times-tables"
        )
    from freerun.runtime.checkpoint import find_checkpoint

    checkpoint = find_checkpoint(target / "checkpoints")
    if checkpoint is None:
        raise CheckpointError(f'the run "{target}" has no checkpoint yet (no checkpoints/step-*)')
    return checkpoint.model_directory


def _recipe_of(target: Path) -> Path:
    config = target / "config.toml"
    if not config.is_file():
        raise ConfigError(f'"{target}" is a model, not a run: say how to evaluate it with --recipe RECIPE')
    return config


def _parser() -> Parser:
    parser = Parser("freerun eval", "Measure held-out accuracy.", EPILOG)
    parser.usage = "freerun eval MODEL_OR_RUN [--recipe RECIPE] [--section.key value ...]"
    parser.add_argument(
        "target", metavar="MODEL_OR_RUN", type=Path, help="model directory, or run directory such as runs/demo"
    )
    parser.add_argument("--recipe", metavar="RECIPE", type=Path, help="TOML file; a run has its own config.toml")
    return parser
