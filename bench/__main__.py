"""Measure the claims, then write the table and the chart.

    python -m bench                       # all claims: more than an hour; installs the peers it needs
    python -m bench loads training        # some claims
    python -m bench --table               # only the table and the chart, from the recorded results

Leave the machine idle otherwise. Each claim writes docs/results/speed/<claim>.json. The table is
docs/results/speed.md, the chart docs/figures/speed-{light,dark}.svg.
"""

import argparse
import importlib

from bench.chart import write_chart
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
    "turns",
    "multi_turn",
    "controller",
    "page",
    "gateway",
    "trl",
    "memory",
    "euclid",
    "smollm2",
    "lending",
    "freshness",
    "scaling",
    "replay",
    "simulator",
    "calibrated",
)
"""Modules of this package, each with a `measure(repetitions)`."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("claims", nargs="*", choices=[*CLAIMS, []], metavar="CLAIM", help=", ".join(CLAIMS))
    parser.add_argument("--repetitions", type=int, default=5, help="measurements of each side (default 5)")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    for name in () if args.table else args.claims or CLAIMS:
        show(f"== {name}")
        importlib.import_module(f"bench.{name}").measure(args.repetitions)
    write_table()
    write_chart()


if __name__ == "__main__":
    main()
