"""What a load of new weights costs an engine apart from recomputing its cache: time without generation.

SmolLM2 decodes 32 sequences on one thread, and a new version arrives in shared memory every five seconds. The
figure is the share of time in which decoding is paused for checksum, swap and packing. The cache is kept:
recomputing it is the cost of the interrupt itself. Writing the weights is the trainer's work.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bench.harness import Result, record, show
from bench.models import smollm2
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
    publish_and_load(engine, shared, state, next(versions))
    for request in endless_requests():
        engine.submit(request)
    lost = [lost_percent(engine, shared, state, versions) for _ in range(repetitions)]
    record(
        "loads",
        Result(
            claim="checksum, swap and packing of new weights every 5 s, share of the time",
            peer="generation time, SmolLM2 fp32, 1 thread",
            at_least=3,
            aim=1,
            unit=" %",
            ours=lost,
            theirs=[],
            lower_is_better=True,
            settings={
                "num_sequences": NUM_SEQUENCES,
                "seconds_between_loads": SECONDS_BETWEEN_LOADS,
                "loads_per_repetition": LOADS_PER_REPETITION,
            },
            note="Mostly packing 0.54 GB of weights, without which each step would take longer "
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
) -> float:
    """Of the time of a few loads and of the generation between them."""
    generating_seconds = lost_seconds = 0.0
    for _ in range(LOADS_PER_REPETITION):
        begin = time.perf_counter()
        while (passed := time.perf_counter() - begin) < SECONDS_BETWEEN_LOADS:
            engine.step()
        generating_seconds += passed
        lost_seconds += publish_and_load(engine, shared, state, next(versions))
    show(f"  {1000 * lost_seconds / LOADS_PER_REPETITION:.1f} ms for a load")
    return 100 * lost_seconds / (generating_seconds + lost_seconds)


def publish_and_load(
    engine: Engine, shared: SharedMemoryChannel, state: dict[str, torch.Tensor], version: int
) -> float:
    """Seconds that the engine spent on the load."""
    published = shared.publish(version, state)()
    begin = time.perf_counter()
    engine.load(version, shared.fetch(published))
    return time.perf_counter() - begin
