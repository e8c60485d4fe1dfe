"""A runtime that only writes down what it is asked for, and a recipe to ask it with."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from runs_on_disk import make_model

from freerun.config.recipe import Recipe
from freerun.evaluation.job import EvalJob
from freerun.evaluation.report import check_ks
from freerun.session.preflight import check_setup


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A runtime that checks what it was asked for and writes it down instead of running it."""
    calls: list[Any] = []

    def run_training(recipe: Recipe, *, resume: bool) -> int:
        check_setup(recipe, is_new=not resume)
        calls.append(("train", recipe, resume))
        return 7

    def run_eval(job: EvalJob, directory: Path) -> None:
        check_setup(job.recipe, trains=False)
        calls.append(("eval", job, directory))

    class Report:
        is_empty = False

        def __init__(self, directory: Path, ks: list[int]) -> None:
            calls.append(("report", directory, ks))

        def describe(self) -> str:
            return "the report"

        def completions(self, shown: str) -> list[str]:
            return [f"{shown} completions"]

        def as_json(self) -> str:
            return "{}"

    fakes: dict[str, dict[str, Any]] = {
        "session.train": {"run_training": run_training},
        "session.plan": {"describe_plan": lambda recipe, resume: f"the plan of {recipe.run.name}"},
        "simulation.forecast": {"describe_forecast": lambda recipe: f"the forecast of {recipe.run.name}"},
        "session.evaluate": {"run_eval": run_eval},
        "evaluation.report": {"EvalReport": Report, "check_ks": check_ks},
    }
    for name, functions in fakes.items():
        module = ModuleType(name)
        module.__dict__.update(functions)
        monkeypatch.setitem(sys.modules, f"freerun.{name}", module)
    return calls


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose model directory exists, in the current directory."""
    monkeypatch.chdir(tmp_path)
    make_model(Path("model"))
    path = Path("demo.toml")
    path.write_text('[model]\npath = "model"\n')
    return path
