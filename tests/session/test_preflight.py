"""Bad input is refused before anything is written."""

import sys
from pathlib import Path

import pytest
from tiny_runs import make_run

import freerun
from freerun.config.load import load_recipe
from freerun.errors import FreerunError
from freerun.model.tiny import make_tiny
from freerun.session.plan import describe_plan
from freerun.session.preflight import read_inputs
from freerun.session.train import train_to_end

BAD_LISTENER = {"run.listeners": ["no-such"]}
OWN = "tests.support.own_objective"
EPISODES = "tests.support.lively_episode"
SHORT_SESSIONS = {"rollout.max_session_tokens": 120}
LONG_SESSIONS = {"rollout.max_session_tokens": 10_000, "engine.cache_tokens": 100_000}
TOO_LONG = {"sampling.max_completion_tokens": 10_000, "engine.cache_tokens": 100_000}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (BAD_LISTENER, "there is no listener"),
        ({"run.listeners": ["store"]}, 'every run has the listener "store"; leave it out'),
        (TOO_LONG, "positions of the model"),
        ({"reward.grader": "nubmer"}, "nubmer"),
        ({"rollout.episode": f"{EPISODES}:digits", **SHORT_SESSIONS}, "is not async"),
        ({"rollout.episode": f"{EPISODES}:episode", **LONG_SESSIONS}, "positions of the model"),
        ({"rollout.command": "no-such-program", **SHORT_SESSIONS}, "there is no program"),
        (
            {"rollout.tools": [f"{EPISODES}:digits"], "data.use_chat_template": True, **SHORT_SESSIONS},
            "chat template",
        ),
        ({"objective.clip": f"{OWN}:soft_clip"}, 'objective.clip: .* has no function "soft_clip"; it has '),
        ({"objective.correction": f"{OWN}:clip"}, "objective.correction: .* cannot be called with its arguments"),
    ],
)
def test_bad_input_is_refused_alike_by_a_run_and_a_dry_run_and_leaves_nothing(
    tmp_path: Path, overrides: dict[str, object], message: str
) -> None:
    recipe = freerun.load_recipe(make_run(tmp_path), overrides)
    with pytest.raises(FreerunError, match=message):
        train_to_end(recipe, resume=False)
    with pytest.raises(FreerunError, match=message):
        describe_plan(recipe)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("print('hello')\nimport os\nos._exit(7)", "importing ended its process with status 7:\nhello"),
        ("import nowhere_to_be_found", "importing an_objective_that_fails failed with ModuleNotFoundError"),
    ],
)
def test_a_users_objective_is_imported_in_another_process_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    recipe = freerun.load_recipe(make_run(tmp_path), {"objective.clip": "an_objective_that_fails:clip"})
    monkeypatch.chdir(tmp_path)
    Path("an_objective_that_fails.py").write_text(source)
    with pytest.raises(FreerunError, match=message):
        describe_plan(recipe)
    assert "an_objective_that_fails" not in sys.modules


def test_rows_of_a_program_are_checked_before_there_is_a_run(tmp_path: Path) -> None:
    recipe = freerun.load_recipe(make_run(tmp_path), {"data.template": "{question}="})
    with pytest.raises(FreerunError) as caught:
        freerun.train(recipe, data=[{"other": 1}, {"other": 2}])
    assert "freerun-rows" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_plan_names_the_agent_workers(tmp_path: Path) -> None:
    episode = {"rollout.episode": f"{EPISODES}:episode", **SHORT_SESSIONS}
    plan = describe_plan(freerun.load_recipe(make_run(tmp_path), episode))
    assert f"agents: 1 worker with up to 256 sessions each ({EPISODES}:episode)" in plan


def test_a_run_on_live_traffic_that_evaluates_nothing_reads_no_prompts(tmp_path: Path) -> None:
    """The model knows no character of the default task: reading its prompts would be an error."""
    make_tiny(tmp_path / "model", alphabet="xyz")
    example = Path(__file__).parents[2] / "examples" / "online.toml"
    inputs = read_inputs(load_recipe(example, ["--model.path", str(tmp_path / "model")]), tmp_path / "model")
    assert inputs.source is not None
    assert (inputs.source.epoch_size, inputs.source.held_out(10)) == (0, [])
