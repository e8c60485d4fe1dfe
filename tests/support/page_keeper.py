"""A program that keeps the page of a run as `freerun train` does, until it is killed."""

import asyncio
import sys
from pathlib import Path

from freerun.config.page import PageConfig
from freerun.session.page import RunPage
from freerun.session.run_directory import RunDirectory


async def keep(run: Path) -> None:
    page = RunPage(PageConfig(port=0), RunDirectory(run))
    page.open(lambda event: None, 0.0)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(keep(Path(sys.argv[1])))
