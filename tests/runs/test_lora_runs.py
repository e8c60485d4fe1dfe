"""LoRA in real runs: learns, publishes the adapter, resumes to the bit, is evaluated and merged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tiny_runs import ROOT, Run, assert_exactly_once, make_run
from transformers import AutoModelForCausalLM

from freerun.events.events import SftStep
from freerun.model.attention import full_forward_logits
from freerun.model.checkpoint import load_model

LORA = ("--lora.rank", "4", "--lora.alpha", "8", "--train.lr", "3e-2")
SFT = ("--sft.num_steps", "8", "--sft.batch_size", "16", "--sft.lr", "0.03", "--sft.warmup_steps", "20")
SYNCHRONOUS = (*LORA, "--eval.every_steps", "100", "--buffer.max_staleness", "0", "--train.num_threads", "1")


def freerun(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "freerun.cli.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_an_asynchronous_lora_run_learns_and_its_adapter_is_evaluated_and_merged(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *LORA, *SFT, "--train.num_steps", "20", "--buffer.max_staleness", "2")
    assert run.wait() == 0, run.output
    assert_exactly_once(run, num_steps=20)
    steps = run.reader().steps()
    losses = [e.loss for e in run.reader().events("sft_step") if isinstance(e, SftStep) and e.loss is not None]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    first, last = ([s.metrics["reward"] for s in part] for part in (steps[:4], steps[-4:]))
    assert sum(last) > sum(first)
    divergences = [s.metrics["engine_trainer_kl"] for s in steps if "engine_trainer_kl" in s.metrics]
    assert divergences
    assert max(divergences) < 1e-6

    base, adapter = tmp_path / "model", run.reader_path / "checkpoints" / "step-20" / "model"
    assert not (adapter / "model.safetensors").exists()
    assert (adapter / "adapter_model.safetensors").stat().st_size < (base / "model.safetensors").stat().st_size
    assert "pass@1" in freerun("eval", str(run.reader_path))

    freerun("model", "merge", str(run.reader_path), str(tmp_path / "merged"))
    tokens = [1, 2, 3, 4, 5, 6]
    with torch.no_grad():
        ours = full_forward_logits(load_model(adapter), tokens)
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(torch.tensor([tokens])).logits[0]
        peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(adapter))
        adapted = peft(torch.tensor([tokens])).logits[0]
        by_transformers = AutoModelForCausalLM.from_pretrained(adapter)(torch.tensor([tokens])).logits[0]
        untrained = full_forward_logits(load_model(base), tokens)
    torch.testing.assert_close(merged, ours, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(adapted, ours, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(by_transformers, ours, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(untrained, ours, atol=1e-2)


@pytest.mark.slow
def test_an_interrupted_and_resumed_lora_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole")
    run = Run(whole, *SYNCHRONOUS, "--train.num_steps", "4")
    assert run.wait() == 0, run.output
    parts = make_run(tmp_path / "parts")
    first = Run(parts, *SYNCHRONOUS, "--train.num_steps", "2")
    assert first.wait() == 0, first.output
    second = Run(parts, "--resume", "--train.num_steps", "4")
    assert second.wait() == 0, second.output
    checkpoints = [path.parent / "runs" / "tiny" / "checkpoints" / "step-4" for path in (whole, parts)]
    for name in ("model/adapter_model.safetensors", "optimizer.safetensors"):
        expected, actual = (load_file(directory / name) for directory in checkpoints)
        assert expected.keys() == actual.keys()
        assert all(torch.equal(expected[key], actual[key]) for key in expected)
