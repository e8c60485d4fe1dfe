"""`freerun sft`: supervised fine-tuning of a model directory on a JSONL file."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from freerun.cli.arguments import Parser
from freerun.config.help import docs_of
from freerun.config.load import unescaped
from freerun.config.lora import LoraConfig
from freerun.config.sft import SftConfig
from freerun.errors import ModelError
from freerun.model.adapter_directory import is_adapter
from freerun.model.hub import how_to_fetch, is_hub_name, local_directory

DESCRIPTION = """\
Fine-tune a model on demonstrations, rows of a .jsonl, .json or .parquet file. Each is a chat,
  {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]},
of which the assistant's turns are trained; or, with --template, fields for the prompt and a completion.
The model is written to DIR/model. After Ctrl-C the same command continues."""
EPILOG = """\
examples:
  freerun sft models/smollm2 chats.jsonl out/chats
  freerun sft models/smollm2 sums.jsonl out/sums --template "{question} =" --completion-field answer --num-epochs 3
  freerun sft models/smollm2 chats.jsonl out/adapter --lora-rank 16 --lr 2e-4
"""


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    args.template = unescaped(args.template)
    config = SftConfig(**_values(args, SftConfig, prefix=""))
    lora = LoraConfig(**_values(args, LoraConfig, prefix="lora_"))
    args.model = Path(local_directory(str(args.model)))
    if is_hub_name(str(args.model)):
        raise ModelError(f'"{args.model}" is no directory here, and {how_to_fetch(str(args.model))}')
    if is_adapter(args.model):
        raise ModelError(f'"{args.model}" is an adapter; merge it first: freerun model merge {args.model} DIR')
    if not (args.model / "config.json").is_file():
        raise ModelError(
            f'"{args.model}" is not a model directory (no config.json); name one, such as models/smollm2'
        )

    # Read when torch is loaded: threads that spin while they wait collapse when another process wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from freerun.sft.session import SftJob, run_sft

    return run_sft(SftJob(args.model, args.data, args.directory, config, lora))


def _parser() -> Parser:
    parser = Parser("freerun sft", DESCRIPTION, EPILOG)
    parser.usage = "freerun sft MODEL DATA DIR [--option value ...]"
    parser.add_argument("model", metavar="MODEL", type=Path, help="model directory to start from")
    parser.add_argument("data", metavar="DATA", type=Path, help=".jsonl, .json or .parquet file of demonstrations")
    parser.add_argument("directory", metavar="DIR", type=Path, help="where to write; new, or one to continue")
    _add_options(parser, SftConfig, prefix="")
    _add_options(parser, LoraConfig, prefix="lora_")
    return parser


def _add_options(parser: argparse.ArgumentParser, stage: type[Any], *, prefix: str) -> None:
    """An option for each field, with its type, default and documentation: nothing is declared twice."""
    types, docs = get_type_hints(stage), docs_of(stage)
    for field in dataclasses.fields(stage):
        kind = types[field.name]
        is_list = kind not in (int, float, str)
        default = ",".join(getattr(stage, field.name)) if is_list else field.default
        parser.add_argument(
            "--" + f"{prefix}{field.name}".replace("_", "-"),
            type=str if is_list else kind,
            default=default,
            metavar={int: "INT", float: "FLOAT", str: "TEXT"}.get(kind, "TEXT,TEXT"),
            help=docs[field.name].replace("%", "%%") + f" (default: {default!r})".replace("%", "%%"),
        )


def _values(args: argparse.Namespace, stage: type[Any], *, prefix: str) -> dict[str, Any]:
    """The stage's fields from the parsed options."""
    types = get_type_hints(stage)
    values = {field.name: getattr(args, prefix + field.name) for field in dataclasses.fields(stage)}
    return {
        name: value if types[name] in (int, float, str) else tuple(value.split(",")) if value else ()
        for name, value in values.items()
    }
