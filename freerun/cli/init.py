"""`freerun init`: writes a first recipe for a data file, with the reason for each choice."""

from collections.abc import Sequence
from pathlib import Path

from freerun.cli.arguments import Parser
from freerun.errors import FreerunError

EPILOG = """\
examples:
  freerun init questions.jsonl
  freerun init questions.parquet --question task --answer result --out mine.toml
  freerun train questions.toml --dry-run
"""


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    out: Path = args.out or Path(f"{args.data.stem}.toml")
    if out.exists():
        raise FreerunError(f'"{out}" exists already; name another with --out FILE, or remove it')

    from freerun.data.first_look import look_at
    from freerun.data.first_recipe import first_recipe
    from freerun.model.hub import is_hub_name, local_directory

    look = look_at(args.data, question=args.question, answer=args.answer)
    directory = Path(local_directory(args.model))
    recipe = first_recipe(look, model=args.model, directory=directory)
    try:
        out.write_text(recipe.text, encoding="utf-8")
    except OSError as error:
        raise FreerunError(
            f'"{out}" cannot be written ({error.strerror}); name another with --out FILE'
        ) from error
    print(f'{out}: {len(look.rows)} rows, "{look.question}" asks, "{look.answer}" answers ({look.kind})')
    for note in recipe.notes:
        print(f"  note: {note}")
    if not (directory / "config.json").is_file():
        is_on_hub = is_hub_name(args.model)
        print(f"  fetch the model:  {'hf download' if is_on_hub else 'freerun model smollm2'} {args.model}")
    print(f"  look at the plan: freerun train {out} --dry-run")
    print(f"  train:            freerun train {out}")
    return 0


def _parser() -> Parser:
    usage = "DATA [--out RECIPE] [--question COLUMN] [--answer COLUMN] [--model DIR]"
    parser = Parser(
        "freerun init", "Write a first recipe for a file of questions and answers.", EPILOG, usage=usage
    )
    parser.take("data", "DATA", ".jsonl, .json (an array) or .parquet")
    parser.take("--out", "RECIPE", "file to write; by default the name of the data with .toml, in this directory")
    parser.take("--question", "COLUMN", "column that asks, if its name does not say so", type=str, default="")
    parser.take("--answer", "COLUMN", "column with the reference answer", type=str, default="")
    parser.take(
        "--model",
        "DIR",
        "model directory, or name on the hub (default: %(default)s)",
        type=str,
        default="models/smollm2",
    )
    return parser
