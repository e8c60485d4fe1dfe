"""What workers ask of a cluster; this part of the Ray backend needs no Ray."""

import sys
from pathlib import Path

import pytest

from freerun.backends.ray.access import check_access
from freerun.backends.ray.demand import groups_of
from freerun.config.load import make_recipe
from freerun.errors import ConfigError


def demands_of(*overrides: str, has_gpus: bool = False) -> dict[tuple[str, ...], str]:
    recipe = make_recipe("test", list(overrides))
    return {group.names: str(group.demand) for group in groups_of(recipe, has_gpus=has_gpus)}


def test_ranks_are_placed_together_and_rollout_workers_each_for_itself() -> None:
    overrides = ("--train.num_ranks", "2", "--train.num_threads", "4", "--engine.num_workers", "2")
    assert demands_of(*overrides, "--reward.num_workers", "2") == {
        ("trainer-0", "trainer-1"): "4 CPU",
        ("rollout-0",): "1 CPU",
        ("rollout-1",): "1 CPU",
        ("grader-0", "grader-1"): "64 MiB",
    }


def test_agent_workers_are_placed_where_there_is_room() -> None:
    asked = demands_of("--rollout.episode", "guess:episode", "--rollout.num_workers", "2")
    assert asked["agent-0", "agent-1"] == "256 MiB"


def test_a_device_of_auto_takes_a_gpu_where_the_cluster_has_any() -> None:
    assert demands_of(has_gpus=True)["trainer",] == "1 CPU, 1 GPU"
    assert demands_of("--train.device", "cpu", has_gpus=True)["trainer",] == "1 CPU"
    assert demands_of("--engine.device", "cuda")["rollout-0",] == "1 CPU, 1 GPU"


def test_a_server_that_splits_its_model_gets_its_gpus_together() -> None:
    split = ("--engine.backend", "vllm", "--engine.num_gpus", "4")
    assert demands_of(*split, "--engine.device", "cuda")["rollout-0",] == "1 CPU, 4 GPU"


def test_a_run_on_ray_without_ray_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ConfigError, match=r"needs Ray, which is not installed; pip install 'freerun\[ray\]', or set"
    ):
        check_access(make_recipe("test", ["--runtime.backend", "ray"]).runtime)
    check_access(make_recipe("test", []).runtime)


@pytest.mark.parametrize("where", ["nowhere", "file", "variable", "named file"])
def test_joining_a_cluster_needs_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".ray").mkdir()
    if where == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    elif where == "file":
        (tmp_path / ".ray" / "auth_token").write_text("secret")
    elif where == "named file":
        (tmp_path / "token").write_text("secret")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    runtime = make_recipe("test", ["--runtime.backend", "ray", "--runtime.address", "10.0.0.1:6379"]).runtime
    if where == "nowhere":
        with pytest.raises(
            ConfigError, match=r"the token of this Ray cluster is not here.*ray get-auth-token --generate"
        ):
            check_access(runtime)
    else:
        check_access(runtime)
    check_access(make_recipe("test", ["--runtime.backend", "ray"]).runtime)
