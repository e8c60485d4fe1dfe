"""Mixtures: several sources in one stream, in exact proportion, addressed by one ordinal."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_prompts import content, make_tokenizer, prompts_of

from freerun.config.data import DataConfig
from freerun.config.load import dump_toml, load_recipe
from freerun.data.mixture import Mixture, interleaved, open_stream, whole_weights
from freerun.data.source import PromptSource
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ConfigError

CONFIG = DataConfig(path="rows.jsonl")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("model"))


def mixture(tokenizer: Tokenizer, weights: tuple[float, ...], *, seed: int = 0, num_held_out: int = 4) -> Mixture:
    """Parts a, b, ... of 3, 4, ... training prompts."""
    sources = {
        name: PromptSource(prompts_of(3 + i, num_held_out), tokenizer, config=CONFIG, seed=seed)
        for i, name in enumerate("abcde"[: len(weights)])
    }
    return Mixture(sources, weights)


def part_of(key: str) -> str:
    return key.partition("/")[0]


@given(weights=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_of_any_first_ordinals_a_part_has_its_share_rounded_up_or_down(weights: list[int]) -> None:
    total, counts = sum(weights), [0] * len(weights)
    for place, part in enumerate(interleaved(weights), start=1):
        counts[part] += 1
        for count, weight in zip(counts, weights, strict=True):
            assert place * weight // total <= count <= -(-place * weight // total)
    assert counts == weights


def test_weights_are_taken_as_they_are_written() -> None:
    assert whole_weights([0.7, 0.3]) == [7, 3]
    assert whole_weights([2, 4, 6.0]) == [1, 2, 3]
    assert whole_weights([1e-3, 1.0]) == [1, 1000]
    with pytest.raises(ConfigError, match="repeat only after 1000001 prompts; use simpler numbers"):
        whole_weights([1e-6, 1.0])


def test_every_part_is_shuffled_over_epochs_of_its_own(tokenizer: Tokenizer) -> None:
    stream = mixture(tokenizer, (0.7, 0.3))
    seen = [stream.take() for _ in range(120)]
    assert Counter(part_of(prompt.key) for prompt in seen) == {"a": 84, "b": 36}
    for name, size in (("a", 3), ("b", 4)):
        keys = [prompt.key for prompt in seen if part_of(prompt.key) == name]
        epochs = [keys[i : i + size] for i in range(0, len(keys), size)]
        assert all(len(set(epoch)) == size for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) > 1


@given(seed=st.integers(), stop=st.integers(0, 40), weights=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_any_ordinal_gives_what_taking_in_order_gives_and_a_cursor_resumes(
    tokenizer: Tokenizer, seed: int, stop: int, weights: list[int]
) -> None:
    walked, asked = (mixture(tokenizer, tuple(map(float, weights)), seed=seed) for _ in range(2))
    taken = [content(walked.take()) for _ in range(60)]
    assert [content(asked.at(ordinal)) for ordinal in reversed(range(60))] == taken[::-1]
    asked.cursor = stop
    assert [content(asked.take()) for _ in range(20)] == taken[stop : stop + 20]
    assert [ordinal for ordinal, *_ in taken] == list(range(60))


def test_held_out_prompts_of_all_parts_are_evaluated_together_and_named(tokenizer: Tokenizer) -> None:
    stream = mixture(tokenizer, (3.0, 1.0), num_held_out=4)
    keys = [part_of(prompt.key) for prompt in stream.held_out(100)]
    assert Counter(keys) == {"a": 4, "b": 4}
    assert Counter(keys[:4]) == {"a": 3, "b": 1}
    assert [prompt.ordinal for prompt in stream.held_out(5)] == [-1, -2, -3, -4, -5]
    assert [content(p) for p in stream.held_out(5)] == [content(p) for p in stream.held_out(100)[:5]]


def test_all_training_prompts_come_once_whatever_the_weights(tokenizer: Tokenizer) -> None:
    stream = mixture(tokenizer, (7.0, 3.0))
    prompts = stream.training()
    assert len({prompt.key for prompt in prompts}) == len(prompts) == stream.epoch_size
    # Until the first part, of three prompts, has no more.
    assert [content(p) for p in prompts[:4]] == [content(stream.at(n)) for n in range(4)]


def test_the_fingerprint_knows_parts_and_weights(tokenizer: Tokenizer) -> None:
    assert mixture(tokenizer, (1.0, 2.0)).fingerprint == mixture(tokenizer, (0.5, 1.0)).fingerprint
    assert mixture(tokenizer, (1.0, 2.0)).fingerprint != mixture(tokenizer, (2.0, 1.0)).fingerprint


def test_a_mixture_of_recipes_takes_their_data_sections_and_its_own_limit(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    for name in ("one", "two"):
        rows = [{"q": f"{name} {n}", "answer": str(n)} for n in range(10)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = f'[data]\npath = "{tmp_path}/{name}.jsonl"\ntemplate = "{name}: {{q}}"\nmax_prompt_tokens = 5\n'
        (tmp_path / f"{name}.toml").write_text(recipe)
    mixed = tmp_path / "mixed.toml"
    mixed.write_text(f'[data]\nmixture = ["{tmp_path}/one.toml", "{tmp_path}/two.toml"]\nweights = [1, 3]\n')
    config = load_recipe(mixed, []).data
    stream = open_stream(config, tokenizer, seed=0)
    assert Counter(part_of(stream.take().key) for _ in range(40)) == {"one": 10, "two": 30}
    assert Counter(part_of(prompt.key) for prompt in stream.held_out(99)) == {"one": 2, "two": 2}
    assert stream.at(0).text.startswith(("one: one", "two: two"))
    nested = tmp_path / "nested.toml"
    nested.write_text(f'[data]\nmixture = ["{mixed}"]\n')
    with pytest.raises(ConfigError, match="itself a mixture"):
        load_recipe(nested, [])
    with pytest.raises(ConfigError, match='two recipes named "one"'):
        load_recipe(nested, {"data.mixture": (str(tmp_path / "one.toml"),) * 2})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixture": {"a": CONFIG}, "path": "x.jsonl"}, r"data\.path and data\.mixture exclude each other"),
        ({"mixture": {"a": CONFIG}, "task": "euclid"}, r"data\.task and data\.mixture exclude each other"),
        ({"mixture": {"a": CONFIG, "b": CONFIG}, "weights": (1.0,)}, "has 1 numbers for the 2 recipes"),
        ({"mixture": {"a": CONFIG}, "weights": (0.0,)}, "must be an array of numbers between 1e-9 and 1e9"),
        (
            {"mixture": {"a": CONFIG, "b": CONFIG}, "weights": (math.inf, 1.0)},
            "must be an array of numbers between 1e-9 and 1e9",
        ),
        ({"path": "x.jsonl", "weights": (1.0,)}, r"data\.weights is set without data\.mixture"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(**settings)


def test_a_resolved_recipe_holds_its_parts_and_reads_no_other_file(tmp_path: Path) -> None:
    part, mixed, resolved = (tmp_path / f"{name}.toml" for name in ("part one", "mixed", "config"))
    part.write_text('[data]\npath = "rows.jsonl"\ntemplate = "{q}\\n"\nmax_prompt_tokens = 5\n')
    mixed.write_text(f'[data]\nmixture = ["{part}", "times-tables"]\nweights = [1, 3]\nmax_prompt_tokens = 9\n')
    recipe = load_recipe(mixed, {"run.name": "x"})
    resolved.write_text(dump_toml(recipe))
    part.unlink()
    assert load_recipe(resolved) == recipe
    assert list(recipe.data.parts) == ["part one", "times-tables"]
    assert recipe.data.parts["part one"] == DataConfig(path="rows.jsonl", template="{q}\n", max_prompt_tokens=9)
    shorter = load_recipe(resolved, {"data.max_prompt_tokens": 7})
    assert {part.max_prompt_tokens for part in shorter.data.parts.values()} == {7}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[data.mixture.a]\npth = "x"',
            'unknown key "data.mixture.a.pth" in mixed.toml; did you mean "data.path"?',
        ),
        ("[data.mixture.a]\nnum_shots = -1", "data.mixture.a.num_shots = -1 in mixed.toml must be an integer"),
        ("[data.mixture]\na = 3", "data.mixture.a = 3 in mixed.toml must be a section"),
    ],
)
def test_a_mistake_in_a_part_of_a_mixture_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mixed.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_recipe("mixed.toml")
    assert message in str(caught.value)


def test_a_part_may_have_a_grader_of_its_own(tmp_path: Path, tokenizer: Tokenizer) -> None:
    mixed, resolved = tmp_path / "mixed.toml", tmp_path / "config.toml"
    mixed.write_text(
        '[data.mixture.sums]\ntask = "times-tables"\n[data.mixture.words]\ntask = "euclid"\ngrader = "exact"\n'
    )
    recipe = load_recipe(mixed)
    assert recipe.data.own_graders == ("exact",)
    stream = open_stream(recipe.data, tokenizer, seed=0)
    prompts = [stream.take() for _ in range(8)] + stream.held_out(8)
    assert {(part_of(prompt.key), prompt.grader) for prompt in prompts} == {("sums", ""), ("words", "exact")}
    resolved.write_text(dump_toml(recipe))
    assert load_recipe(resolved).data == recipe.data
