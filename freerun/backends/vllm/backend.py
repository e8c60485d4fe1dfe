"""The backend "vllm": supported settings, packages, GPUs and memory of its servers; does not import torch."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from freerun.backends.backend import EngineStart, GeneratorEngine, ModelSize, WorkerContext
from freerun.backends.vllm.server import PLUGIN_DIRECTORY, interpreter
from freerun.config.engine import BYTES, EngineConfig
from freerun.config.recipe import Recipe
from freerun.config.section import require
from freerun.errors import ConfigError
from freerun.model.adapter_directory import model_config

MIN_TEMPERATURE = 0.01
"""vLLM raises lower temperatures to this one, except 0."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes supported by vLLM 0.32's CPU attention."""
PREFILL_TOKENS = 8192
"""Prompt tokens that a GPU server computes beside decoding."""


class VllmBackend:
    """Implements `backend.Backend`."""

    runs_programs = True
    samples_again = False
    owns_gpus = "vLLM servers"

    def check(self, recipe: Recipe) -> None:
        engine, temperature = recipe.engine, recipe.sampling.temperature
        require(
            engine.kv_on_load != "drain",
            'engine.kv_on_load = "drain", but engine.backend = "vllm" interrupts its sequences; set "recompute" '
            'or "keep"',
        )
        require(
            temperature >= MIN_TEMPERATURE,
            f"sampling.temperature = {temperature} would be raised by vLLM to {MIN_TEMPERATURE}, which the "
            'trainer would not know; raise it, or set engine.backend = "native"',
        )
        require(
            not engine.addresses or recipe.runtime.backend == "local",
            "engine.addresses names vLLM servers of this machine, but runtime.backend = "
            f'"{recipe.runtime.backend}" places workers on any; remove engine.addresses',
        )
        if not engine.addresses:
            require_packages(engine)

    def check_model(self, directory: Path, *, find_device: Callable[[], str]) -> None:
        size = model_config(directory).head_size
        if size not in CPU_HEAD_SIZES and find_device() == "cpu":
            raise ConfigError(
                f"the model in {directory} has attention heads of {size}; vLLM on a CPU serves only heads of "
                f'{", ".join(map(str, CPU_HEAD_SIZES))}; set engine.backend = "native"'
            )

    def uses_our_gpus(self, recipe: Recipe) -> bool:
        return not recipe.engine.addresses and not recipe.engine.server_python

    def describe(self, engine: EngineConfig, index: int) -> str:
        return f"the vLLM server at {engine.addresses[index]}, " if engine.addresses else "its own vLLM server, "

    def memory(self, recipe: Recipe, size: ModelSize, *, device: str) -> list[tuple[str, int]]:
        # An adapter is merged into a second copy of the base, in float32.
        merging = 2 * size.num_parameters * BYTES["float32"] if size.num_adapter else 0
        return [("weights", size.num_parameters * BYTES[recipe.engine.dtype]), ("merging the adapter", merging)]

    def cache_tokens(self, recipe: Recipe, size: ModelSize, *, device: str) -> int:
        return min(recipe.engine.cache_tokens, recipe.engine.num_slots * size.slot_tokens(recipe))

    def prefill_tokens(self, engine: EngineConfig) -> int:
        return PREFILL_TOKENS

    def make_engine(self, start: EngineStart, context: WorkerContext) -> GeneratorEngine:
        from freerun.backends.vllm.engine import make_engine  # torch, in the worker only

        return make_engine(start, context)


def require_packages(engine: EngineConfig) -> None:
    """Raise if the servers of a run could not be started."""
    python = interpreter(engine)
    for package, name, remedy in (
        (
            "vllm",
            "vLLM",
            "make backends (CPU) or pip install 'freerun[vllm]' (GPU), or set engine.backend = \"native\"",
        ),
        ("xxhash", "xxhash", f"{python} -m pip install xxhash"),
    ):
        if not _has_package(python, package):
            raise ConfigError(f'engine.backend = "vllm" needs {name}, which {python} does not have; {remedy}')


def _has_package(python: str, package: str) -> bool:
    finds = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        # Run in our directory: in the user's, a folder named vllm would be mistaken for the package.
        found = subprocess.run([python, "-c", finds], cwd=PLUGIN_DIRECTORY, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f'engine.server_python = "{python}" is no Python interpreter: {error}') from None
    return found.returncode == 0


VLLM = VllmBackend()
