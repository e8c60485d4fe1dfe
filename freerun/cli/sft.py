"""`freerun sft`: trains on a data file in a run of SFT alone."""

from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.cli.train import start_run
from freerun.config.load import make_recipe
from freerun.config.recipe import Recipe

DESCRIPTION = """\
Fine-tune a model on demonstrations, rows of a .jsonl, .json or .parquet file. Each is a chat,
  {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]},
of which the assistant's turns are trained; or, with --sft.template, fields for the prompt and a completion.
It is a run like any other, named after the file: the model is in runs/NAME/checkpoints/step-0/model."""
EPILOG = """\
examples:
  freerun sft chats.jsonl --model.path models/smollm2
  freerun sft chats.jsonl --resume
  freerun sft sums.jsonl --model.path models/smollm2 --sft.template "{question} =" --sft.completion_field answer
  freerun sft chats.jsonl --model.path models/smollm2 --run.name adapter --lora.rank 16 --sft.lr 2e-4

"freerun train --help" lists the keys of [sft], [model], [lora], [train] (optimizer, ranks, device), [run] and
[checkpoint]. A recipe with a section [sft] can also continue with RL: "freerun train RECIPE".
"""
DEFAULTS = {
    "train.num_steps": 0,
    "train.weight_decay": 0.0,
    "eval.num_prompts": 0,
    "checkpoint.keep_optimizer": False,
}
"""Settings of a recipe for SFT only: no RL, no evaluation, and checkpoints without optimizer moments."""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser().parse_with_keys(arguments)
    recipe = recipe_of(args.data, overrides)
    overrides = [f"--sft.path={recipe.sft.path}", *overrides]  # a resumed run must use the same file
    return start_run(recipe, overrides, resume=args.resume, dry_run=args.dry_run)


def recipe_of(data: Path, overrides: Sequence[str]) -> Recipe:
    defaults = [f"--{key}={str(value).lower()}" for key, value in DEFAULTS.items()]
    return make_recipe(data.stem, [*defaults, f"--sft.path={data}", *overrides])


def _parser() -> Parser:
    usage = "DATA --model.path DIR [--section.key value ...] [--dry-run] [--resume]"
    parser = Parser("freerun sft", DESCRIPTION, EPILOG, usage=usage)
    parser.section = "sft."
    parser.take("data", "DATA", ".jsonl, .json or .parquet file of demonstrations")
    parser.flag("--dry-run", "print the resolved configuration and the plan; run nothing")
    parser.flag("--resume", "continue the run of this name")
    return parser
