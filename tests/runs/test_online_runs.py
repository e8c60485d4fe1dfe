"""`freerun serve RECIPE`: a real run that trains on what real clients rate, while it serves them."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from live_runs import LIVE, LiveRun, ask, assert_every_session_once, rate, taste
from tiny_runs import are_gone, make_run

from freerun.cli.main import main
from freerun.events.events import GroupFinished

SILENT = "^48,36>"


@pytest.mark.slow
def test_a_policy_learns_what_clients_of_every_api_like_while_it_serves_them(tmp_path: Path) -> None:
    with LiveRun(make_run(tmp_path), *LIVE, directory=tmp_path) as run:
        run.until_served()
        tastes = talk_until(run, 25)
        assert run.stop() == 130, run.output
    assert sum(tastes[-20:]) > 1.2 * sum(tastes[:20])
    with run.reader() as reader:
        steps = reader.steps()
        trained = [t for step in steps for t in reader.trajectories(step.version)]
        divergences = [s.metrics["engine_trainer_kl"] for s in steps if "engine_trainer_kl" in s.metrics]
    assert 0 < max(divergences) < 1e-6
    assert max(t.staleness for t in trained) <= 2
    assert len({span.version for t in trained for span in t.spans}) > 10, "versions advance between two sessions"
    assert {t.prompt for t in trained} == {"^12,18>"}, "what nobody rates is not trained on"
    assert_every_session_once(run, len(steps))


def talk_until(run: LiveRun, version: int) -> list[float]:
    """Clients of three APIs rate what they get, and one that rates nothing talks on; how much it was liked."""
    with run.openai() as openai, run.anthropic() as anthropic:

        def ask_messages(text: str) -> tuple[str, str]:
            said: Any = {"role": "user", "content": text}
            message: Any = anthropic.messages.create(model="model", max_tokens=8, messages=[said])
            return message.id, message.content[0].text if message.content else ""

        def ask_responses(text: str) -> tuple[str, str]:
            response = openai.responses.create(model="model", input=text)
            return response.id, response.output_text

        apis = itertools.cycle([lambda text: ask(openai, text), ask_messages, ask_responses])
        tastes: list[float] = []
        _, said = ask(openai, SILENT)
        silent: Any = [
            {"role": role, "content": text}
            for role, text in (("user", SILENT), ("assistant", said), ("user", ">"))
        ]
        while run.version < version:
            reply_id, text = next(apis)("^12,18>")
            rate(openai, reply_id, taste(text))
            tastes.append(taste(text))
            openai.chat.completions.create(model="model", messages=silent)
    return tastes


@pytest.mark.slow
def test_sessions_without_feedback_train_nothing_and_are_counted(tmp_path: Path) -> None:
    with LiveRun(make_run(tmp_path), *LIVE, "--online.feedback_seconds", "5", directory=tmp_path) as run:
        run.until_served()
        with run.openai() as client:
            silent = [ask(client, SILENT)[0] for _ in range(15)]
            run.until(lambda: num_unrated(run) == 15)
            assert run.version == 0
            assert not rate(client, silent[0], 1.0)
            while run.version < 2:
                rate(client, *rated(ask(client, "^12,18>")))
        assert run.stop() == 130, run.output
    with run.reader() as reader:
        trained = [t for step in reader.steps() for t in reader.trajectories(step.version)]
    assert {t.prompt for t in trained} == {"^12,18>"}
    assert assert_every_session_once(run, len(trained) // 4) >= 15


@pytest.mark.slow
def test_a_killed_run_resumes_with_its_ledger_and_counts_what_was_open_as_lost(tmp_path: Path) -> None:
    with LiveRun(make_run(tmp_path), *LIVE, "--checkpoint.every_steps", "1", directory=tmp_path) as run:
        run.until_served()
        with run.openai() as client:
            open_ids = [ask(client, SILENT)[0] for _ in range(3)]
            while run.version < 4 or not run.has_saved(3):
                rate(client, *rated(ask(client, "^12,18>")))
        children = run.children()
        run.kill()
        assert are_gone(children)
    with LiveRun(run.run_path, "--resume", directory=tmp_path) as resumed:
        resumed.until_served()
        goal = run.version + 3
        with resumed.openai() as client:
            assert not rate(client, open_ids[0], 1.0)
            while resumed.version < goal:
                rate(client, *rated(ask(client, "^12,18>")))
        assert resumed.stop() == 130, resumed.output
    with resumed.reader() as reader:
        steps = reader.steps()
        trained = [t for step in steps for t in reader.trajectories(step.version)]
    assert [step.version for step in steps] == list(range(1, len(steps) + 1))
    assert max(t.staleness for t in trained) <= 2
    assert {t.prompt for t in trained} == {"^12,18>"}
    assert assert_every_session_once(resumed, len(steps)) >= 3


@pytest.mark.slow
def test_clients_are_served_after_the_last_step_until_ctrl_c(tmp_path: Path) -> None:
    with LiveRun(make_run(tmp_path), *LIVE, "--train.num_steps", "1", directory=tmp_path) as run:
        run.until_served()
        with run.openai() as client:
            while "all steps are trained" not in run.output:
                rate(client, *rated(ask(client, "^12,18>")))
            reply_id, _ = ask(client, "^12,18>")
            assert not rate(client, reply_id, 1.0)
        assert run.stop() == 0, run.output


def num_unrated(run: LiveRun) -> int:
    with run.reader() as reader:
        return sum(e.outcome == "unrated" for e in reader.events("group_finished") if isinstance(e, GroupFinished))


def rated(reply: tuple[str, str]) -> tuple[str, float]:
    return reply[0], taste(reply[1])


def test_what_cannot_be_trained_on_traffic_is_refused_before_a_run_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(make_run(tmp_path))
    free = ("--address", "127.0.0.1:0")
    refusals = {
        "online.feedback_seconds = 0": ["serve", recipe, *free],
        "start it with freerun serve": ["train", recipe, *LIVE],
        "needs several answers to one prompt": ["serve", recipe, *LIVE, "--sampling.group_size", "4", *free],
        "would wait for people": ["serve", recipe, *LIVE, "--buffer.policy", "wait", *free],
        "live sessions come one by one": ["serve", recipe, *LIVE, "--buffer.whole_batches", "true", *free],
        "on the sessions of clients": ["serve", recipe, *LIVE, "--rollout.episode", "my_game:episode", *free],
        "clients bring their own": ["serve", recipe, *LIVE, "--data.min_pass_rate", "0.2", *free],
        "leaves nothing to compare": ["serve", recipe, *LIVE, "--objective.advantage", "grpo", *free],
        "needs a key": ["serve", recipe, *LIVE, "--address", "0.0.0.0:0"],
        "--version names a checkpoint": ["serve", recipe, *LIVE, "--version", "3"],
        "not a run (no config.toml)": ["serve", str(tmp_path), "--resume"],
    }
    for reason, arguments in refusals.items():
        assert main(arguments) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("freerun: ")
        assert reason in error, error
    assert not (tmp_path / "runs").exists()
