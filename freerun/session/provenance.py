"""What a session of a run started with: settings, versions, processor, threads, hashes of the user's files.

No user code is imported here: a module is found by its path.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

from freerun.config.load import dump_toml
from freerun.config.recipe import Recipe
from freerun.config.user_code import is_user_code
from freerun.data.hub_files import file_of as data_file_of
from freerun.events.events import Provenance, RunStarted
from freerun.processes.placement import place, trainer_names

CPU_INFO = Path("/proc/cpuinfo")


def session_start(
    recipe: Recipe, directory: Path, *, seconds: float, version: int, sft_step: int = 0, origin: str = ""
) -> RunStarted:
    """The event that begins a session."""
    return RunStarted(
        seconds=seconds,
        name=recipe.run.name,
        directory=str(directory),
        num_steps=recipe.train.num_steps,
        version=version,
        max_staleness=recipe.buffer.max_staleness,
        sft_step=sft_step,
        is_live=recipe.online.is_on,
        group_size=recipe.sampling.group_size,
        prompts_per_step=recipe.train.prompts_per_step,
        num_engines=recipe.engine.num_workers,
        gpus_per_engine=recipe.engine.num_gpus,
        num_ranks=recipe.train.num_ranks,
        grade_limit_seconds=recipe.reward.timeout_seconds,
        provenance=provenance_of(recipe),
        settings=dump_toml(recipe),
        origin=origin,
    )


def provenance_of(recipe: Recipe) -> Provenance:
    return Provenance(
        freerun=_version_of("freerun"),
        python=platform.python_version(),
        torch=_version_of("torch"),
        cpu=_cpu_model(),
        num_cores=len(os.sched_getaffinity(0)),
        num_trainer_threads=_num_trainer_threads(recipe),
        grader_sha256=hash_of_files(_grader_files(recipe)),
        task_sha256=hash_of_files(_task_files(recipe)),
    )


def hash_of_files(files: Iterable[Path]) -> str:
    """A hash over the contents of the readable files, in order; empty if none can be read."""
    digest, is_empty = hashlib.sha256(), True
    for file in files:
        try:
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
            is_empty = False
        except OSError:
            continue
    return "" if is_empty else digest.hexdigest()


def file_of(name: str) -> Path | None:
    """The file of "module:function", without importing the module; its parent packages are imported."""
    module = name.partition(":")[0]
    local = Path.cwd() / f"{module.replace('.', '/')}.py"
    if local.is_file():
        return local
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _grader_files(recipe: Recipe) -> list[Path]:
    graders = [part.grader for part in recipe.reward.parts] + list(recipe.data.own_graders)
    return _files_of(graders)


def _task_files(recipe: Recipe) -> list[Path]:
    """The user's task and data files; a data set that is not read from a file is identified by the recipe."""
    parts = recipe.data.parts.values()
    reading = [part for part in parts if part.task == "file"]
    paths = [data_file_of(path) for part in reading for path in (part.path, part.held_out_path) if path]
    return [*_files_of(part.task for part in parts), *(path for path in paths if path.is_file())]


def _files_of(names: Iterable[str]) -> list[Path]:
    found = [file_of(name) for name in dict.fromkeys(names) if is_user_code(name)]
    return [file for file in found if file is not None]


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or sys.platform


def _num_trainer_threads(recipe: Recipe) -> int:
    if recipe.runtime.backend != "local":
        return recipe.train.num_threads  # 0: a node of the cluster decides
    return place(recipe).seats[trainer_names(recipe)[0]].num_threads
