"""The command line: what it calls, what it prints when something is wrong, and how little it imports."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from rich.console import Console

from freerun import __version__
from freerun.buffer.groups import BufferState, LedgerState
from freerun.cli.arguments import split_overrides
from freerun.cli.main import VERBS, main
from freerun.cli.report_table import as_table
from freerun.cli.runs import RUN_COLUMNS, ago, table_rows
from freerun.config.load import dump_toml, key_types, load_recipe
from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import CheckpointWriter, ControllerState
from freerun.errors import FreerunError
from freerun.evaluation.job import EvalJob, save_job
from freerun.evaluation.report import check_ks
from freerun.events.reader import RunSummary
from freerun.session.preflight import check_setup


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A runtime that checks what it was asked for and writes it down instead of running it."""
    calls: list[Any] = []

    def run_training(recipe: Recipe, *, resume: bool) -> int:
        check_setup(recipe, is_new=not resume)
        calls.append(("train", recipe, resume))
        return 7

    def run_eval(job: EvalJob, directory: Path) -> None:
        check_setup(job.recipe, trains=False)
        calls.append(("eval", job, directory))

    class Report:
        is_empty = False

        def __init__(self, directory: Path, ks: list[int]) -> None:
            calls.append(("report", directory, ks))

        def describe(self) -> str:
            return "the report"

        def completions(self, shown: str) -> list[str]:
            return [f"{shown} completions"]

        def as_json(self) -> str:
            return "{}"

    fakes: dict[str, dict[str, Any]] = {
        "session.train": {"run_training": run_training},
        "session.plan": {"describe_plan": lambda recipe, resume: f"the plan of {recipe.run.name}"},
        "session.evaluate": {"run_eval": run_eval},
        "evaluation.report": {"EvalReport": Report, "check_ks": check_ks},
    }
    for name, functions in fakes.items():
        module = ModuleType(name)
        module.__dict__.update(functions)
        monkeypatch.setitem(sys.modules, f"freerun.{name}", module)
    return calls


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose model directory exists, in the current directory."""
    monkeypatch.chdir(tmp_path)
    make_model(Path("model"))
    path = Path("demo.toml")
    path.write_text('[model]\npath = "model"\n')
    return path


def make_model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    return directory


def make_run(directory: Path, steps: tuple[str, ...]) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text('[run]\nname = "kept"\n')
    for step in steps:
        version = int(step.removeprefix("step-"))
        buffer = BufferState(
            version=version, ready=(), to_restart=(), done=LedgerState(mark=0, above=()), totals={}
        )
        state = ControllerState(version=version, cursor=0, buffer=buffer, seconds=0.0, data_fingerprint="")
        writer = CheckpointWriter(directory / "checkpoints", state)
        model = make_model(writer.directory / "model")
        for file in (model / "model.safetensors", writer.directory / "optimizer.safetensors"):
            file.touch()
        asyncio.run(writer.seal(keep=100))
    return directory


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
    assert capsys.readouterr().out == f"{dump_toml(recipe)}\nthe plan of demo\n"
    assert runtime == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], 'unknown verb "trian"; did you mean "train"?'),
        (
            ["dance"],
            'unknown verb "dance"; the verbs are train, sft, eval, model, recipes, data, runs, compare, study',
        ),
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
            'reasoning-gym/NAME; did you mean "times-tables"?',
        ),
        (
            ["train", "demo.toml", "--sft.num_steps", "1"],
            'config: data.task = "times-tables" has no demonstrations; set sft.path to a file of '
            'them, sft.num_steps = 0, or data.task to "euclid"',
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
            'reasoning-gym/NAME; your own function is written "module:function"',
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


def test_overrides_are_told_apart_from_the_verbs_own_arguments() -> None:
    own, overrides = split_overrides(["--a.b", "-1", "r.toml", "--dry-run", "--c.d=x.y", "--e.f", "--resume"])
    assert own == ["r.toml", "--dry-run", "--resume"]
    assert overrides == ["--a.b", "-1", "--c.d=x.y", "--e.f"]


RUNS = [
    RunSummary(name="a[b]", state="running", version=3, num_steps=60, reward=1.25, accuracy=0.5, updated=940.0),
    RunSummary(name="c", state="crashed", version=0, num_steps=9, reward=None, accuracy=None, updated=999.0),
]


def test_runs_are_shown_in_a_table_without_inventing_numbers() -> None:
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(as_table(RUN_COLUMNS, table_rows(RUNS, now=1000.0)))
    rows = [line.split() for line in captured.get().splitlines()]
    assert rows[1:] == [
        ["a[b]", "running", "3/60", "1.25", "50.0", "%", "1", "min", "ago"],
        ["c", "crashed", "0/9", "-", "-", "1", "s", "ago"],
    ]


def test_runs_as_json_carry_every_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("freerun.events.reader.list_runs", lambda directory: RUNS)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert msgspec.convert(json.loads(capsys.readouterr().out), list[RunSummary]) == RUNS


def test_a_directory_without_runs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out


def test_before_the_first_run_the_list_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == 'no runs in "runs"\n'
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def damage_weights(run: Path, step: str) -> Path:
    """Flip a bit of a checkpoint's weights; returns its model directory."""
    model = run / "checkpoints" / step / "model"
    (model / "model.safetensors").write_bytes(b"x")
    return model


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


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s ago"), (59, "59 s ago"), (7200, "2 h ago"), (200_000, "2 d ago")]
)
def test_durations_are_told_in_their_largest_unit(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_an_error_that_quotes_control_characters_does_nothing_to_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["eval", "evil\x1b]0;title\x07\x1b[2J\r\u202edir"]) == 2
    assert r'"evil\x1b]0;title\x07\x1b[2J\r\u202edir" is neither' in capsys.readouterr().err
