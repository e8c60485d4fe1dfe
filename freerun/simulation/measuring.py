"""Calibrates a recipe by running it for a minute: engine and trainer together, as real workers.

Measured alone, each part would be too fast: text, messages and the other stage take time too.
"""

import tempfile
import threading
from dataclasses import replace
from pathlib import Path

from freerun.config.page import PageConfig
from freerun.config.recipe import CheckpointConfig, EvalConfig, Recipe
from freerun.config.report import ReportConfig
from freerun.errors import FreerunError
from freerun.session.attachments import Attachments, StopSwitch
from freerun.session.train import train_to_end
from freerun.simulation.calibration import Calibration, calibrate_run

_NEVER_STEPS = 1_000_000_000


def calibrate_recipe(recipe: Recipe, *, seconds: float) -> Calibration:
    """Train by the recipe in a temporary directory for this long, counted from its first event."""
    with tempfile.TemporaryDirectory(prefix="freerun-calibrate-") as directory:
        measured = replace(
            recipe,
            run=replace(recipe.run, directory=directory),
            eval=EvalConfig(num_prompts=0),
            checkpoint=CheckpointConfig(every_steps=_NEVER_STEPS, keep_best=False),
            report=ReportConfig(),
            page=PageConfig(serve=False),
        )
        stop = StopSwitch()
        timer = threading.Timer(seconds, stop.press)
        timer.daemon = True
        timer.start()
        try:
            finished = train_to_end(measured, resume=False, attached=Attachments(stop=stop))
        finally:
            timer.cancel()
        if finished.outcome == "failed":
            raise FreerunError(f"the run to measure failed: {finished.reason}")
        return calibrate_run(Path(directory) / recipe.run.name)
