"""Recipes that cannot be meant: impossible numbers, unreadable files, names of other frameworks, odd texts."""

from pathlib import Path

import pytest
from recipe_errors import error_of

from freerun.cli.main import main
from freerun.config.load import key_types, load_recipe, nearest_keys
from freerun.config.other_names import OTHER_NAMES
from freerun.config.values import bare_type

NUMBER_KEYS = [key for key, kind in key_types().items() if bare_type(kind) in (int, float)]


@pytest.mark.parametrize("key", NUMBER_KEYS)
def test_every_number_has_a_range_and_is_named_outside_of_it(demo: Path, key: str) -> None:
    is_integer = bare_type(key_types()[key]) is int
    for value in (2**63 - 1, -(2**63)) if is_integer else (1e308, -1e308):
        if (key, value) == ("run.seed", 2**63 - 1):
            continue
        assert f"{key} = {value}" in error_of(demo, f"--{key}={value}")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "engine.num_workers=2147483648",
            "engine.num_workers = 2147483648 on the command line must be an integer between 1 and 1,024",
        ),
        (
            "train.num_ranks=2147483648",
            "train.num_ranks = 2147483648 on the command line must be an integer between 1 and 1,024",
        ),
        (
            "reward.num_workers=100000",
            "reward.num_workers = 100000 on the command line must be an integer between 1 and 1,024",
        ),
        (
            "train.prompts_per_step=1099511627776",
            "1099511627776 on the command line must be an integer between 1 and 65,536",
        ),
        ("train.lr=1e308", "train.lr = 1e+308 on the command line must be a number between 1e-20 and 10"),
        ("train.lr=1e-320", "must be a number between 1e-20 and 10"),
        (
            "sampling.top_k=1" + 40 * "0",
            f"sampling.top_k = 1{40 * '0'} on the command line must be an integer between",
        ),
        ("reward.grader=1e300 * number", "the weight = 1e+300 must be a number between -1e9 and 1e9"),
    ],
)
def test_impossible_sizes_are_refused_with_the_allowed_range(demo: Path, override: str, message: str) -> None:
    assert message in error_of(demo, f"--{override}")


def test_a_batch_of_two_possible_numbers_can_be_impossible(demo: Path) -> None:
    message = error_of(demo, "--train.prompts_per_step=65536", "--sampling.group_size=65536")
    assert "make a batch of 4,294,967,296 trajectories; the limit is 1,000,000" in message


@pytest.mark.parametrize("key", NUMBER_KEYS)
def test_thousands_of_digits_are_an_error_of_one_line(demo: Path, key: str) -> None:
    section, name = key.split(".")
    demo.write_text(f"[{section}]\n{name} = {5001 * '9'}")
    message = error_of(demo)
    assert len(message) < 400
    assert "demo.toml" in message
    demo.write_text(f"[{section}]\n{name} = 0x{5001 * 'f'}")
    assert f"{key} = a number of 20,004 bits in demo.toml must be" in error_of(demo)
    assert len(error_of(demo, f"--{key}={5001 * '9'}")) < 400


@pytest.mark.parametrize("text", ["x = " + 5000 * "[" + 5000 * "]", "x = " + 5000 * "{a = " + "1" + 5000 * "}"])
def test_deep_nesting_is_an_error_of_one_line(demo: Path, text: str) -> None:
    demo.write_text(text)
    assert error_of(demo) == "config: demo.toml: arrays or tables are nested too deeply for a recipe"


def test_a_recipe_may_begin_with_a_byte_order_mark(demo: Path) -> None:
    demo.write_bytes(b"\xef\xbb\xbf[train]\nlr = 1e-3\n")
    assert load_recipe(demo, []).train.lr == 1e-3


def test_a_path_that_cannot_be_a_file_is_named(demo: Path) -> None:
    assert error_of(Path("a\0b.toml")) == r"config: the recipe 'a\x00b.toml' cannot be a file: embedded null byte"
    assert "File name too long" in error_of(Path(100_000 * "a" + ".toml"))
    for key in ("model.path", "data.path", "data.held_out_path", "run.directory"):
        assert f'{key} = "aaaa' in error_of(demo, "--data.task=file", "--data.path=x", f"--{key}={100_000 * 'a'}")
        assert f"{key} holds a NUL character" in error_of(
            demo, "--data.task=file", "--data.path=x", f"--{key}=a\0b"
        )


@pytest.mark.parametrize(
    "name", ["a/b", ".", "..", ".hidden", "-rf", "a\nb", "a\0b", " a", "a ", "\x1b[2J", "a\u202eb"]
)
def test_a_run_has_a_plain_name(demo: Path, name: str) -> None:
    assert "must be the name of a directory" in error_of(demo, f"--run.name={name}")


def test_a_name_that_no_directory_can_have_is_refused(demo: Path) -> None:
    assert "has 300 characters; a directory's name has at most 255 bytes" in error_of(
        demo, f"--run.name={300 * 'x'}"
    )
    assert load_recipe(demo, ["--run.name=Qwen 2.5 (η=4), größer"]).run.name == "Qwen 2.5 (η=4), größer"


def test_bytes_that_are_no_text_are_refused(demo: Path) -> None:
    assert "must be a string of UTF-8 text" in error_of(demo, "--data.template=\udc80")


@pytest.mark.parametrize("name", ["data.jsonl", "DATA.JSON", "data.parquet", "data.csv"])
def test_data_in_the_place_of_a_recipe_is_recognised(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name]) == 2
    assert capsys.readouterr().err == (
        f'freerun: config: "{name}" is data, not a recipe; "freerun init {name}" writes a recipe for it, or '
        f"give one first: freerun train RECIPE --data.path {name}\n"
    )


@pytest.mark.parametrize(
    ("other", "ours"),
    [
        ("train.learning_rate", "train.lr"),
        ("train.batch_size", "train.prompts_per_step"),
        ("per_device_train_batch_size", "train.prompts_per_step"),
        ("train.num_train_epochs", "train.num_steps"),
        ("trainer.total_training_steps", "train.num_steps"),
        ("train.max_steps", "train.num_steps"),
        ("actor_rollout_ref.rollout.n", "sampling.group_size"),
        ("num_generations", "sampling.group_size"),
        ("sampling.max_new_tokens", "sampling.max_completion_tokens"),
        ("data.max_response_length", "sampling.max_completion_tokens"),
        ("beta", "objective.kl_coefficient"),
        ("algorithm.kl_coef", "objective.kl_coefficient"),
        ("objective.epsilon", "objective.clip_low"),
        ("clip_ratio", "objective.clip_low"),
        ("algorithm.gamma", "objective.gae_gamma"),
        ("optim.max_grad_norm", "train.max_grad_norm"),
        ("train.warmup_steps", "train.warmup_updates"),
        ("model_name_or_path", "model.path"),
        ("output-dir", "run.directory"),
        ("save_steps", "checkpoint.every_steps"),
        ("trainer.test_freq", "eval.every_steps"),
        ("max_head_offpolicyness", "buffer.max_staleness"),
        ("sampling.topk_", "sampling.top_k"),
        ("sampling.topK", "sampling.top_k"),
        ("sftt.batch_size", "sft.batch_size"),
    ],
)
def test_names_of_other_frameworks_and_slips_lead_to_ours(other: str, ours: str) -> None:
    assert nearest_keys(other) == [ours]


def test_every_other_name_leads_to_a_key_and_is_none_itself() -> None:
    others = [name for names in OTHER_NAMES.values() for name in names.split()]
    assert len(set(others)) == len(others)
    assert set(OTHER_NAMES) <= set(key_types())


def test_the_command_line_suggests_our_name_with_and_without_a_section(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(demo), "--train.learning_rate", "1e-5"]) == 2
    assert 'did you mean "train.lr"?' in capsys.readouterr().err
    assert main(["train", str(demo), "--learning_rate", "1e-5"]) == 2
    assert 'did you mean "--train.lr"?' in capsys.readouterr().err
    assert main(["train", str(demo), "actor_rollout_ref.rollout.n=8"]) == 2
    assert 'did you mean "--sampling.group_size"?' in capsys.readouterr().err


def test_escapes_are_line_breaks_in_texts_of_the_command_line(demo: Path) -> None:
    recipe = load_recipe(
        demo,
        [
            *("--data.task=file", "--data.path=a.jsonl", "--data.template", r"Q: {question}\n\tA: \boxed\\n"),
            *("--sampling.stop", r"\n,\n\nQ:", "--reward.grader=regex", "--reward.pattern", r"\\boxed\{(\d+)\}\n"),
        ],
    )
    assert recipe.data.template == "Q: {question}\n\tA: \\boxed\\n"
    assert recipe.sampling.stop == ("\n", "\n\nQ:")
    assert recipe.reward.pattern == r"\\boxed\{(\d+)\}\n"


def test_escapes_in_a_recipe_are_those_of_toml(demo: Path) -> None:
    demo.write_text("[data]\ntask = 'file'\npath = 'a.jsonl'\ntemplate = 'a\\nb'\n")
    assert load_recipe(demo, []).data.template == r"a\nb"


def test_escapes_are_line_breaks_in_the_template_of_sft(demo: Path) -> None:
    recipe = load_recipe(demo, ["--sft.path", "rows.jsonl", "--sft.template", r"{question}\n="])
    assert recipe.sft.template == "{question}\n="
