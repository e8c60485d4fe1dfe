"""Whole runs of sessions: an episode of several turns is trained from the command line, and nothing is lost."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import Run, are_gone, assert_exactly_once, make_run

from freerun.events.reader import RunReader
from freerun.model.checkpoint import load_model

EPISODES = "tests.support.lively_episode"
SESSIONS = ("--rollout.max_session_tokens", "120", "--sampling.max_completion_tokens", "6")
LONG = ("--train.num_steps", "400", "--checkpoint.every_steps", "2", "--eval.every_steps", "1000")


def playing(episode: str) -> tuple[str, ...]:
    return (*SESSIONS, "--rollout.episode", f"{EPISODES}:{episode}")


def staleness(reader: RunReader, num_steps: int) -> list[int]:
    return [t.staleness for version in range(1, num_steps + 1) for t in reader.trajectories(version)]


def test_an_episode_of_several_turns_is_trained_within_the_bound(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *playing("episode"), "--train.num_steps", "20", "--buffer.max_staleness", "2")
    run.until_step(2)
    workers = run.workers()
    assert run.wait() == 0, run.output
    assert are_gone(workers)
    assert_exactly_once(run, num_steps=20)
    with run.reader() as reader:
        steps = reader.steps()
        assert [step.version for step in steps] == list(range(1, 21))
        assert 0 < max(staleness(reader, 20)) <= 2
        first, last = (sum(s.metrics["reward"] for s in part) for part in (steps[:4], steps[-4:]))
        assert last > first
        divergences = [s.metrics["engine_trainer_kl"] for s in steps if "engine_trainer_kl" in s.metrics]
        assert divergences
        assert max(divergences) < 1e-6
        trajectories = reader.trajectories(20)
        num_calls = {max(span.call for span in t.spans) for t in trajectories}
        assert num_calls <= {0, 1, 2, 3}
        for trajectory in trajectories:
            assert sum(span.num_tokens for span in trajectory.spans) == len(trajectory.token_ids)
            assert trajectory.spans[0].version is not None
        given = [
            span for v in range(1, 21) for t in reader.trajectories(v) for span in t.spans if span.version is None
        ]
        assert given
        assert {span.num_tokens for span in given} == {5}, "12,8> between two turns"
        assert [e.version for e in reader.evals()][-1] == 20


@pytest.mark.slow
def test_a_session_may_ask_the_runs_graders(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *playing("graded_episode"), "--train.num_steps", "3")
    assert run.wait() == 0, run.output
    assert_exactly_once(run, num_steps=3)
    assert len({t.reward for version in range(1, 4) for t in run.reader().trajectories(version)}) > 1


@pytest.mark.slow
def test_a_session_of_two_conversations_is_two_parts_of_one_sample(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *playing("branching_episode"), "--train.num_steps", "4")
    assert run.wait() == 0, run.output
    assert_exactly_once(run, num_steps=4)
    with run.reader() as reader:
        for version in range(1, 5):
            trajectories = reader.trajectories(version)
            assert len({(t.ordinal, t.sample) for t in trajectories}) == 12
            assert {t.part for t in trajectories} == {0, 1}
            rewards = {(t.ordinal, t.sample): t.reward for t in trajectories}
            assert all(t.reward == rewards[t.ordinal, t.sample] for t in trajectories)
        divergences = [s.metrics.get("engine_trainer_kl", 0.0) for s in reader.steps()]
        assert 0 < max(divergences) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "name"), [("agent_worker", "agent-0"), ("rollout_worker", "rollout-0")])
def test_a_worker_that_is_killed_in_mid_session_loses_no_session(tmp_path: Path, victim: str, name: str) -> None:
    run = Run(make_run(tmp_path), *playing("slow_episode"), "--train.num_steps", "20")
    run.until_step(3)
    run.workers(victim)[-1].kill()
    assert run.wait() == 0, run.output
    assert name in run.output
    assert "SIGKILL" in run.output
    assert_exactly_once(run, num_steps=20)
    assert max(staleness(run.reader(), 20)) <= 4


@pytest.mark.slow
def test_a_stopped_agent_worker_is_noticed_and_replaced(tmp_path: Path) -> None:
    overrides = ("--train.num_steps", "12", "--runtime.silence_seconds", "4")
    run = Run(make_run(tmp_path), *playing("slow_episode"), *overrides)
    run.until_step(2)
    run.workers("agent_worker")[-1].send_signal(signal.SIGSTOP)
    assert run.wait() == 0, run.output
    assert "it was silent for 4 s" in run.output
    assert_exactly_once(run, num_steps=12)


@pytest.mark.slow
def test_a_killed_controller_takes_all_sessions_with_it_and_resume_continues(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, *playing("slow_episode"), *LONG)
    run.until_saved(4)
    workers = run.workers()
    assert any("agent_worker" in " ".join(worker.cmdline()) for worker in workers)
    run.kill()
    assert are_gone(workers)
    num_steps = max(int(step) for step in re.findall(r"step (\d+)/", run.output)) + 6
    resumed = Run(recipe, "--resume", "--train.num_steps", str(num_steps))
    assert resumed.wait() == 0, resumed.output
    assert_exactly_once(resumed, num_steps=num_steps)


@pytest.mark.slow
def test_ctrl_c_between_two_turns_saves_a_checkpoint_and_leaves_no_process(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, *playing("slow_episode"), *LONG)
    run.until_step(3)
    workers = run.workers()
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert are_gone(workers)
    num_steps = max(int(step) for step in re.findall(r"step (\d+)/", run.output)) + 3
    resumed = Run(recipe, "--resume", "--train.num_steps", str(num_steps))
    assert resumed.wait() == 0, resumed.output
    assert_exactly_once(resumed, num_steps=num_steps)


@pytest.mark.slow
def test_episodes_that_exit_fork_raise_return_nonsense_and_block_lose_no_group(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    settings = ("--rollout.settings", f'marks="{marks}"', "--rollout.session_seconds", "3")
    run = Run(make_run(tmp_path), *playing("unruly_episode"), *settings, "--train.num_steps", "8")
    assert run.wait() == 0, run.output
    assert sorted(mark.name for mark in marks.iterdir()) == ["block", "exit", "fork", "nonsense", "raise"]
    assert "hangs beyond rollout.session_seconds = 3" in run.output
    assert "exited with status 3" in run.output
    assert_exactly_once(run, num_steps=8)
    with run.reader() as reader:
        trajectories = [t for version in range(1, 9) for t in reader.trajectories(version)]
        blocked = [t for t in trajectories if (t.ordinal, t.sample) == (5, 0)]
        assert {t.reward for t in blocked} == {0.0}, "a session that hangs is scored"
        assert max(t.reward for t in trajectories) < 10, "a fork gave the reward"


@pytest.mark.slow
def test_an_environment_that_is_never_there_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *playing("broken_episode"))
    assert run.wait() == 1
    assert "16 rollouts in a row failed" in run.output
    assert "ConnectionError: this environment is never there" in run.output


@pytest.mark.parametrize(
    ("episode", "message"),
    [
        ("no_such", 'has no function "no_such"'),
        ("digits", '"tests.support.lively_episode:digits" is not async'),
    ],
)
def test_an_episode_that_cannot_be_used_leaves_no_run_behind(tmp_path: Path, episode: str, message: str) -> None:
    path = make_run(tmp_path)
    run = Run(path, *playing(episode))
    assert run.wait() == 2
    assert message in run.output
    assert len(run.output.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_same_synchronous_run_of_sessions_twice_has_the_same_bits(tmp_path: Path) -> None:
    overrides = (*playing("episode"), "--buffer.max_staleness", "0", "--train.num_threads", "1")
    overrides += ("--train.num_steps", "4", "--rollout.num_workers", "2")
    paths = [make_run(tmp_path / name) for name in ("one", "other")]
    runs = [Run(paths[0], *overrides)]
    assert runs[0].wait() == 0, runs[0].output
    runs.append(Run(paths[1], *overrides))
    assert runs[1].wait() == 0, runs[1].output
    for version in range(1, 5):
        one, other = (run.reader().trajectories(version) for run in runs)
        assert len(one) == len(other)
        for mine, reference in zip(one, other, strict=True):
            assert mine.token_ids.tolist() == reference.token_ids.tolist()
            assert np.array_equal(mine.logprobs, reference.logprobs)
            assert mine.staleness == 0
    weights = [
        dict(load_model(run.reader_path / "checkpoints" / "step-4" / "model").named_parameters()) for run in runs
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
