"""`freerun.Engine`: plain generation in this process."""

from pathlib import Path

import pytest
from tiny_runs import make_run

import freerun


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
    with pytest.raises(freerun.FreerunError, match="pass a list of texts"):
        engine.generate("12,18>")
    with pytest.raises(freerun.FreerunError, match="the engine holds sequences of 32"):
        engine.generate(["1,1>", "1" * 30], max_completion_tokens=8)
    with pytest.raises(freerun.FreerunError, match=r"sampling\.top_p"):
        engine.generate(["1,1>"], top_p=2.0)
    assert len(engine.generate(["1,1>"], max_completion_tokens=2)) == 1
    with pytest.raises(freerun.FreerunError, match="none"):
        freerun.Engine.load(tmp_path / "none")
