"""The cost models: more work never takes less time, more GPUs never more, and known points come out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.simulation.costs import (
    LinearEngine,
    LinearTrainer,
    RooflineEngine,
    RooflineTrainer,
    weight_costs,
)
from freerun.simulation.hardware import GPUS
from freerun.simulation.shapes import MODEL_SHAPES

models = st.sampled_from(sorted(MODEL_SHAPES))
kinds = st.sampled_from(sorted(GPUS))
counts = st.integers(1, 2048)


@given(model=models, kind=kinds, num_gpus=st.sampled_from([1, 2, 4, 8]), n=counts, more=counts, cached=counts)
def test_a_decode_step_takes_longer_with_more_sequences_or_a_fuller_cache(
    model: str, kind: str, num_gpus: int, n: int, more: int, cached: int
) -> None:
    engine = RooflineEngine(GPUS[kind], MODEL_SHAPES[model], num_gpus)
    seconds = engine.step_seconds(n, cached)
    assert 0 < seconds < engine.step_seconds(n + more, cached)
    assert seconds < engine.step_seconds(n, cached + more)
    # Batching pays: twice the sequences never cost twice the time.
    assert engine.step_seconds(2 * n, 2 * cached) < 2 * seconds
    assert engine.prefill_seconds(n) < engine.prefill_seconds(n + more) < engine.prefill_seconds(n + more, 1000)


@given(model=models, lengths=st.lists(st.integers(1, 30_000), min_size=1, max_size=50), gpus=st.integers(1, 512))
def test_a_training_step_is_shared_by_gpus_and_grows_with_its_tokens(
    model: str, lengths: list[int], gpus: int
) -> None:
    one = RooflineTrainer(GPUS["h100"], MODEL_SHAPES[model], gpus)
    two = RooflineTrainer(GPUS["h100"], MODEL_SHAPES[model], 2 * gpus)
    fixed = one.constants.fixed_seconds
    assert one.step_seconds(lengths) - fixed == pytest.approx(2 * (two.step_seconds(lengths) - fixed))
    assert one.step_seconds(lengths) < one.step_seconds([*lengths, 1])
    # Attention is quadratic: one long sequence costs more than the same tokens in short ones.
    assert one.step_seconds([sum(lengths)]) >= one.step_seconds(lengths)


def test_the_smallest_step_reads_all_weights_once() -> None:
    engine = RooflineEngine(GPUS["h100"], MODEL_SHAPES["qwen2.5-7b"])
    weights = 2 * MODEL_SHAPES["qwen2.5-7b"].num_multiplied / GPUS["h100"].memory_bandwidth
    fixed = engine.constants.overhead_seconds
    assert weights < engine.step_seconds(1, 0) - fixed < 1.5 * weights


def test_a_server_has_room_for_what_memory_leaves_beside_the_weights() -> None:
    assert 4_300_000 < RooflineEngine(GPUS["h100"], MODEL_SHAPES["qwen2.5-7b"], 4).cache_tokens < 4_700_000
    assert RooflineEngine(GPUS["l40s"], MODEL_SHAPES["qwen2.5-32b"]).cache_tokens < 0


def test_measured_costs_are_linear_in_what_was_counted() -> None:
    engine = LinearEngine(step=1.0, sequence=0.1, cached_token=0.01, prefill_token=0.001)
    assert engine.step_seconds(2, 3) == pytest.approx(1.23)
    assert engine.prefill_seconds(4) == pytest.approx(0.004)
    assert LinearTrainer(step=1.0, token=0.5).step_seconds([1, 2]) == pytest.approx(2.5)


def test_weights_are_published_and_loaded_in_proportion_to_their_bytes() -> None:
    whole, half = weight_costs(GPUS["h100"], 30_400_000_000), weight_costs(GPUS["h100"], 15_200_000_000)
    assert whole.load_seconds == pytest.approx(7.6)
    assert whole.transfer_seconds == pytest.approx(2.43, abs=0.01)
    assert half.load_seconds == pytest.approx(whole.load_seconds / 2)
