"""Measure the claims and write the table.

    python -m bench                       # all of them: more than an hour; peers are installed on the way
    python -m bench loads training        # some
    python -m bench --table               # only the table, from the results that are there

Give the machine nothing else to do meanwhile. Each claim leaves docs/results/speed/<claim>.json; the table is
docs/results/speed.md.
"""

from __future__ import annotations

import argparse
import importlib

from bench.harness import show
from bench.table import write_table

CLAIMS = (
    "generation_vllm",
    "generation_transformers",
    "training",
    "micro_batches",
    "peak",
    "loads",
    "interrupts",
    "controller",
    "trl",
    "euclid",
    "smollm2",
    "scaling",
)
"""Modules of this package, each with a `measure(turns)`."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("claims", nargs="*", choices=[*CLAIMS, []], metavar="CLAIM", help=", ".join(CLAIMS))
    parser.add_argument("--turns", type=int, default=5, help="measurements of each side (default 5)")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    for name in () if args.table else args.claims or CLAIMS:
        show(f"== {name}")
        importlib.import_module(f"bench.{name}").measure(args.turns)
    write_table()


if __name__ == "__main__":
    main()
