"""Weights cross processes whole or not at all, and leave nothing behind."""

import os
import subprocess
import sys

import pytest
import torch
from tiny_models import random_model

from freerun.config.lora import LoraConfig
from freerun.errors import WeightsError
from freerun.model.lora import add_adapter
from freerun.types import Publication
from freerun.weights.buffers import create_buffers
from freerun.weights.layout import ALIGNMENT_BYTES, WeightLayout
from freerun.weights.shared import SharedMemoryChannel


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_fetched_weights_are_the_published_ones_bit_for_bit() -> None:
    layout, buffers = WeightLayout(random_model(0)), create_buffers("test")
    trainer, engine = SharedMemoryChannel(buffers, layout), SharedMemoryChannel(buffers, layout)
    for version in range(3):
        published = state_of(random_model(version))
        trainer.write(version, published)
        fetched = engine.fetch(Publication(version=version, checksum=trainer.checksum(version)))
        assert fetched.keys() == published.keys()
        assert all(torch.equal(fetched[name], published[name]) for name in published)


def test_whole_models_travel_in_the_engines_dtype_and_adapters_in_float32() -> None:
    model, exact = random_model(0), WeightLayout(random_model(0))
    layout, buffers = WeightLayout(model, torch.bfloat16), create_buffers("test")
    assert layout.num_bytes < 0.6 * exact.num_bytes
    trainer, engine = SharedMemoryChannel(buffers, layout), SharedMemoryChannel(buffers, layout)
    fetched = engine.fetch(trainer.publish(1, state_of(model))())
    assert all(torch.equal(fetched[name], weight.bfloat16()) for name, weight in state_of(model).items())
    add_adapter(model, LoraConfig(rank=2), seed=0)
    assert WeightLayout(model, torch.bfloat16).dtype == torch.float32


def test_publishing_leaves_the_version_in_use_untouched() -> None:
    layout, buffers = WeightLayout(random_model(0)), create_buffers("test")
    trainer, engine = SharedMemoryChannel(buffers, layout), SharedMemoryChannel(buffers, layout)
    trainer.write(4, state_of(random_model(4)))
    in_use = engine.fetch(Publication(version=4, checksum=trainer.checksum(4)))
    trainer.write(5, state_of(random_model(5)))
    assert all(torch.equal(in_use[name], tensor) for name, tensor in state_of(random_model(4)).items())


def test_a_flipped_bit_and_a_swapped_version_are_noticed() -> None:
    layout, buffers = WeightLayout(random_model(0)), create_buffers("test")
    trainer = SharedMemoryChannel(buffers, layout)
    trainer.write(1, state_of(random_model(1)))
    trainer.write(3, state_of(random_model(1)))
    checksum = trainer.checksum(1)
    with pytest.raises(WeightsError, match="weights of version 3 arrived damaged"):
        trainer.fetch(Publication(version=3, checksum=checksum))
    os.pwrite(buffers[1], b"\x01", layout.num_bytes // 2)
    with pytest.raises(WeightsError, match="weights of version 1 arrived damaged"):
        trainer.fetch(Publication(version=1, checksum=checksum))


def test_a_buffer_of_another_model_is_refused() -> None:
    layout, buffers = WeightLayout(random_model(0)), create_buffers("test")
    os.ftruncate(buffers[0], layout.num_bytes + 64)
    with pytest.raises(WeightsError, match="the model needs"):
        SharedMemoryChannel(buffers, layout)


def test_every_parameter_is_aligned_and_none_overlap() -> None:
    layout = WeightLayout(random_model(0))
    end = 0
    for place in layout.places.values():
        assert place.offset % ALIGNMENT_BYTES == 0
        assert place.offset >= end
        end = place.offset + place.num_bytes
    assert end <= layout.num_bytes


def test_the_shared_memory_has_no_name_and_goes_with_the_last_process() -> None:
    script = (
        "import os; from freerun.weights.buffers import create_buffers\n"
        "fds = create_buffers('leak'); [os.ftruncate(fd, 1 << 20) for fd in fds]\n"
        "print(sorted(os.listdir('/dev/shm')), flush=True); os.kill(os.getpid(), 9)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == -9
    assert "leak" not in result.stdout
    assert not [name for name in os.listdir("/dev/shm") if "leak" in name]
