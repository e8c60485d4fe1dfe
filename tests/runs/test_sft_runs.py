"""SFT in real runs: alone from a file, or before RL; interrupted, killed and resumed to the same bits."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import Run, make_run
from transformers import AutoModelForCausalLM

from freerun.cli.main import main
from freerun.config.load import load_recipe
from freerun.controller.checkpoint import read_checkpoint
from freerun.events.events import SftStep
from freerun.events.reader import RunReader
from freerun.model.attention import full_forward_logits
from freerun.model.checkpoint import load_model
from freerun.model.tiny import make_tiny
from freerun.session.evaluation_job import make_job
from freerun.session.preflight import read_prompts

SUMS = (
    "sums.jsonl", "--model.path", "model", "--sft.template", "{question}=", "--sft.completion_field", "answer",
    "--train.num_threads", "1",
)  # fmt: skip


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model and sums of single digits, in the current directory."""
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 48}
    make_tiny(Path("model"), alphabet="0123456789+=$", **sizes)
    rows = [{"question": f"{a}+{b}", "answer": str(a + b)} for a in range(10) for b in range(10)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def sft(*options: str, name: str = "sums") -> int:
    return main(["sft", *SUMS, "--run.name", name, *options])


def steps_of(run: Path) -> list[SftStep]:
    with RunReader(run) as reader:
        return [event for event in reader.events("sft_step") if isinstance(event, SftStep)]


def losses_of(run: Path) -> list[tuple[int, float | None, float | None]]:
    return [(event.step, event.loss, event.held_out_loss) for event in steps_of(run)]


def model_of(run: Path) -> Path:
    return run / "checkpoints" / "step-0" / "model"


def assert_same_weights(actual: Path, expected: Path) -> None:
    [file] = expected.glob("*.safetensors")
    ours, theirs = load_file(actual / file.name), load_file(file)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_loss_falls_and_the_model_loads_in_transformers(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--sft.num_epochs", "8", "--sft.lr", "1e-2", "--sft.eval_every_steps", "20")
    assert sft(*options) == 0
    output, run = capsys.readouterr().out, work / "runs" / "sums"
    assert "95 rows to train on (234 tokens with loss), 5 held out" in output
    assert "SFT 48/48  loss" in output
    assert f"--model.path runs/sums/{model_of(run).relative_to(run)}" in output
    assert (run / "log.txt").read_text() in output
    steps = steps_of(run)
    losses = [step.loss for step in steps if step.loss is not None]
    assert len(losses) == 48
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    held_out = {step.step: step.held_out_loss for step in steps if step.held_out_loss is not None}
    assert list(held_out) == [0, 20, 40, 48]
    assert held_out[48] < held_out[0]
    assert {path.name for path in (run / "logs").iterdir()} == {"trainer.log"}, "no engines, no graders"
    assert not read_checkpoint(run / "checkpoints" / "step-0").has_optimizer
    tokens = [3, 4, 5]
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(model_of(run))(torch.tensor([tokens])).logits[0]
        ours = full_forward_logits(load_model(model_of(run)), tokens)
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)

    assert sft(*options) == 2
    assert '"runs/sums" exists; --resume (in Python resume=True) continues it' in capsys.readouterr().err
    assert sft("--resume") == 2
    assert "its optimizer was dropped when the run had finished" in capsys.readouterr().err
    assert main(["runs"]) == 0
    assert "SFT 48/48" in capsys.readouterr().out
    assert main(["eval", "runs/sums"]) == 2
    assert "name a task to evaluate it on" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("lora", [(), ("--lora.rank", "4")], ids=["whole model", "adapter"])
def test_an_interrupted_and_resumed_run_is_the_uninterrupted_one(
    work: Path, capsys: pytest.CaptureFixture[str], lora: tuple[str, ...]
) -> None:
    options = ("--sft.num_steps", "300", "--sft.batch_size", "8", "--sft.lr", "3e-3", *lora)
    assert sft(*options, name="whole") == 0
    assert sft(*options, "--run.listeners", "interrupting_listener:after_five_steps", name="parts") == 130
    whole, parts = work / "runs" / "whole", work / "runs" / "parts"
    assert "next       freerun train runs/parts --resume" in capsys.readouterr().out
    assert len(steps_of(parts)) < len(steps_of(whole))
    load_model(model_of(parts))
    assert sft("--resume", name="parts") == 0
    assert "resumed at SFT step" in capsys.readouterr().out
    assert losses_of(parts) == losses_of(whole)
    assert_same_weights(model_of(parts), model_of(whole))


@pytest.mark.slow
def test_a_killed_run_resumes_from_its_last_checkpoint_to_the_same_bits(tmp_path: Path) -> None:
    """SFT on a task's demonstrations, then RL."""
    recipe = make_run(tmp_path)
    options = (
        "--sft.num_steps", "60", "--sft.batch_size", "4", "--sft.save_every_steps", "10",
        "--sft.lr", "1e-3", "--train.num_steps", "1", "--train.num_threads", "1", "--checkpoint.every_steps", "9",
    )  # fmt: skip
    first = Run(recipe, *options)
    first.until(lambda: "checkpoint 0 saved" in first.output)
    first.kill()
    saved = read_checkpoint(first.reader_path / "checkpoints" / "step-0").state.sft
    assert saved is not None
    assert 0 < saved.step < 60
    resumed = Run(recipe, "--resume")
    assert resumed.wait() == 0, resumed.output
    assert f"resumed at SFT step {saved.step}" in resumed.output
    with resumed.reader() as reader:
        assert len(reader.steps()) == 1

    other = tmp_path / "other"
    whole = Run(recipe, *options, "--run.directory", str(other))
    assert whole.wait() == 0, whole.output
    assert losses_of(resumed.reader_path) == losses_of(other / "tiny")
    assert_same_weights(model_of(resumed.reader_path), model_of(other / "tiny"))


@pytest.mark.slow
def test_an_engine_that_is_lost_during_sft_ends_the_run_at_once_and_loses_no_step(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, "--sft.num_steps", "5000", "--sft.batch_size", "4", "--runtime.max_worker_restarts", "0")
    run.until(lambda: "  loss " in run.output)
    run.workers("rollout_worker")[0].kill()
    assert run.wait() == 1, run.output
    assert "rollout-0" in run.output
    saved = read_checkpoint(run.reader_path / "checkpoints" / "step-0").state.sft
    assert saved is not None
    assert 0 < saved.step == steps_of(run.reader_path)[-1].step < 5000


def test_a_recipe_of_sft_alone_can_say_what_to_evaluate_on(tmp_path: Path) -> None:
    recipe = load_recipe(make_run(tmp_path), {"train.num_steps": 0, "eval.num_prompts": 0, "sft.num_steps": 1})
    job = make_job(tmp_path / "model", recipe, (), version=None, ks=(1,), split="held-out", is_greedy=True)
    assert job.recipe.eval.num_prompts > 0


def test_an_evaluation_does_not_care_how_long_rows_of_sft_may_be(tmp_path: Path) -> None:
    settings = {"sft.path": "sums.jsonl", "sft.template": "{question}", "sft.max_tokens": 9999}
    recipe = load_recipe(make_run(tmp_path), settings)
    job = make_job(tmp_path / "model", recipe, (), version=None, ks=(1,), split="held-out", is_greedy=True)
    _, prompts = read_prompts(job)
    assert prompts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model.path", "gone"), '"gone" is not a model directory (no config.json)'),
        (("--model.path", "adapter"), '"adapter" is an adapter; make a model of it'),
        (("--model.path=",), "model.path is empty; name a model directory"),
        (("--sft.path", "gone.jsonl"), "gone.jsonl: no such file or directory; name a file"),
        (("--sft.path", "bad.jsonl"), 'bad.jsonl:2: no field "answer" (fields: "question")'),
        (("--lora.rank", "99"), "lora.rank = 99 exceeds the rank of k_proj"),
        (("--sft.max_tokens", "9999"), "sft.max_tokens = 9999 exceeds the 2048 positions"),
        (("--model.path", "mamba"), 'model_type "mamba" is outside the supported family'),
        (("--model.path", "damaged"), "config.json:1: not JSON"),
        (("--model.path", "unweighted"), "has neither model.safetensors nor"),
        (("--run.name", "taken"), '"runs/taken" exists but is not a run'),
        (("--run.directory", "sums.jsonl/x"), '"sums.jsonl/x/sums" cannot be used'),
        (("--template", "{question}"), 'freerun sft takes no option "--template"; did you mean "--sft.template"?'),
        (("--lora-rank", "8"), 'freerun sft takes no option "--lora-rank"; did you mean "--lora.rank"?'),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_written(
    work: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    Path("bad.jsonl").write_text('{"question": "1+1", "answer": "2"}\n{"question": "1+1"}\n')
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text("{}")
    for name, config in (("mamba", '{"model_type": "mamba"}'), ("damaged", "{")):
        Path(name).mkdir()
        Path(name, "config.json").write_text(config)
    shutil.copytree("model", "unweighted")
    Path("unweighted/model.safetensors").unlink()
    Path("runs/taken").mkdir(parents=True)
    Path("runs/taken/file").write_text("")
    assert sft(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs/sums").exists()


def test_a_run_is_resumed_with_its_own_demonstrations(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--sft.num_steps", "2", "--checkpoint.keep_optimizer", "true")
    assert sft(*options) == 0
    assert sft("--resume", "--sft.num_steps", "3") == 2
    assert "config: sft.num_steps = 3 differs from the run's own 2" in capsys.readouterr().err
    shutil.copy("sums.jsonl", "other.jsonl")
    assert main(["sft", "other.jsonl", *SUMS[1:], "--run.name", "sums", "--resume"]) == 2
    assert "config: sft.path = " in capsys.readouterr().err
    rows = Path("sums.jsonl").read_text().splitlines()
    Path("sums.jsonl").write_text("\n".join(reversed(rows)))
    assert sft("--resume") == 2
    assert "the demonstrations or the tokenizer have changed" in capsys.readouterr().err
