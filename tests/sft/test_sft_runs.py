"""`freerun sft` as a user starts it: it learns, can be interrupted, and leaves a model."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from freerun.cli.main import main
from freerun.config.lora import LoraConfig
from freerun.config.sft import SftConfig
from freerun.data.demonstrations import read_demonstrations
from freerun.data.tokenizer import Tokenizer
from freerun.errors import FreerunError
from freerun.model.attention import full_forward_logits
from freerun.model.checkpoint import load_model
from freerun.model.tiny import make_tiny
from freerun.sft.directory import SftDirectory
from freerun.sft.session import SftJob, SftSession

TEMPLATE = ("--template", "{question}=", "--completion-field", "answer", "--num-threads", "1")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model and sums of single digits, in the current directory."""
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 48}
    make_tiny(Path("model"), alphabet="0123456789+=$", **sizes)
    rows = [{"question": f"{a}+{b}", "answer": str(a + b)} for a in range(10) for b in range(10)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def losses(directory: Path) -> list[dict[str, float]]:
    path = directory / "losses.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


@contextmanager
def interrupted_after(num_losses: int, directory: Path) -> Iterator[None]:
    """A real Ctrl-C to this process once the training has come so far."""

    def interrupt() -> None:
        while len(losses(directory)) < num_losses:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    yield
    thread.join()


def test_the_loss_falls_and_the_model_loads_in_transformers(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--num-epochs", "8", "--lr", "1e-2", "--eval-every-steps", "20")
    assert main(["sft", "model", "sums.jsonl", "out", *TEMPLATE, *options]) == 0
    output = capsys.readouterr().out
    assert "data: 95 rows to train on (234 tokens with loss), 5 held out" in output
    assert "step 48/48" in output
    rows = losses(work / "out")
    steps = [row["loss"] for row in rows if "loss" in row]
    assert len(steps) == 48
    assert sum(steps[-5:]) < 0.7 * sum(steps[:5])
    held_out = {row["step"]: row["held_out_loss"] for row in rows if "held_out_loss" in row}
    assert list(held_out) == [0, 20, 40, 48]
    assert held_out[48] < held_out[0]
    assert {path.name for path in (work / "out" / "model").iterdir()} >= {"config.json", "model.safetensors"}
    assert not (work / "out" / "model" / "optimizer.safetensors").exists()
    tokens = [3, 4, 5]
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(work / "out" / "model")(torch.tensor([tokens])).logits[0]
        ours = full_forward_logits(load_model(work / "out" / "model"), tokens)
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)

    assert main(["sft", "model", "sums.jsonl", "out", *TEMPLATE, *options]) == 2
    assert '"out" holds a finished training' in capsys.readouterr().err


@pytest.mark.parametrize("lora", [(), ("--lora-rank", "4")], ids=["whole model", "adapter"])
def test_an_interrupted_and_continued_training_is_the_uninterrupted_one(
    work: Path, capsys: pytest.CaptureFixture[str], lora: tuple[str, ...]
) -> None:
    options = (*TEMPLATE, "--num-steps", "150", "--batch-size", "8", "--lr", "3e-3", *lora)
    assert main(["sft", "model", "sums.jsonl", "whole", *options]) == 0
    with interrupted_after(5, work / "parts"):
        assert main(["sft", "model", "sums.jsonl", "parts", *options]) == 130
    assert "the same command continues" in capsys.readouterr().out
    assert len(losses(work / "parts")) < len(losses(work / "whole"))
    load_model(work / "parts" / "model")
    assert main(["sft", "model", "sums.jsonl", "parts", *options]) == 0
    assert "continuing after step" in capsys.readouterr().out
    assert losses(work / "parts") == losses(work / "whole")
    name = "adapter_model.safetensors" if lora else "model.safetensors"
    expected, actual = (load_file(work / out / "model" / name) for out in ("whole", "parts"))
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[key], actual[key]) for key in expected)


def test_each_row_is_trained_on_once_an_epoch_in_an_order_of_the_seed(work: Path) -> None:
    data = read_demonstrations(
        Path("sums.jsonl"),
        Tokenizer.load(Path("model")),
        SftConfig(template="{question}=", completion_field="answer"),
    )

    def order(seed: int) -> list[str]:
        job = SftJob(
            Path("model"),
            Path("sums.jsonl"),
            Path("out"),
            SftConfig(num_epochs=2, batch_size=7, seed=seed),
            LoraConfig(),
        )
        session = SftSession(job, data, SftDirectory(Path("out")), Console(quiet=True), step=0)
        return [row.token_ids.tobytes().hex() for step in range(session.num_steps) for row in session.batch(step)]

    rows = sorted(row.token_ids.tobytes().hex() for row in data.training)
    one = order(1)
    assert sorted(one[: len(rows)]) == sorted(one[len(rows) :]) == rows
    assert one[: len(rows)] != one[len(rows) :]
    assert one == order(1)
    assert one != order(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone", "sums.jsonl", "out"), '"gone" is not a model directory (no config.json)'),
        (
            ("adapter", "sums.jsonl", "out"),
            '"adapter" is an adapter; merge it first',
        ),
        (("model", "gone.jsonl", "out", *TEMPLATE), "gone.jsonl: no such file or directory; name a file"),
        (("model", "bad.jsonl", "out", *TEMPLATE), 'bad.jsonl:2: no field "answer" (fields: "question")'),
        (
            ("model", "sums.jsonl", "out", *TEMPLATE, "--lora-rank", "99"),
            "lora.rank = 99 exceeds the rank of k_proj",
        ),
        (("model", "sums.jsonl", "out", *TEMPLATE, "--max-tokens", "9999"), "exceeds the 2048 positions"),
        (("mamba", "sums.jsonl", "out", *TEMPLATE), 'model_type "mamba" is outside the supported family'),
        (("damaged", "sums.jsonl", "out", *TEMPLATE), "config.json:1: not JSON"),
        (("unweighted", "sums.jsonl", "out", *TEMPLATE), "has neither model.safetensors nor"),
        (("model", "sums.jsonl", "taken", *TEMPLATE), 'cannot make a model in "taken"'),
        (("model", "sums.jsonl", "sums.jsonl/x", *TEMPLATE), '"sums.jsonl/x" cannot be written'),
        (("model", "sums.jsonl", "garbled", *TEMPLATE), "garbled/settings.json: cannot be read"),
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
    Path("taken").mkdir()
    Path("taken/file").write_text("")
    Path("garbled").mkdir()
    Path("garbled/settings.json").write_text("[1")
    assert main(["sft", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_model_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    directory = SftDirectory(tmp_path / "out")
    directory.begin({}, 0)

    def write(new: Path) -> None:
        (new / "weights").write_text("first")

    directory.save(write, step=1, is_finished=False)

    def fail(new: Path) -> None:
        (new / "weights").write_text("sec")
        raise OSError(28, "No space left on device")

    with pytest.raises(FreerunError, match=r"cannot be written .*No space left.*free disk space"):
        directory.save(fail, step=2, is_finished=False)
    assert directory.find_step({}) == 1
    assert (directory.model / "weights").read_text() == "first"
    (directory.path / "losses.jsonl").write_text('{"step": 1}\n{"st\n{"step": 2}\n[}')
    directory.begin({}, 1)
    assert losses(directory.path) == [{"step": 1}]


def test_weights_that_are_not_finite_are_not_saved(work: Path) -> None:
    tokenizer, config = Tokenizer.load(Path("model")), SftConfig(template="{question}=", completion_field="answer")
    job = SftJob(Path("model"), Path("sums.jsonl"), Path("out"), config, LoraConfig())
    directory = SftDirectory(Path("out"))
    directory.begin({}, 0)
    data = read_demonstrations(Path("sums.jsonl"), tokenizer, config)
    session = SftSession(job, data, directory, Console(quiet=True), step=0)
    session._save()
    saved = (directory.model / "model.safetensors").read_bytes()
    with torch.no_grad():
        session._trained.decoder.embedding.weight[3, 1] = float("nan")
    with pytest.raises(FreerunError, match=r"embedding.weight is not finite.*lower --lr"):
        session._save()
    assert (directory.model / "model.safetensors").read_bytes() == saved


def test_a_directory_of_other_settings_is_not_continued(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft", "model", "sums.jsonl", "out", *TEMPLATE, "--num-steps", "2"]) == 0
    assert main(["sft", "model", "sums.jsonl", "out", *TEMPLATE, "--num-steps", "3"]) == 2
    assert '"out" was started with num_steps = 2, not 3' in capsys.readouterr().err
