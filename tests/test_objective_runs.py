"""Objectives that keep something beside the policy, in real runs: a critic and a reference survive a resume."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import Run, make_run, recipe_of
from torch import Tensor

from freerun.model.checkpoint import load_model

SYNCHRONOUS = ("--buffer.max_staleness", "0", "--eval.num_prompts", "1")
OBJECTIVES = {
    "critic": ("--objective.preset", "ppo"),
    "reference": ("--objective.preset", "grpo", "--objective.kl_coefficient", "0.05"),
}


def train(path: Path, *arguments: str) -> Run:
    run = Run(path, *arguments)
    assert run.wait() == 0, run.output
    return run


def state_after(path: Path, version: int) -> dict[str, Tensor]:
    """Weights, moments and critic."""
    directory = path.parent / "runs" / "tiny" / "checkpoints" / f"step-{version}"
    weights = {f"model.{name}": p.detach() for name, p in load_model(directory / "model").named_parameters()}
    return weights | load_file(directory / "optimizer.safetensors")


@pytest.mark.parametrize("kept", OBJECTIVES)
def test_a_resumed_run_with_a_critic_or_a_reference_is_the_uninterrupted_one(tmp_path: Path, kept: str) -> None:
    whole, parts = make_run(tmp_path / "whole"), make_run(tmp_path / "parts")
    run = train(whole, *SYNCHRONOUS, *OBJECTIVES[kept], "--train.num_steps", "4")
    train(parts, *SYNCHRONOUS, *OBJECTIVES[kept], "--train.num_steps", "2")
    train(parts, "--resume", "--train.num_steps", "4")
    expected, actual = state_after(whole, 4), state_after(parts, 4)
    assert expected.keys() == actual.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name
    metrics = run.reader().steps()[-1].metrics
    assert ("critic.weight" in expected) == ("value_loss" in metrics) == (kept == "critic")
    if kept == "critic":
        assert expected["critic.weight"].abs().max() > 0
    else:
        assert metrics["reference_kl"] > 0
        initial = dict(load_model(Path(recipe_of(parts).model.path)).named_parameters())
        reference = load_model(parts.parent / "runs" / "tiny" / "reference")
        assert all(torch.equal(p, initial[name]) for name, p in reference.named_parameters())


def test_a_run_started_without_a_reference_cannot_be_resumed_with_a_kl_term(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    train(path, *SYNCHRONOUS, "--train.num_steps", "1")
    run = Run(path, "--resume", "--train.num_steps", "2", "--objective.kl_coefficient", "0.1")
    assert run.wait() == 2
    assert "needs the policy of version 0" in run.output
