"""A name on the hub means the snapshot in the local cache, or says how to get there; the network is never used."""

import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
from tiny_runs import make_run

from freerun.cli.main import main
from freerun.config.load import load_recipe
from freerun.config.lora import LoraConfig
from freerun.model.adapter_directory import base_of
from freerun.model.checkpoint import load_model
from freerun.model.hub import is_hub_name, local_directory, with_local_model
from freerun.model.trained import TrainedModel

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a hub that cannot be reached, and an empty current directory."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return cache


def put(cache: Path, name: str, model: Path) -> Path:
    """A model as `hf download` leaves it in the cache: files by hash, and a snapshot of links to them."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    for directory in (folder / "blobs", folder / "refs", snapshot):
        directory.mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    for number, file in enumerate(sorted(model.iterdir())):
        shutil.copy(file, folder / "blobs" / f"{number:040x}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number:040x}")
    return snapshot


def test_a_cached_model_is_planned_by_its_name_and_the_recipe_keeps_its_snapshot(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_run(tmp_path / "run")
    snapshot = put(cache, "Org/Tiny-0.5B", tmp_path / "run" / "model")
    capsys.readouterr()
    assert main(["train", str(recipe), "--model.path", "Org/Tiny-0.5B", "--dry-run"]) == 0, capsys.readouterr().err
    assert f'path = "{snapshot}"' in capsys.readouterr().out
    assert with_local_model(load_recipe(recipe, ["--model.path", "Org/Tiny-0.5B"])).model.path == str(snapshot)
    load_model(snapshot)


@pytest.mark.parametrize(
    "command",
    [
        ("train", "{recipe}", "--model.path", "Qwen/Qwen2.5-0.5B-Instruct"),
        ("train", "{recipe}", "--model.path", "Qwen/Qwen2.5-0.5B-Instruct", "--dry-run"),
        ("eval", "Qwen/Qwen2.5-0.5B-Instruct", "--task", "{recipe}"),
        ("sft", "rows.jsonl", "--model.path", "Qwen/Qwen2.5-0.5B-Instruct"),
    ],
)
def test_a_model_that_is_not_cached_says_how_to_fetch_it(
    cache: Path, tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_run(tmp_path / "run")
    capsys.readouterr()
    assert main([part.format(recipe=recipe) for part in command]) == 2
    said = capsys.readouterr().err
    assert said.endswith(
        '"Qwen/Qwen2.5-0.5B-Instruct" is not a directory, and it is not in the Hugging Face cache; '
        'fetch it with "hf download Qwen/Qwen2.5-0.5B-Instruct" and run this again\n'
    )
    assert "smollm2" not in said
    assert said.count("\n") == 1


def test_a_snapshot_without_its_weights_is_refused(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_run(tmp_path / "run")
    (put(cache, "Org/Tiny", tmp_path / "run" / "model") / "model.safetensors").unlink()
    assert main(["train", str(recipe), "--model.path", "Org/Tiny", "--dry-run"]) == 2
    assert "has neither model.safetensors nor model.safetensors.index.json" in capsys.readouterr().err


def test_directories_and_our_own_folders_are_not_names_on_the_hub(cache: Path, tmp_path: Path) -> None:
    Path("Qwen").mkdir()
    paths = ("models/smollm2", "runs/x", "Qwen/there", "./a/b", "/a/b", "a", "a/b/c", "../a", "", "a/", "a b/c")
    assert not any(is_hub_name(path) for path in paths)
    assert all(local_directory(path) == path for path in paths)
    assert is_hub_name("meta-llama/Llama-3.2-1B")


def test_the_base_of_an_adapter_is_found_in_the_cache(cache: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    snapshot = put(cache, "Org/Tiny", tmp_path / "run" / "model")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    settings = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "base_model_name_or_path": "Org/Tiny",
        "revision": None,
    }
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    assert base_of(adapter) == snapshot


def test_an_adapter_is_merged_into_a_base_from_the_cache(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run")
    base, adapter = tmp_path / "run" / "model", tmp_path / "adapter"
    trained = TrainedModel.load(base, LoraConfig(rank=2), seed=0)
    trained.save(trained.state(), adapter, companions=base)
    merge = ["model", "merge", str(adapter), str(tmp_path / "merged"), "--base", "Org/Tiny"]
    assert main(merge) == 2
    assert 'fetch it with "hf download Org/Tiny"' in capsys.readouterr().err
    put(cache, "Org/Tiny", base)
    assert main(merge) == 0
    load_model(tmp_path / "merged")
