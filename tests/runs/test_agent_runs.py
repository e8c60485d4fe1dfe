"""Whole runs of sessions: an episode of several turns is trained from the command line, and nothing is lost."""

from pathlib import Path

from tiny_runs import Run, are_gone, assert_exactly_once, make_run

from freerun.events.reader import RunReader

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
