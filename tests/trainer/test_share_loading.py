"""Ranks read only their share of models and moments, and together they hold the bits of the whole."""

import json
from pathlib import Path
from typing import Any

import pytest
import share_loading
import torch
from rank_processes import run_ranks
from safetensors.torch import load_file
from share_loading import LARGE, loaded, whole_weights, write_models
from tiny_models import random_weights

from freerun.trainer.ranks import SingleRank

NUM_RANKS = 4


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("shares")
    write_models(directory)
    run_ranks(share_loading.__file__, NUM_RANKS, str(directory))
    return directory, [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(NUM_RANKS)]


def test_the_shares_of_all_ranks_are_the_model_bit_for_bit(outcome: tuple[Path, list[dict[str, Any]]]) -> None:
    directory, reports = outcome
    for name, (model, frozen) in loaded(directory, SingleRank()).items():
        expected, actual = whole_weights(SingleRank(), model), load_file(directory / f"{name}.safetensors")
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[key], expected[key]) for key in expected), name
        assert [report["frozen"][name] for report in reports] == [frozen] * NUM_RANKS


def test_a_rank_reads_only_its_share(outcome: tuple[Path, list[dict[str, Any]]]) -> None:
    num_bytes = sum(weight.nbytes for weight in random_weights(0, LARGE).values())
    for report in outcome[1]:
        # The rows that it maps and those that it keeps, each a quarter. To read everything takes five quarters.
        assert report["model"] < 0.9 * num_bytes
        assert report["moments"] < 0.9 * 2 * num_bytes


def test_the_shares_of_moments_are_those_of_the_checkpoint(outcome: tuple[Path, list[dict[str, Any]]]) -> None:
    saved, resumed = load_file(outcome[0] / "moments"), load_file(outcome[0] / "resumed")
    assert saved.keys() == resumed.keys()
    assert all(torch.equal(saved[name], resumed[name]) for name in saved)
