"""The whole thing lives: a full asynchronous run in seconds, from the command line to a loadable model."""

from pathlib import Path

import pytest
import torch
from tiny_runs import Run, are_gone, assert_exactly_once, make_run
from transformers import AutoModelForCausalLM, AutoTokenizer

from freerun.events.events import EvalSkipped
from freerun.model.attention import full_forward_logits
from freerun.model.checkpoint import load_model


def test_an_asynchronous_run_learns_stays_within_its_bound_and_leaves_a_model(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), "--train.num_steps", "20", "--buffer.max_staleness", "2")
    run.until_step(2)
    workers = run.workers()
    assert len(workers) >= 3
    assert run.wait() == 0, run.output
    assert are_gone(workers)
    assert_exactly_once(run, num_steps=20)

    reader = run.reader()
    steps = reader.steps()
    assert [step.version for step in steps] == list(range(1, 21))
    staleness = [t.staleness for v in range(1, 21) for t in reader.trajectories(v)]
    assert 0 < max(staleness) <= 2
    first, last = ([s.metrics["reward"] for s in part] for part in (steps[:4], steps[-4:]))
    assert sum(last) > sum(first)

    # The engine sampled what the trainer computes: on same-version tokens their logprobs agree.
    divergences = [s.metrics["engine_trainer_kl"] for s in steps if "engine_trainer_kl" in s.metrics]
    assert divergences
    assert max(divergences) < 1e-6

    for trajectory in reader.trajectories(20):
        assert sum(span.num_tokens for span in trajectory.spans) == len(trajectory.token_ids)

    # Each evaluation that was due is of exactly its version, prompt by prompt, or skipped because one still ran.
    evals = reader.evals()
    skipped = [event for event in reader.events("eval_skipped") if isinstance(event, EvalSkipped)]
    assert sorted([e.version for e in evals] + [e.version for e in skipped]) == [0, 4, 8, 12, 16, 20]
    assert all("still runs" in event.reason for event in skipped), "versions that were lost or mixed"
    for row in evals:
        prompts = reader.eval_prompts(row.version)
        assert [prompt.ordinal for prompt in prompts] == [-1, -2, -3, -4]
        assert abs(row.accuracy - sum(p.num_correct / p.num_samples for p in prompts) / 4) < 1e-9
        assert row.accuracy_low <= row.accuracy <= row.accuracy_high

    directory = tmp_path / "runs" / "tiny" / "checkpoints" / "step-20" / "model"
    assert str(directory) in run.output
    tokens = AutoTokenizer.from_pretrained(directory)("^12,18>")["input_ids"]
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(directory)(torch.tensor([tokens])).logits[0]
        torch.testing.assert_close(
            theirs, full_forward_logits(load_model(directory), tokens), atol=1e-4, rtol=1e-4
        )


@pytest.mark.slow
def test_a_draining_run_trains_on_completions_of_one_version_each(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), "--train.num_steps", "8", "--engine.kv_on_load", "drain")
    assert run.wait() == 0, run.output
    assert_exactly_once(run, num_steps=8)
    trajectories = [t for version in range(1, 9) for t in run.reader().trajectories(version)]
    assert all(len(trajectory.spans) == 1 for trajectory in trajectories)
    assert len({trajectory.spans[0].version for trajectory in trajectories}) > 1
