"""A listener that presses Ctrl-C in the middle of SFT."""

import os
import signal
from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.events.events import AnyEvent, Listener, SftStep


def after_five_steps(recipe: Recipe, run_directory: Path) -> Listener:
    def listen(event: AnyEvent) -> None:
        if isinstance(event, SftStep) and event.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    return listen
