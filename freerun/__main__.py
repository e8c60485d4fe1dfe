"""`python -m freerun` runs `freerun`."""

import sys

from freerun.processes.interpreter import search_current_directory_last

search_current_directory_last()

from freerun.cli.main import main  # noqa: E402 - its imports must not find the files of the current directory

if __name__ == "__main__":
    sys.exit(main())
