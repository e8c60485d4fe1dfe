"""The interface of generator backends: what a run needs to know about one, and the engine in its workers.

A backend is one object: it checks a recipe, describes itself in the plan, and makes the engine inside a rollout
worker. To add one, write its package and add a row to `freerun.config.engine.BACKENDS`.
This module does not import torch: the controller asks backends too.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from freerun.config.engine import BACKENDS, EngineConfig
from freerun.config.lora import LoraConfig
from freerun.config.recipe import Recipe
from freerun.errors import RequestError
from freerun.types import Completion, EngineStats, Publication, Request, WeightRoute


class EngineStart(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker's engine is made from."""

    model_directory: str
    engine: EngineConfig
    max_sequence_tokens: int
    seed: int
    lora: LoraConfig
    base_directory: str
    """Directory of the frozen weights, if only an adapter is published."""
    weights: WeightRoute | None = None
    """How new versions arrive; None reads the weights of `model_directory` and loads no others."""
    worker_index: int = 0
    """Index among the run's rollout workers; chooses its GPU (`freerun.model.device`) or its server."""


class GeneratorEngine(Protocol):
    """An engine as the worker's loop drives it; every method is called from one thread."""

    @property
    def must_step(self) -> bool:
        """Whether the loop must not wait for messages, because `step` has something to compute."""

    def submit(self, request: Request) -> None:
        """Queue a request; raises `RequestError` for one that can never be served."""

    def abort(self, request_id: int) -> None:
        """Abort a request. Unknown ones are ignored: it may just have finished."""

    def end_session(self, session: int) -> None:
        """Forget what is kept for a session's next request. Unknown sessions are ignored."""
        ...

    def has_arrived(self, published: Publication, *, timeout_seconds: float) -> bool:
        """Whether `load` has nothing to wait for; the first call may start preparing it during steps."""

    def is_ready_to_load(self) -> bool:
        """Whether no running request needs the current version; if False, no new one that needs it is started."""

    def load(self, published: Publication) -> int:
        """Use the arrived and verified weights from the next step on; returns the number of interrupts."""
        ...

    def pin(self, version: int) -> None:
        """Keep the last loaded weights, which must be those of `version`, for requests that name it."""

    def unpin(self) -> None:
        """Release the pinned version and abort the requests that name it."""

    def step(self) -> Sequence[tuple[Request, tuple[Completion, ...] | RequestError]]:
        """Do the work that needs no waiting; returns requests that finished or turned out to be impossible."""

    def stats(self, *, waited_seconds: float) -> EngineStats | None:
        """Called at every report; None if it has work and has sampled nothing since the last call.

        `waited_seconds` is how long the loop has waited so far; `up_seconds` is the loop's to add.
        """

    def close(self) -> None:
        """The worker is about to fail: clean up. May raise a more precise reason."""


@dataclass(frozen=True)
class ModelSize:
    """Parameter counts of a model and its adapter."""

    num_parameters: int
    num_adapter: int
    """Number of trained parameters in the adapter; 0 if the model itself is trained."""
    cached_per_token: int
    """Numbers in the KV cache per token."""
    max_positions: int

    @property
    def num_trained(self) -> int:
        return self.num_adapter or self.num_parameters

    def slot_tokens(self, recipe: Recipe) -> int:
        """The longest sequence that a slot has room for."""
        return min(recipe.max_sequence_tokens, self.max_positions, recipe.engine.cache_tokens)


@dataclass(frozen=True)
class WorkerContext:
    """What the worker's process provides to its engine."""

    num_threads: int
    wake: Callable[[], None]
    """Ends the loop's wait for messages; may be called from any thread."""


class Backend(Protocol):
    """One row of `BACKENDS`."""

    runs_programs: bool
    """Whether its workers start other programs, which must end with the worker (`processes/guard.py`)."""

    samples_again: bool
    """Whether `engine/resampling.py` can draw the same tokens, from the random numbers of seed and ordinal."""

    owns_gpus: str
    """Name of its workers in errors if they cannot share a GPU; empty if they can."""

    def check(self, recipe: Recipe) -> None:
        """Refuse unsupported settings and missing packages before a run starts."""

    def check_model(self, directory: Path, *, find_device: Callable[[], str]) -> None:
        """Refuse a model that it cannot serve; `find_device` starts a process to ask torch for its device."""

    def uses_our_gpus(self, recipe: Recipe) -> bool:
        """Whether its workers compute on the GPUs that torch sees in this environment."""

    def describe(self, engine: EngineConfig, index: int) -> str:
        """The plan's description of a worker, which is followed by its slots."""

    def memory(self, recipe: Recipe, size: ModelSize, *, device: str) -> list[tuple[str, int]]:
        """Memory of each worker apart from its KV cache: names and bytes."""

    def cache_tokens(self, recipe: Recipe, size: ModelSize, *, device: str) -> int:
        """Number of cached tokens that a worker reserves memory for."""

    def prefill_tokens(self, engine: EngineConfig) -> int:
        """Prompt tokens that an engine computes in one step beside decoding; used by simulations."""
        ...

    def make_engine(self, start: EngineStart, context: WorkerContext) -> GeneratorEngine: ...


def find_backend(name: str) -> Backend:
    """The backend of this name in `BACKENDS`."""
    module, _, attribute = BACKENDS[name].partition(":")
    backend: Backend = getattr(importlib.import_module(module), attribute)
    return backend
