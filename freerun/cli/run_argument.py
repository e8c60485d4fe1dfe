"""RUN on the command line: the path of a run directory, or the name of one below the default directory."""

import difflib
from pathlib import Path

from freerun.config.recipe import RunConfig
from freerun.errors import FreerunError

EXPLANATION = "a run: its name, or the path of its directory"


def find_run(given: Path) -> Path:
    """The directory of the run; raises if it does not exist."""
    from freerun.events.schema import STORE_NAME, STORES_OF_RUNS, store_file

    runs = Path(RunConfig().directory)
    for path in (given, runs / given):
        if store_file(path).is_file():
            return path
    if given.is_dir():
        raise FreerunError(f'"{given}" is not a run: it has no {STORE_NAME}; name a run that "freerun runs" lists')
    names = sorted(file.parent.name for file in runs.glob(STORES_OF_RUNS))
    near = difflib.get_close_matches(str(given.name), names, n=1)
    remedy = f'did you mean "{near[0]}"?' if near else '"freerun runs" lists those that there are'
    raise FreerunError(f'there is no run "{given}", neither here nor in "{runs}"; {remedy}')
