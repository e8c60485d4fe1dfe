"""Engine and trainer in bfloat16, computed for real on a CPU: it rounds, and nothing else changes.

bfloat16 keeps 8 bits of a number (steps of 0.4 %), and sums taken in another order round differently, so that
equality is up to `ROUNDING` in a logprob.
"""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from engine_reference import finish, logprobs_of_full_forward
from safetensors.torch import load_file
from tiny_models import Letters, make_request, random_model, random_weights
from tiny_runs import Run, make_run
from torch import Tensor
from training_batches import (
    TEMPERATURE,
    config,
    first_gradients,
    make_groups,
    make_trainer,
    tiny_decoder,
    trajectories_of,
)

from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine
from freerun.engine.pinned import PinnableEngine
from freerun.model.decoder import Decoder
from freerun.trainer.batch import pack_sequences
from freerun.trainer.logprobs import policy_outputs
from freerun.types import Publication
from freerun.weights.buffers import create_buffers
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel

torch.set_num_threads(1)
ROUNDING = 0.02
WEIGHTS = {version: random_weights(200 + version) for version in range(3)}


def make_engine(dtype: torch.dtype) -> Engine:
    settings = EngineConfig(num_slots=6, cache_tokens=400, prefill_chunk_tokens=16)
    engine = Engine(random_model(0).to(dtype), settings, text=Letters(), max_sequence_tokens=100, seed=7)
    engine.load(0, WEIGHTS[0])
    return engine


def test_logprobs_are_float32_and_those_of_the_bfloat16_models_full_forward_across_loads() -> None:
    request = make_request(1, prompt_length=20, num_samples=6, max_completion_tokens=40)
    engine = make_engine(torch.bfloat16)
    errors = []
    for completion in finish(engine, request, {12: 1, 25: 2}, WEIGHTS):
        assert completion.logprobs.dtype == np.float32
        assert set(completion.versions.tolist()) == {0, 1, 2}
        for version in range(3):
            expected = logprobs_of_full_forward(random_model(0).bfloat16(), WEIGHTS[version], request, completion)
            mine = completion.versions == version
            errors.append(np.abs(completion.logprobs[mine] - expected[mine]))
    assert max(map(np.max, errors)) < ROUNDING


def test_a_load_converts_whole_weights_and_leaves_the_published_ones_alone() -> None:
    published = SharedMemoryChannel(create_buffers("test"), WeightLayout(random_model(0)))
    published.write(1, WEIGHTS[1])
    fetched = published.fetch(Publication(version=1, checksum=published.checksum(1)))
    engine, in_place = make_engine(torch.bfloat16), make_engine(torch.float32)
    for each in (engine, in_place):
        each.load(1, fetched)
    assert all(torch.equal(p, WEIGHTS[1][name].bfloat16()) for name, p in engine.model.named_parameters())
    assert all(p.data_ptr() == fetched[name].data_ptr() for name, p in in_place.model.named_parameters())
    published.write(3, WEIGHTS[2])  # the same buffer: seen by the engine that reads in place, not by its own copy
    assert all(torch.equal(p, WEIGHTS[1][name].bfloat16()) for name, p in engine.model.named_parameters())
    assert all(torch.equal(p, WEIGHTS[2][name]) for name, p in in_place.model.named_parameters())
    assert {tensor.dtype for tensor in fetched.values()} == {torch.float32}


def test_weights_published_in_bfloat16_are_used_in_place_and_give_the_bits_of_converted_ones() -> None:
    layout = WeightLayout(random_model(0), torch.bfloat16)
    published = SharedMemoryChannel(create_buffers("test"), layout)
    engine, converting = make_engine(torch.bfloat16), make_engine(torch.bfloat16)
    fetched = published.fetch(published.publish(1, WEIGHTS[1])())
    engine.load(1, fetched)
    converting.load(1, WEIGHTS[1])
    assert all(p.data_ptr() == fetched[name].data_ptr() for name, p in engine.model.named_parameters())
    request = make_request(1, num_samples=2)
    ours, theirs = (finish(each, request, {}, WEIGHTS) for each in (engine, converting))
    assert [c.token_ids.tolist() for c in ours] == [c.token_ids.tolist() for c in theirs]
    assert [c.logprobs.tolist() for c in ours] == [c.logprobs.tolist() for c in theirs]


def test_a_pinned_version_stays_while_the_live_engines_own_weights_are_overwritten() -> None:
    engine = PinnableEngine(make_engine(torch.bfloat16))
    engine.pin(0)
    engine.load(1, WEIGHTS[1])
    request = make_request(1, num_samples=2)
    alone = finish(make_engine(torch.bfloat16), request, {}, WEIGHTS)
    kept = finish(engine, msgspec.structs.replace(request, pinned_version=0), {}, WEIGHTS)
    assert [c.token_ids.tolist() for c in kept] == [c.token_ids.tolist() for c in alone]
    assert [c.logprobs.tolist() for c in kept] == [c.logprobs.tolist() for c in alone]


def logprobs(model: Decoder, dtype: torch.dtype) -> Tensor:
    pairs = [(t.prompt.token_ids, t.completion.token_ids) for t in trajectories_of(make_groups())]
    with torch.no_grad():
        return policy_outputs(model, pack_sequences(pairs), temperature=TEMPERATURE, dtype=dtype).logprobs_L


def test_the_trainer_computes_in_bfloat16_and_keeps_weights_moments_and_logprobs_in_float32() -> None:
    exact, rounded = logprobs(tiny_decoder(), torch.float32), logprobs(tiny_decoder(), torch.bfloat16)
    assert rounded.dtype == torch.float32
    assert 0 < float((exact - rounded).abs().max()) < 0.1
    in_float32, in_bfloat16 = (make_trainer(tiny_decoder(), config(dtype=d)) for d in ("float32", "bfloat16"))
    in_float32.step(make_groups())
    in_bfloat16.step(make_groups())
    assert {p.dtype for p in in_bfloat16.model.parameters()} == {torch.float32}
    moments = [t for name, t in in_bfloat16.optimizer_state().items() if name.startswith("exp_avg")]
    assert {t.dtype for t in moments} == {torch.float32}
    expected, actual = (
        torch.cat([gradient.flatten() for gradient in first_gradients(trainer).values()])
        for trainer in (in_float32, in_bfloat16)
    )
    assert 0.999 < float(torch.cosine_similarity(expected, actual, dim=0)) < 1


@pytest.mark.slow
@pytest.mark.parametrize("lora", [(), ("--lora.rank", "4")], ids=["all weights", "adapter"])
def test_a_run_in_bfloat16_stays_close_to_on_policy_and_saves_float32(
    lora: tuple[str, ...], tmp_path: Path
) -> None:
    dtypes = ("--engine.dtype", "bfloat16", "--train.dtype", "bfloat16")
    run = Run(make_run(tmp_path), *dtypes, *lora, "--train.num_steps", "3", "--buffer.max_staleness", "0")
    assert run.wait() == 0, run.output
    for step in run.reader().steps():
        # On-policy but for the rounding: the engine keeps its residual stream in bfloat16, the trainer in float32.
        assert step.metrics["behaviour_weight_mean"] == pytest.approx(1, abs=0.01)
        assert step.metrics["behaviour_weight_max"] < 1 + 5 * ROUNDING
        assert 0 < step.metrics["engine_trainer_kl"] < 1e-3
    checkpoint = run.reader_path / "checkpoints" / "step-3"
    files = [checkpoint / "optimizer.safetensors", *(checkpoint / "model").glob("*.safetensors")]
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert {tensor.dtype for name, tensor in tensors.items() if name != "num_updates"} == {torch.float32}
