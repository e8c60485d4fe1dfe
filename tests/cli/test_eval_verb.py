"""`freerun eval`: which model, version and prompts it takes."""

from pathlib import Path
from typing import Any

import pytest
from runs_on_disk import make_run

from freerun.cli.main import main
from freerun.config.load import load_recipe
from freerun.evaluation.job import EvalJob, save_job


def damage_weights(run: Path, step: str) -> Path:
    """Flip a bit of a checkpoint's weights; returns its model directory."""
    model = run / "checkpoints" / step / "model"
    (model / "model.safetensors").write_bytes(b"x")
    return model


def test_eval_of_a_run_takes_its_newest_checkpoint_and_its_own_recipe(demo: Path, runtime: list[Any]) -> None:
    run = make_run(Path("runs/x"), ("step-20", "step-100", "step-3"))
    assert main(["eval", str(run), "--eval.num_samples", "2"]) == 0
    [(_, job, directory), (_, shown, ks)] = runtime
    assert (job.model, job.version) == (str(run / "checkpoints/step-100/model"), 100)
    assert (job.recipe.run.name, job.recipe.eval.num_samples, job.is_greedy) == ("kept", 2, False)
    assert directory.parent == run / "evals"
    assert directory.name.startswith("step-100-times-tables-")
    assert (shown, ks) == (directory, [])


def test_eval_of_a_run_can_take_an_older_checkpoint_and_another_recipe(demo: Path, runtime: list[Any]) -> None:
    run = make_run(Path("runs/x"), ("step-1", "step-2"))
    main(["eval", str(run), "--version", "1", "--task", str(demo), "--output", "here"])
    (_, job, directory) = runtime[0]
    assert (job.recipe.run.name, job.version, directory) == ("demo", 1, Path("here"))


def test_a_version_that_is_not_kept_is_refused_with_those_that_are(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(make_run(Path("runs/x"), ("step-20",))), "--version", "7"]) == 2
    assert "has no checkpoint of version 7; it keeps step-20" in capsys.readouterr().err


def test_eval_of_a_model_directory_takes_it_as_it_is(demo: Path, runtime: list[Any]) -> None:
    main(["eval", "model", "--task", str(demo)])
    (_, job, directory) = runtime[0]
    assert (job.recipe, job.model, job.version) == (load_recipe(demo, []), "model", 0)
    assert directory.parent == Path("evals")


def test_a_task_is_a_recipe_a_built_in_task_or_a_data_file(demo: Path, runtime: list[Any]) -> None:
    Path("my.jsonl").write_text("{}\n")
    main(["eval", "model", "--task", "euclid", "--sampling.temperature", "0.6", "--output", "a"])
    main(["eval", "model", "--task", "my.jsonl", "--output", "b"])
    run = make_run(Path("runs/x"), ("step-1",))
    main(["eval", str(run), "--task", "my.jsonl", "--output", "c"])
    euclid, whole, other = [call[1] for call in runtime if call[0] == "eval"]
    assert (euclid.recipe.data.task, euclid.recipe.sampling.temperature, euclid.task) == ("euclid", 0.6, "euclid")
    assert whole.recipe.data.path == whole.recipe.data.held_out_path == "my.jsonl"
    assert (other.recipe.run.name, other.recipe.data.path, other.task) == ("kept", "my.jsonl", "my.jsonl")


def test_a_task_takes_the_place_of_all_the_runs_own_data(demo: Path, runtime: list[Any]) -> None:
    run = make_run(Path("runs/x"), ("step-1",))
    own = run / "config.toml"
    own.write_text(own.read_text() + '[data]\nmixture = ["a.toml", "b.toml"]\nmax_prompt_tokens = 77\n')
    assert main(["eval", str(run), "--task", "times-tables"]) == 0
    data = runtime[0][1].recipe.data
    assert (data.task, data.mixture, data.max_prompt_tokens) == ("times-tables", {}, 77)


def test_a_greedy_evaluation_draws_one_completion(demo: Path, runtime: list[Any]) -> None:
    main(["eval", "model", "--task", str(demo), "--greedy", "--eval.num_samples", "4"])
    assert (runtime[0][1].is_greedy, runtime[0][1].recipe.eval.num_samples) == (True, 1)


def test_an_evaluation_made_before_is_shown_and_not_made_again(
    demo: Path, runtime: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("evals/old").mkdir(parents=True)
    save_job(EvalJob(load_recipe(demo, []), "model", 0, "demo", "held-out", False), Path("evals/old"))
    assert main(["eval", "evals/old", "--show", "wrong", "--k", "2"]) == 0
    assert runtime == [("report", Path("evals/old"), [2])]
    assert capsys.readouterr().out == "wrong completions\nthe report\n"
    assert main(["eval", "evals/old", "--greedy"]) == 2


def test_a_run_without_a_checkpoint_cannot_be_evaluated(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(make_run(Path("runs/x"), ()))]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_eval_of_a_run_says_which_newer_checkpoint_is_damaged(
    demo: Path, runtime: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(Path("runs/x"), ("step-3", "step-6"))
    damage_weights(run, "step-6")
    assert main(["eval", str(run)]) == 0
    assert runtime[0][1].version == 3
    [line] = capsys.readouterr().err.splitlines()
    assert "step-6/model/model.safetensors: not the file that was saved" in line
    assert line.endswith("; using step-3 instead")


def test_eval_of_a_checkpoints_model_verifies_the_checkpoint(
    demo: Path, runtime: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(Path("runs/x"), ("step-6",))
    model = run / "checkpoints" / "step-6" / "model"
    assert main(["eval", str(model), "--task", str(demo)]) == 0
    damage_weights(run, "step-6")
    assert main(["eval", str(model), "--task", str(demo)]) == 2
    assert "model.safetensors: not the file that was saved" in capsys.readouterr().err
