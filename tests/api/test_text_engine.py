"""`freerun.Engine`: plain generation in this process."""

from pathlib import Path
from typing import Any

import pytest
from tiny_runs import make_run

import freerun

WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"prompts": "12,18>"}, "^prompts is of type str; pass a list of texts"),
    ({"prompts": [3]}, r"^prompts\[0\] is of type int; pass texts"),
    ({"stop": "ab"}, "^stop is of type str; pass a list of texts"),
    ({"stop": [""]}, "^stop holds an empty text"),
    ({"top_p": 2.0}, r"^top_p = 2.0 must be a number in \(0, 1\]"),
    ({"temperature": "hot"}, '^temperature = "hot" must be a number between'),
    ({"num_samples": 0}, "^num_samples = 0 must be an integer between 1 and 65,536"),
    ({"max_completion_tokens": 0}, "^max_completion_tokens = 0 must be an integer"),
]


def engine_of(directory: Path, seed: int = 0) -> freerun.Engine:
    return freerun.Engine.load(directory / "model", max_sequence_tokens=32, seed=seed)


def test_completions_come_in_the_order_of_the_prompts_and_follow_the_seed(tmp_path: Path) -> None:
    make_run(tmp_path)
    prompts = ["12,18>", "7,21>", "5,5>"]
    groups = engine_of(tmp_path).generate(prompts, num_samples=3, max_completion_tokens=8)
    assert [len(group) for group in groups] == [3, 3, 3]
    for completion in (completion for group in groups for completion in group):
        assert 1 <= len(completion.token_ids) == len(completion.logprobs) <= 8
        assert completion.text
    again = engine_of(tmp_path).generate(prompts, num_samples=3, max_completion_tokens=8)
    other = engine_of(tmp_path, seed=1).generate(prompts, num_samples=3, max_completion_tokens=8)
    texts = [[[c.text for c in group] for group in one] for one in (groups, again, other)]
    assert texts[0] == texts[1] != texts[2]


def test_temperature_zero_is_greedy(tmp_path: Path) -> None:
    make_run(tmp_path)
    engine = engine_of(tmp_path)
    [[first], [second]] = engine.generate(["12,18>", "12,18>"], temperature=0, max_completion_tokens=8)
    assert first.text == second.text


def test_what_cannot_be_generated_is_named_and_leaves_the_engine_usable(tmp_path: Path) -> None:
    make_run(tmp_path)
    engine = engine_of(tmp_path)
    with pytest.raises(freerun.FreerunError, match="the engine holds sequences of 32"):
        engine.generate(["1,1>", "1" * 30], max_completion_tokens=8)
    for arguments, message in WRONG_ARGUMENTS:
        with pytest.raises(freerun.FreerunError, match=message):
            engine.generate(**{"prompts": ["1,1>"]} | arguments)
    assert len(engine.generate(["1,1>"], max_completion_tokens=2)) == 1


def test_an_engine_that_cannot_be_loaded_is_refused_with_the_argument(tmp_path: Path) -> None:
    model = make_run(tmp_path).parent / "model"
    with pytest.raises(freerun.FreerunError, match="none"):
        freerun.Engine.load(tmp_path / "none")
    with pytest.raises(freerun.FreerunError, match=r"^max_sequence_tokens = 0 must be an integer between 1 and"):
        freerun.Engine.load(model, max_sequence_tokens=0)
    with pytest.raises(freerun.FreerunError, match=r"^seed = -1 must be an integer"):
        freerun.Engine.load(model, seed=-1)
