"""`freerun replay --set`: how a run would have gone with other settings, on the same batches."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from freerun.errors import FreerunError

if TYPE_CHECKING:
    from freerun.replay.what_if import WhatIfStep

SHOWN = {"loss": "loss", "entropy": "entropy", "clip_fraction": "clipped", "grad_norm": "gradient norm"}
"""Metrics that are printed next to the recorded ones, with their names."""


def run_what_if(directory: Path, args: argparse.Namespace) -> int:
    from freerun.cli.replay import announce, show_difference, show_progress
    from freerun.replay.what_if import plan_what_if, try_what_if

    if args.save is not None:
        raise FreerunError("--save and --set exclude each other: a what-if leaves its model in its own run")
    plan = plan_what_if(directory, args.set, first=args.first, last=args.until, num_threads=args.threads)
    announce(plan.replay)
    changed = ", ".join(map(str, plan.changes)) or "nothing changed"
    print(f"from step {plan.replay.first} on: {changed}")
    with show_progress() as on_progress:
        ended = try_what_if(plan, on_progress=on_progress, on_step=lambda step: print(describe_step(step)))
    if ended.difference is not None:
        print(f"warning: version {ended.difference.version}, before the change, is not as recorded:")
        show_difference(ended.difference)
    if ended.why_early:
        print(ended.why_early)
    name, origin = shlex.quote(str(plan.run.path)), shlex.quote(str(directory))
    print(f"version {ended.last} is in {plan.run.path}; look at it with")
    print(f"  freerun show {name}\n  freerun eval {name}\n  freerun compare {origin} {name}")
    return 0


def describe_step(step: "WhatIfStep") -> str:
    """`step 311: effective sample size 0.98, loss 0.1 (recorded 0.2), ...`."""
    size = step.metrics.get("effective_sample_size")
    known = "effective sample size unknown" if size is None else f"effective sample size {size:.2f}"
    parts = [known]
    for metric, name in SHOWN.items():
        if metric in step.metrics:
            then = step.recorded.get(metric)
            recorded = f" (recorded {then:.3g})" if then is not None else ""
            parts.append(f"{name} {step.metrics[metric]:.3g}{recorded}")
    return f"step {step.version}: {', '.join(parts)}"
