"""What a load of new weights costs an engine apart from recomputing its cache: time without generation.

SmolLM2 decodes 32 sequences on one thread, and a new version arrives in shared memory every five seconds. Two
figures: the share of time in which decoding stands still, for the swap, and the share that is lost because steps
are slower while a thread verifies and packs the version. The cache is kept: recomputing it is the cost of the
interrupt itself. Writing the weights is the trainer's work.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bench.harness import Result, at_most, record, show
from bench.models import smollm2
from freerun.backends.native.arriving import ArrivingWeights
from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine
from freerun.model.checkpoint import empty_model, load_model
from freerun.types import Request, Sampling
from freerun.weights.buffers import create_buffers
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel

SECONDS_BETWEEN_LOADS = 5.0
LOADS_PER_REPETITION = 3
NUM_SEQUENCES = 32


def measure(repetitions: int) -> None:
    torch.set_num_threads(1)
    directory = smollm2()
    trained = load_model(directory)
    state = {name: parameter.detach() for name, parameter in trained.named_parameters()}
    shared = SharedMemoryChannel(create_buffers("bench"), WeightLayout(trained))
    engine = make_engine(directory)
    versions = iter(range(1_000_000))
    engine.swap(prepare(engine, shared, state, next(versions)).take())
    for request in endless_requests():
        engine.submit(request)
    lost = [lost_percent(engine, shared, state, versions) for _ in range(repetitions)]

    def result(claim: str, ours: list[float], *, at_least: float, note: str) -> Result:
        settings = {
            "num_sequences": NUM_SEQUENCES,
            "seconds_between_loads": SECONDS_BETWEEN_LOADS,
            "loads_per_repetition": LOADS_PER_REPETITION,
        }
        peer = "generation time, SmolLM2 fp32, 1 thread"
        return at_most(claim, at_least, " %", ours, settings, peer=peer, aim=1, note=note)

    record(
        "loads",
        result(
            "decoding at a standstill for new weights every 5 s, share of the time",
            [standstill for standstill, _ in lost],
            at_least=1,
            note="The swap between two steps ([decision 43](../decisions/0043-swapped-weights.md)).",
        ),
        result(
            "decoding slowed down by checksum and packing of new weights every 5 s, share of the time",
            [slower for _, slower in lost],
            at_least=3,
            note="On the engine's only core: time of the steps beside the packing thread beyond as many others. "
            "Mostly packing 0.54 GB of weights, without which each step would take longer "
            "([decision 16](../decisions/0016-engine-speed.md)).",
        ),
    )


def make_engine(directory: Path) -> Engine:
    config = EngineConfig(num_slots=NUM_SEQUENCES, cache_tokens=NUM_SEQUENCES * 512, kv_on_load="keep")
    model = empty_model(directory).to_empty(device="cpu")
    return Engine(model, config, text=NoText(), max_sequence_tokens=512, seed=0)


class NoText:
    """The completions are not read."""

    def decode(self, token_ids: np.ndarray) -> str:
        return ""

    def decode_end(self, token_ids: list[int], *, first: int, num_characters: int) -> str:
        return ""


def endless_requests() -> Iterator[Request]:
    """More work than will be done, to keep all slots full at every load."""
    prompts = np.random.default_rng(0).integers(3, 49_000, size=(1000, 60)).astype(np.int32)
    for ordinal, prompt in enumerate(prompts):
        yield Request(
            request_id=ordinal,
            ordinal=ordinal,
            prompt_token_ids=prompt,
            num_samples=8,
            sampling=Sampling(max_completion_tokens=128),
        )


def lost_percent(
    engine: Engine, shared: SharedMemoryChannel, state: dict[str, torch.Tensor], versions: Iterator[int]
) -> tuple[float, float]:
    """Of the time of a few loads and of the generation around them: standing still, and slower steps."""
    seconds_alone: list[float] = []
    seconds_beside: list[float] = []
    standstill = 0.0
    for _ in range(LOADS_PER_REPETITION):
        begin = time.perf_counter()
        while time.perf_counter() - begin < SECONDS_BETWEEN_LOADS:
            seconds_alone.append(step_seconds(engine))
        arriving = prepare(engine, shared, state, next(versions))
        while not arriving.is_done(timeout_seconds=0.0):
            seconds_beside.append(step_seconds(engine))
        begin = time.perf_counter()
        engine.swap(arriving.take())
        standstill += time.perf_counter() - begin
    slower = sum(seconds_beside) - len(seconds_beside) * statistics.mean(seconds_alone)
    show(
        f"  a load: {1000 * standstill / LOADS_PER_REPETITION:.1f} ms standing still, "
        f"{1000 * slower / LOADS_PER_REPETITION:.1f} ms by slower steps"
    )
    whole = sum(seconds_alone) + sum(seconds_beside) + standstill
    return 100 * standstill / whole, 100 * slower / whole


def step_seconds(engine: Engine) -> float:
    begin = time.perf_counter()
    engine.step()
    return time.perf_counter() - begin


def prepare(
    engine: Engine, shared: SharedMemoryChannel, state: dict[str, torch.Tensor], version: int
) -> ArrivingWeights:
    """Publish a version, and begin to verify and pack it as a rollout worker does."""
    published = shared.publish(version, state)()
    return ArrivingWeights(published, lambda: engine.prepare(version, shared.fetch(published)))
