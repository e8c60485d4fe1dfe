"""The command line: what it calls, what it prints when something is wrong, and how little it imports."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs_on_disk import make_run

from freerun import __version__
from freerun.cli.arguments import split_overrides
from freerun.cli.main import VERBS, main
from freerun.config.load import dump_toml, key_types, load_recipe
from freerun.config.recipe import Recipe
from freerun.errors import FreerunError


def test_help_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, freerun; freerun.FreerunError; freerun.load_recipe\n"
        "from freerun.cli.main import main; main(['--help'])\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'rich'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {verb}" in text for verb in VERBS)


@pytest.mark.parametrize("verb", ["train", "eval", "data", "recipes", "runs", "compare", "study"])
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*verb.split(), "--help"])
    assert caught.value.code == 0
    assert f"usage: freerun {verb}" in capsys.readouterr().out


def test_train_help_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert all(f"--{key} " in text for key in key_types())


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"freerun {__version__}\n"


def test_train_passes_the_recipe_with_its_overrides_and_returns_the_exit_code(
    demo: Path, runtime: list[Any]
) -> None:
    assert main(["train", "--train.lr", "1e-6", str(demo), "--reward.incorrect", "-1"]) == 7
    assert runtime == [
        ("train", load_recipe(demo, ["--train.lr", "1e-6", "--reward.incorrect", "-1"]), False),
    ]


def test_a_run_is_resumed_with_its_own_settings_and_what_the_command_line_changes(
    demo: Path, runtime: list[Any]
) -> None:
    own = load_recipe(demo, ["--train.lr", "5e-6", "--buffer.max_staleness", "0"])
    Path("runs/demo").mkdir(parents=True)
    Path("runs/demo/config.toml").write_text(dump_toml(own))
    main(["train", str(demo), "--resume", "--train.num_steps", "9"])
    [(_, recipe, is_resumed)] = runtime
    assert is_resumed
    assert (recipe.train.lr, recipe.buffer.max_staleness, recipe.train.num_steps) == (5e-6, 0, 9)


def test_a_run_is_resumed_by_the_name_of_its_directory_where_it_is_now(
    demo: Path, runtime: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(demo, ["--run.name", "started-as", "--train.lr", "0.5"])
    moved = Path("elsewhere/moved")
    moved.mkdir(parents=True)
    (moved / "config.toml").write_text(dump_toml(recipe))
    assert main(["train", "elsewhere/moved/", "--resume", "--train.num_steps", "9"]) == 7
    monkeypatch.chdir(moved)
    assert main(["train", ".", "--resume"]) == 7
    [(_, first, is_resumed), (_, second, _)] = runtime
    assert (first.run.directory, first.run.name, first.train.lr, is_resumed) == ("elsewhere", "moved", 0.5, True)
    assert first.train.num_steps == 9
    assert (second.run.directory, second.run.name) == (str(Path.cwd().parent), "moved")


def test_a_directory_is_not_a_recipe(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/x"), ())
    assert main(["train", "runs/x"]) == 2
    assert '"runs/x" is a run; --resume (in Python resume=True) continues it' in capsys.readouterr().err
    assert main(["train", "runs", "--resume"]) == 2
    assert '"runs" is a directory and not a run (no config.toml)' in capsys.readouterr().err


def test_a_dry_run_prints_the_resolved_recipe_and_the_plan_and_runs_nothing(
    demo: Path, runtime: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(demo), "--dry-run", "--run.seed=3"]) == 0
    recipe = load_recipe(demo, ["--run.seed=3"])
    assert capsys.readouterr().out == f"{dump_toml(recipe)}\nthe plan of demo\nthe forecast of demo\n"
    assert runtime == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], 'unknown verb "trian"; did you mean "train"?'),
        (["juggle"], f'unknown verb "juggle"; the verbs are {", ".join(VERBS)}'),
        (
            ["train"],
            'the following arguments are required: RECIPE; "freerun train --help" explains its arguments',
        ),
        (
            ["train", "demo.toml", "--lr", "1"],
            'freerun train takes no option "--lr"; did you mean "--train.lr"?',
        ),
        (
            ["train", "--lr", "1", "demo.toml"],
            'freerun train takes no option "--lr"; did you mean "--train.lr"?',
        ),
        (
            ["train", "demo.toml", "--model.path="],
            'config: model.path is empty; name a model directory ("freerun model smollm2 DIR" makes one)',
        ),
        (
            ["train", "demo.toml", "--model.path", "gone", "--data.task", "euclid"],
            'config: model.path = "gone" is not a model directory (no config.json); '
            '"freerun model tiny gone --task euclid" makes one',
        ),
        *(
            (
                ["train", "demo.toml", "--model.path", path],
                f'config: model.path = "{path}" is not a model directory (no config.json); name one, or a model '
                'on the Hugging Face hub as ORGANISATION/NAME ("freerun model smollm2 models/smollm2" makes a '
                "small one)",
            )
            for path in ("models/llama", "gpt2", "https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct")
        ),
        (
            ["train", "demo.toml", "--model.path", "models/smollm2-mine"],
            'config: model.path = "models/smollm2-mine" is not a model directory (no config.json); '
            '"freerun model smollm2 models/smollm2-mine" makes one',
        ),
        (
            ["train", "demo.toml", "--data.path", "gone.jsonl"],
            'config: data.path = "gone.jsonl" is not a file; name another',
        ),
        (
            ["train", "demo.toml", "--data.task", "time-tables"],
            'config: unknown task data.task = "time-tables"; there are file, datasets, times-tables, euclid, '
            'word-problems, reasoning-gym/NAME; did you mean "times-tables"?',
        ),
        (
            ["train", "demo.toml", "--sft.num_steps", "1"],
            'config: data.task = "times-tables" has no demonstrations; set sft.path to a file of '
            'them, sft.num_steps = 0, or data.task to "euclid" or "word-problems"',
        ),
        (
            ["train", "demo.toml", "--data.task", "reasoning-gym/chain_sum"],
            'config: reward.grader = "number" cannot read the answers of data.task = "reasoning-gym/chain_sum"; '
            'set reward.grader = "reasoning-gym"',
        ),
        (
            ["eval", "model", "--recipe", "demo.toml"],
            'freerun eval takes no option "--recipe"; "freerun eval --help" explains its arguments',
        ),
        (
            ["train", "demo.toml", "--dry_run"],
            'freerun train takes no option "--dry_run"; did you mean "--dry-run"?',
        ),
        (
            ["train", "demo.toml", "more"],
            'freerun train takes no argument "more"; "freerun train --help" explains its arguments',
        ),
        (["eval", "model"], "a model directory is no run: name a task to evaluate it on (--task, in Python task)"),
        (
            ["eval", "model", "--task", "demo.toml", "--version", "3"],
            '"model" is a model, not a run: it has no version 3',
        ),
        (
            ["eval", "model", "--task", "chess"],
            'config: unknown task data.task = "chess"; there are file, datasets, times-tables, euclid, '
            'word-problems, reasoning-gym/NAME; your own function is written "module:function"',
        ),
        (
            ["eval", "model", "--task", "demo.toml", "--k", "1", "8"],
            "k = 8 must lie between 1 and the 4 samples of a prompt; raise eval.num_samples",
        ),
        (
            ["eval", "model", "--task", "demo.toml", "--sampling.temperature", "0"],
            "config: sampling.temperature = 0.0 on the command line must be a number between 0.001 and 1,000",
        ),
        (
            ["eval", "gone"],
            '"gone" is neither a model directory (no config.json) nor a run (no config.toml); '
            "name one, such as models/smollm2 or runs/times-tables",
        ),
        (["runs", "gone"], '"gone" is not a directory; name one that holds runs'),
        (["model", "gpt"], 'unknown model "gpt"; the kinds are smollm2, tiny and merge'),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(
    demo: Path, runtime: list[Any], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"freerun: {message}\n"
    assert runtime == []


@pytest.mark.parametrize(("error", "code"), [(FreerunError("no"), 2), (KeyboardInterrupt(), 130)])
def test_what_stops_a_run_becomes_its_exit_code(
    demo: Path, runtime: list[Any], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def run_training(recipe: Recipe, *, resume: bool) -> int:
        raise error

    monkeypatch.setattr(sys.modules["freerun.session.train"], "run_training", run_training)
    assert main(["train", str(demo)]) == code


def test_overrides_are_told_apart_from_the_verbs_own_arguments() -> None:
    own, overrides = split_overrides(["--a.b", "-1", "r.toml", "--dry-run", "--c.d=x.y", "--e.f", "--resume"])
    assert own == ["r.toml", "--dry-run", "--resume"]
    assert overrides == ["--a.b", "-1", "--c.d=x.y", "--e.f"]


def test_an_error_that_quotes_control_characters_does_nothing_to_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["eval", "evil\x1b]0;title\x07\x1b[2J\r\u202edir"]) == 2
    assert r'"evil\x1b]0;title\x07\x1b[2J\r\u202edir" is neither' in capsys.readouterr().err
