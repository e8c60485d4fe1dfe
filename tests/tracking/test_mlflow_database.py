"""MLflow's database of a runs directory: there is a whole one or none, whenever its maker is killed."""

import subprocess
import sys
import time
from pathlib import Path

from mlflow.tracking import MlflowClient

from freerun.trackers.mlflow import MLFLOW_FILE, make_database

MAKE = """
import sys
from pathlib import Path

from freerun.trackers.mlflow import make_database

make_database(Path(sys.argv[1]))
"""


def test_a_maker_that_is_killed_leaves_none_and_the_next_makes_a_whole_one(tmp_path: Path) -> None:
    file = tmp_path / MLFLOW_FILE
    with subprocess.Popen([sys.executable, "-c", MAKE, str(file)]) as maker:
        until = time.monotonic() + 120
        while not any(half.stat().st_size for half in tmp_path.glob(f".mlflow-*/{MLFLOW_FILE}")):
            assert maker.poll() is None
            assert time.monotonic() < until, "waited 120 s for the first tables"
        maker.kill()
    assert not file.exists()
    make_database(file)
    assert [experiment.name for experiment in MlflowClient(f"sqlite:///{file}").search_experiments()] == [
        "Default"
    ]


def test_one_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / MLFLOW_FILE
    file.write_bytes(b"")
    make_database(file)
    assert file.read_bytes() == b""
