"""GPUs and model shapes as data: the built-in ones, a user's own, and errors that name the remedy."""

from pathlib import Path

import pytest

from freerun.errors import FreerunError
from freerun.simulation.hardware import GPUS, find_gpu
from freerun.simulation.shapes import MODEL_SHAPES, find_shape


def test_a_users_own_gpu_is_a_table_of_three_numbers(tmp_path: Path) -> None:
    own = tmp_path / "gpus.toml"
    own.write_text("[mi300x]\nflops = 1.307e15\nmemory_bandwidth = 5.3e12\nmemory_bytes = 192e9\nprice = 2\n")
    gpu = find_gpu("mi300x", own)
    assert (gpu.memory_bytes, gpu.price, gpu.gpus_per_node) == (192e9, 2.0, 8)
    assert find_gpu("h100", own) is GPUS["h100"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[x]\nflops = 1e15\n", "memory_bandwidth"),
        ("[x]\nflops = 0\nmemory_bandwidth = 1\nmemory_bytes = 1\n", "> 0.0"),
        ("[x]\nflops = 1\nmemory_bandwidth = 1\nmemory_bytes = 1\ncolour = 1\n", "colour"),
        ("[x", "gpus.toml"),
    ],
)
def test_a_file_that_is_no_table_of_gpus_is_refused_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    own = tmp_path / "gpus.toml"
    own.write_text(text)
    with pytest.raises(FreerunError, match=reason):
        find_gpu("x", own)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(FreerunError, match='did you mean "h100"'):
        find_gpu("h1000")
    with pytest.raises(FreerunError, match=r'did you mean "qwen2\.5-7b"'):
        find_shape("qwen-7b", "")
    with pytest.raises(FreerunError, match="cannot be read"):
        find_gpu("x", Path("no such file.toml"))


@pytest.mark.parametrize(
    ("name", "billions", "cache_bytes"),
    [
        ("qwen2.5-1.5b", 1.54, 28_672),
        ("qwen2.5-7b", 7.61, 57_344),
        ("qwen2.5-14b", 14.8, 196_608),
        ("qwen2.5-32b", 32.8, 262_144),
        ("llama-3.1-8b", 8.03, 131_072),
        ("smollm2-135m", 0.135, 23_040),
    ],
)
def test_shapes_have_the_published_sizes(name: str, billions: float, cache_bytes: int) -> None:
    assert MODEL_SHAPES[name].num_parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert MODEL_SHAPES[name].cache_bytes == cache_bytes
