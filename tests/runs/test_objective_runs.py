"""Objectives in real runs: a critic and a reference survive a resume, a user's functions train."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import Run, make_run, recipe_of
from torch import Tensor

from freerun.errors import ConfigError
from freerun.model.checkpoint import load_model
from freerun.session.run_directory import open_run

SETTINGS = ("--buffer.max_staleness", "0", "--eval.num_prompts", "1", "--train.num_minibatches", "1")
OBJECTIVE = ("--objective.preset", "ppo", "--objective.kl_coefficient", "0.05")


def train(path: Path, *arguments: str) -> Run:
    run = Run(path, *arguments)
    assert run.wait() == 0, run.output
    return run


def state_after(path: Path, version: int) -> dict[str, Tensor]:
    """Weights, moments and critic."""
    directory = path.parent / "runs" / "tiny" / "checkpoints" / f"step-{version}"
    weights = {f"model.{name}": p.detach() for name, p in load_model(directory / "model").named_parameters()}
    return weights | load_file(directory / "optimizer.safetensors")


@pytest.mark.slow
def test_a_resumed_run_with_a_critic_and_a_reference_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole, parts = make_run(tmp_path / "whole"), make_run(tmp_path / "parts")
    run = train(whole, *SETTINGS, *OBJECTIVE, "--train.num_steps", "3")
    train(parts, *SETTINGS, *OBJECTIVE, "--train.num_steps", "2")
    train(parts, "--resume", "--train.num_steps", "3")
    expected, actual = state_after(whole, 3), state_after(parts, 3)
    assert expected.keys() == actual.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name
    assert expected["critic.weight"].abs().max() > 0
    metrics = run.reader().steps()[-1].metrics
    assert metrics["value_loss"] > 0
    assert metrics["reference_kl"] > 0
    model, reference = (load_model(d) for d in (parts.parent / "model", parts.parent / "runs/tiny/reference"))
    assert all(torch.equal(p, model.get_parameter(name)) for name, p in reference.named_parameters())

    # Without the reference there is nothing to measure against: a run cannot be given a KL term halfway.
    shutil.rmtree(parts.parent / "runs/tiny/reference")
    recipe = recipe_of(parts, *SETTINGS, *OBJECTIVE)
    with pytest.raises(ConfigError, match="needs the policy of version 0"), open_run(recipe, resume=True):
        pass


@pytest.mark.slow
def test_the_reference_is_the_policy_after_the_warm_start(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    run = train(path, *SETTINGS, *OBJECTIVE, "--train.num_steps", "2", "--sft.num_steps", "2")
    divergence = [step.metrics["reference_kl"] for step in run.reader().steps()]
    assert divergence[0] == 0
    assert divergence[1] > 0
    model, reference = load_model(tmp_path / "model"), load_model(tmp_path / "runs/tiny/reference")
    assert not torch.equal(model.embedding.weight, reference.embedding.weight)


@pytest.mark.slow
def test_an_adapters_reference_is_an_adapter_and_survives_a_resume(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    settings = (*SETTINGS, "--lora.rank", "4", "--objective.kl_coefficient", "0.05", "--sft.num_steps", "2")
    train(path, *settings, "--train.num_steps", "1")
    assert (path.parent / "runs/tiny/reference/adapter_config.json").is_file()
    run = train(path, "--resume", "--train.num_steps", "2")
    divergence = [step.metrics["reference_kl"] for step in run.reader().steps()]
    assert abs(divergence[0]) < 1e-6  # the reference is merged, which rounds differently
    assert divergence[1] > divergence[0]


@pytest.mark.slow
def test_a_run_with_a_users_advantage_and_clip_is_the_run_with_the_built_in_ones_they_repeat(
    tmp_path: Path,
) -> None:
    own, built_in = make_run(tmp_path / "own"), make_run(tmp_path / "built-in")
    names = [f"--objective.{axis}=tests.support.own_objective:{axis}" for axis in ("advantage", "clip")]
    train(own, *SETTINGS, *names, "--train.num_steps", "2", "--train.num_threads", "1")
    train(built_in, *SETTINGS, "--train.num_steps", "2", "--train.num_threads", "1")
    actual, expected = state_after(own, 2), state_after(built_in, 2)
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


@pytest.mark.slow
def test_a_users_function_that_fails_ends_the_run_with_its_key_and_traceback(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *SETTINGS, "--objective.clip", "tests.support.own_objective:failing_clip")
    assert run.wait() == 1
    assert 'config: objective.clip: "tests.support.own_objective:failing_clip" failed:' in run.output
    assert "ZeroDivisionError: the user's" in run.output
    assert not run.reader().steps()
