"""A trainer of several ranks makes the weights, moments and metrics of one, to float tolerance.

Not to the bit: the ranks' shares of a gradient are added in another order, and the larger sums of one micro-batch
are rounded elsewhere. Ranks themselves agree to the bit: a scenario gives the same outcome when it is repeated.
"""

import dataclasses
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import rank_scenarios
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_processes import run_ranks
from rank_scenarios import QUICK, SCENARIOS, Outcome, num_weights
from safetensors.torch import load_file
from training_batches import SHAPE, TEMPERATURE, tiny_decoder

from freerun.config.objective import PRESETS
from freerun.trainer.batch import idle_micro_batch
from freerun.trainer.critic import make_critic
from freerun.trainer.logprobs import policy_outputs
from freerun.trainer.loss import compute_loss
from freerun.trainer.packing import pack_for_ranks, pack_micro_batches
from freerun.trainer.ranks import SingleRank

TOLERANCE = 1e-6
"""Absolute and relative, on float32 weights and moments after two or three steps of up to four updates."""


def run_scenarios(num_ranks: int, names: Iterable[str], directory: Path) -> dict[str, Any]:
    """The scenarios on as many processes; what rank 0 reported, its tensors are in the directory."""
    directory.mkdir()
    run_ranks(rank_scenarios.__file__, num_ranks, str(directory), ";".join(names))
    reports: dict[str, Any] = json.loads((directory / "reports.json").read_text())
    return reports


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("ranks") / "two"
    return directory, run_scenarios(2, QUICK, directory)


@pytest.fixture(scope="module", params=[2, 3])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("ranks") / str(request.param)
    return directory, run_scenarios(request.param, SCENARIOS, directory)


@cache
def single(name: str) -> Outcome:
    return SCENARIOS[name](SingleRank())


@pytest.mark.parametrize("name", QUICK)
def test_two_ranks_train_like_one(two: tuple[Path, Any], name: str) -> None:
    assert_like_one(*two, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_any_number_of_ranks_trains_like_one(several: tuple[Path, Any], name: str) -> None:
    assert_like_one(*several, name)


def assert_like_one(directory: Path, reports: Any, name: str) -> None:
    expected = single(name)
    actual = load_file(directory / f"{name}.safetensors")
    assert actual.keys() == expected.tensors.keys()
    for key, tensor in expected.tensors.items():
        torch.testing.assert_close(actual[key], tensor, rtol=TOLERANCE, atol=TOLERANCE, msg=f"{name}: {key}")
    for ours, theirs in zip(reports[name], expected.reports, strict=True):
        assert ours.keys() == theirs.keys()
        for metric in ours.keys() - {"train_tokens_per_second"}:
            is_half = metric.startswith("log_weight")  # float16: neighbours differ in the third digit
            rel, absolute = (2e-3, 2e-3) if is_half else (1e-5, 1e-6)
            assert ours[metric] == pytest.approx(theirs[metric], rel=rel, abs=absolute, nan_ok=True), metric


def test_the_scenarios_do_what_they_are_named_after() -> None:
    skipped = [report["skipped_updates"] for report in single("poisoned").reports]
    assert skipped == [0, 1, 0]
    assert "grad_norm" not in single("equal rewards").reports[1]
    assert all(0 < report["masked_fraction"] < 1 for report in single("m2po").reports)
    assert all(report["reference_kl"] > 0 for report in single("reference").reports)
    assert any(report["clip_fraction"] > 0 for report in single("decoupled").reports)


def test_each_rank_holds_its_share_of_the_weights(two: tuple[Path, Any]) -> None:
    shares = two[1]["shares"]
    assert sum(shares) == num_weights()
    assert max(shares) < 1.1 * num_weights() / len(shares)


@pytest.mark.parametrize("preset", ["areal", "ppo", "gspo", "m2po"])
def test_an_idle_pass_has_a_loss_and_gradients_of_exactly_zero(preset: Any) -> None:
    model, critic = tiny_decoder(), make_critic(SHAPE.hidden_size)
    idle = idle_micro_batch(3)
    nothing, objective = torch.empty(0), PRESETS[preset]
    outputs = policy_outputs(model, idle.packed, temperature=TEMPERATURE, critic=critic)
    idle = dataclasses.replace(idle, returns_L=nothing, is_kept_L=nothing.bool())
    loss = compute_loss(outputs, idle, proximal_logprobs_L=nothing, objective=objective)
    loss.total.backward()
    assert float(loss.total.detach()) == 0
    trained = [*model.parameters(), *(critic.parameters() if objective.has_critic else ())]
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in trained)


lengths_of_families = st.lists(st.integers(1, 50), max_size=30)


@given(lengths_of_families, st.integers(1, 5))
def test_every_family_is_computed_once_and_ranks_have_equally_many_passes(lengths: list[int], k: int) -> None:
    by_rank = pack_for_ranks(lengths, capacity=60, num_ranks=k)
    assert len(by_rank) == k
    assert len({len(micro_batches) for micro_batches in by_rank}) == 1
    packed = sorted(i for micro_batches in by_rank for pack in micro_batches for i in pack)
    assert packed == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in pack) <= 60 for micro_batches in by_rank for pack in micro_batches)


@given(lengths_of_families)
def test_one_rank_packs_as_without_ranks(lengths: list[int]) -> None:
    assert pack_for_ranks(lengths, capacity=60, num_ranks=1) == [pack_micro_batches(lengths, capacity=60)]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(2, 5))
def test_a_rank_is_idle_only_where_families_do_not_go_round(lengths: list[int], k: int) -> None:
    by_rank = pack_for_ranks(lengths, capacity=60, num_ranks=k)
    num_idle = sum(not pack for micro_batches in by_rank for pack in micro_batches)
    is_alone = all(len(pack) <= 1 for micro_batches in by_rank for pack in micro_batches)
    assert num_idle < k
    assert num_idle == 0 or is_alone, "a micro-batch of several families could have been divided"
