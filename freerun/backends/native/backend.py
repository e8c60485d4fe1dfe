"""The backend "native": settings, devices and memory of the embedded engine; does not import torch."""

from collections.abc import Callable
from pathlib import Path

from freerun.backends.backend import EngineStart, GeneratorEngine, ModelSize, WorkerContext
from freerun.config.engine import BYTES, EngineConfig
from freerun.config.recipe import Recipe
from freerun.config.section import require


class NativeBackend:
    """Implements `backend.Backend`."""

    runs_programs = False
    samples_again = True
    owns_gpus = ""

    def check(self, recipe: Recipe) -> None:
        engine = recipe.engine
        for key in ("addresses", "server_python", "server_arguments"):
            require(not getattr(engine, key), f'engine.{key} is set, but engine.backend = "native" has no server')
        require(
            engine.num_gpus == 1,
            f"engine.num_gpus = {engine.num_gpus}, but the embedded engine computes on one; choose another "
            "engine.backend",
        )

    def check_model(self, directory: Path, *, find_device: Callable[[], str]) -> None:
        pass

    def uses_our_gpus(self, recipe: Recipe) -> bool:
        return True

    def describe(self, engine: EngineConfig, index: int) -> str:
        return ""

    def memory(self, recipe: Recipe, size: ModelSize, *, device: str) -> list[tuple[str, int]]:
        number = BYTES[recipe.engine.dtype]
        # A CPU reads published weights in place, and packs large float32 matrices. Those that change are packed
        # twice, since the next version is packed while the current one is in use.
        is_float32 = recipe.engine.dtype == "float32"
        is_in_place = device == "cpu" and (is_float32 or not size.num_adapter)
        own = size.num_parameters + size.num_adapter - (size.num_trained if is_in_place else 0)
        packed = size.num_parameters * (1 if size.num_adapter else 2) if device == "cpu" and is_float32 else 0
        pinned = size.num_trained * number
        parked = recipe.engine.parked_tokens if recipe.rollout.runs_sessions or recipe.online.is_on else 0
        return [
            ("weights", own * number),
            ("packed weights at most", packed * number),
            ("weights while evaluating", pinned),
            ("parked caches up to", parked * size.cached_per_token * number),
        ]

    def cache_tokens(self, recipe: Recipe, size: ModelSize, *, device: str) -> int:
        num_tokens = recipe.engine.num_slots * size.slot_tokens(recipe)
        # A GPU reserves the full length of every slot, a CPU only what is used.
        return min(recipe.engine.cache_tokens, num_tokens) if device == "cpu" else num_tokens

    def prefill_tokens(self, engine: EngineConfig) -> int:
        return engine.prefill_chunk_tokens

    def make_engine(self, start: EngineStart, context: WorkerContext) -> GeneratorEngine:
        from freerun.backends.native.engine import make_engine  # torch, in the worker only

        return make_engine(start, context)


NATIVE = NativeBackend()
