"""The package: a wheel that is really built, installed in a new environment, works in any directory."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import freerun

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip")
TINY_RUN = "--train.num_steps 2 --sampling.group_size 2 --eval.num_prompts 2 --eval.num_samples 1"
MAKE_TINY = """
import string
from pathlib import Path
from freerun.model.tiny import make_tiny
sizes = dict(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=2, intermediate_size=16)
make_tiny(Path("models/smollm2"), alphabet=string.printable, **sizes)
"""


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that knows nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def ok(*command: object, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    ok(*PIP, "wheel", "--no-deps", *isolation, "-w", directory, ROOT, cwd=directory)
    [file] = directory.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel; it borrows the dependencies of this one."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    ok(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=environment)
    [site] = environment.glob("lib/python*/site-packages")
    # Below a .pth file no other .pth file counts: the editable freerun of this environment is not found.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


def test_the_wheel_holds_the_package_its_recipes_and_its_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"freerun/recipes/{file.name}" for file in (ROOT / "recipes").iterdir()} <= names
    assert {"freerun/py.typed", "freerun/__main__.py", "freerun/cli/recipes.py"} <= names
    sources = {str(file.relative_to(ROOT)) for file in (ROOT / "freerun").rglob("*.py")}
    assert sources <= names
    assert all(name.startswith(("freerun/", "freerun-")) for name in names)


def test_the_installed_package_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    code = "import freerun; print(freerun.__file__)"
    assert ok(installed / "python", "-c", code, cwd=tmp_path).startswith(str(installed.parent))
    for command in ([installed / "freerun"], [installed / "python", "-m", "freerun"]):
        assert ok(*command, "--version", cwd=tmp_path) == f"freerun {freerun.__version__}\n"


def test_installed_recipes_are_listed_and_printed_anywhere(installed: Path, tmp_path: Path) -> None:
    listed = ok(installed / "freerun", "recipes", cwd=tmp_path).splitlines()
    assert [line.split()[0] for line in listed] == sorted(file.stem for file in (ROOT / "recipes").glob("*.toml"))
    printed = ok(installed / "freerun", "recipes", "times-tables", cwd=tmp_path)
    assert printed == (ROOT / "recipes" / "times-tables.toml").read_text()


@pytest.mark.slow
def test_a_shipped_recipe_trains_anywhere(installed: Path, tmp_path: Path) -> None:
    train = [installed / "freerun", "train", "times-tables"]
    without_model = run(*train, "--dry-run", cwd=tmp_path)
    assert without_model.returncode == 2
    assert '"freerun model smollm2 models/smollm2" makes one' in without_model.stderr
    ok(installed / "python", "-c", MAKE_TINY, cwd=tmp_path)
    assert "times-tables" in ok(*train, "--dry-run", cwd=tmp_path)
    assert "outcome    finished" in ok(*train, *TINY_RUN.split(), cwd=tmp_path)
    assert (tmp_path / "runs" / "times-tables" / "checkpoints" / "step-2" / "model" / "config.json").is_file()
