"""Graders judge text: what is right, what is wrong, and what they refuse to judge."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError
from freerun.reward.graders import check_graders, make_graders
from freerun.reward.last_number import _NUMBER, _to_ratio, last_number
from freerun.reward.messages import Job
from freerun.reward.verdict import Credit


def judge(grader: str, completion: str, answer: str, **settings: Any) -> object:
    graders = make_graders(RewardConfig(grader=grader, **settings))
    job = Job(
        number=0,
        grader=grader,
        key="a:1",
        prompt="the prompt",
        answer=answer,
        completions=(completion,),
        finish_reasons=("stop",),
        num_tokens=(1,),
    )
    (verdict,) = graders[grader].verdicts(job)
    return verdict


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (" 42\n", "42"),
        ("42.", "42"),
        ("6 times 7 is 42.\n\n", "42"),
        ("first 7, then 42", "42"),
        ("1,234", "1234"),
        ("1234", "1,234"),
        ("1,234,567.50", "1234567.5"),
        ("$5", "5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("-3", "-3"),
        ("−3", "-3"),
        ("the result is (-3)", "-3"),
        ("x=-3", "-3"),
        ("+3", "3"),
        ("3.0", "3"),
        ("3", "3.000"),
        (".5", "0.5"),
        ("007", "7"),
        ("-0", "0"),
        ("10-3", "3"),
        ("10 - 3", "3"),
        ("2024-01-15", "15"),
        ("1/2", "0.5"),
        ("0.5", "1/2"),
        ("2/4", "1/2"),
        ("-1/2", "-0.5"),
        ("1/3", "1/3"),
        ("on 1/2/2024", "2024"),
        ("on 1/22/2024", "2024"),
        ("50%", "50"),
        ("1e3", "1000"),
        ("1.5e-2", "0.015"),
        (r"so \boxed{42}", "42"),
        ("**42**", "42"),
        ("(1,2)", "2"),
        ("42", "reasoning with 6 and 7\n#### 42"),
        ("0.1", "0.1000"),
        ("9" * 20_000, "9" * 20_000),
    ],
)
def test_number_accepts_the_answer_however_it_is_written(completion: str, answer: str) -> None:
    assert judge("number", completion, answer) is True


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("", "42"),
        ("forty-two", "42"),
        ("43", "42"),
        ("-42", "42"),
        ("42\n7 * 8", "42"),
        ("4.2", "42"),
        ("42.5", "42"),
        ("1,2345", "12345"),
        ("1/3", "0.3333333333333333"),
        ("5/0", "0"),
        ("5/0", "5"),
        ("0.1000000000000000055511151231257827", "0.1"),
        ("9" * 20_000, "9" * 19_999 + "8"),
        ("1e9999", "1"),
    ],
)
def test_number_rejects_another_last_number(completion: str, answer: str) -> None:
    assert judge("number", completion, answer) is False


@given(st.integers(), st.text(alphabet=" abc.,;:\n()", max_size=5))
def test_number_finds_any_integer_with_or_without_thousands_separators(value: int, tail: str) -> None:
    for written in (str(value), f"{value:,}", f"{value}.0"):
        assert judge("number", f"so it is {written} {tail}", str(value)) is True


@given(st.text(alphabet="0123456789+-−$.,/eE x\n", max_size=60))
def test_no_completion_makes_number_fail(completion: str) -> None:
    assert judge("number", completion, "42") in (True, False)
    assert last_number(completion) is not None or not any(c.isdigit() for c in completion)


@given(st.text(alphabet="0123456789+-−$.,/eE x)\n", max_size=60))
def test_looking_only_at_the_end_finds_what_a_scan_of_everything_finds(text: str) -> None:
    matches = list(_NUMBER.finditer(text))
    assert last_number(text) == (_to_ratio(matches[-1]) if matches else None)


def test_number_refuses_an_answer_without_a_number() -> None:
    for answer in ("unknown", "", "1/0"):
        with pytest.raises(ValueError, match=f"the answer '{answer}' holds no number"):
            judge("number", "42", answer)


@pytest.mark.parametrize(
    ("completion", "answer", "is_right"),
    [(" east\n", "east", True), ("east", " east ", True), ("East", "east", False), ("east side", "east", False)],
)
def test_exact_ignores_only_surrounding_whitespace(completion: str, answer: str, is_right: bool) -> None:
    assert judge("exact", completion, answer) is is_right


@pytest.mark.parametrize(
    ("completion", "is_right"),
    [
        ("so #### 42\n", True),
        ("#### 42\n#### 43\n", True),
        ("#### 43\n#### 42\n", False),
        ("the answer is 42", False),
        ("", False),
    ],
)
def test_regex_compares_the_first_group_of_the_first_match(completion: str, is_right: bool) -> None:
    assert judge("regex", completion, "42", pattern=r"####([^\n]*)") is is_right


def test_a_group_that_took_no_part_in_the_match_is_wrong() -> None:
    assert judge("regex", "none", "42", pattern=r"none|(\d+)") is False


@pytest.mark.parametrize(
    ("completion", "answer", "is_right"),
    [
        ("0.5", r"\frac{1}{2}", True),
        (r"$\frac{1}{2}$", "0.5", True),
        (r"thus \boxed{\frac{2}{4}}", "1/2", True),
        (r"$2\sqrt{3}$", r"\sqrt{12}", True),
        (r"$3$", r"3\sqrt{2}", False),
        (r"$x^2 + 2x + 1$", "(x+1)^2", True),
        (r"\boxed{(1, 2)}", "(1,2)", True),
        ("1,234", "1234", True),
        (r"$\frac{1}{3}$", r"\frac{1}{2}", False),
        (r"\boxed{x = 3}", "3", True),
        ("no idea", "3", False),
        ("", "3", False),
        (r"$\frac{1}{$", "3", False),
    ],
)
def test_math_compares_by_value(completion: str, answer: str, is_right: bool) -> None:
    assert judge("math", completion, answer) is is_right


NOT_ASCII = {"Arabic": "٤٢", "full width": "４２", "Devanagari": "४२", "Thai": "๔๒", "bold": "𝟒𝟐", "Bengali": "৪২"}


@pytest.mark.parametrize("digits", NOT_ASCII.values(), ids=NOT_ASCII)
def test_math_reads_the_digits_of_all_scripts(digits: str) -> None:
    for written in (digits, f"${digits}$", rf"\boxed{{{digits}}}", f"it is {digits}.0"):
        assert judge("math", written, "42") is True
        assert judge("math", written, "43") is False
    assert judge("math", "42", digits) is True


@pytest.mark.parametrize("completion", ["9" * 4301, f"${'9' * 5000}$", f"so it is -{'1' * 20_000}", "٤" * 4301])
def test_math_finds_a_completion_that_cannot_be_read_wrong(completion: str) -> None:
    assert judge("math", completion, "42") is False


@pytest.mark.parametrize("answer", ["", r"\frac{1}{", "9" * 4301])
def test_math_refuses_an_answer_that_is_no_mathematics(answer: str) -> None:
    with pytest.raises(ValueError, match="cannot be read as mathematics"):
        judge("math", "$3$", answer)


THINK_THEN_ANSWER_CASES = [
    ("<think>6 * 7</think><answer>42</answer>", True),
    (" <think>6\n* 7 < 50</think>\n\n<answer>\n42\n</answer>\n", True),
    ("<think></think><answer></answer>", True),
    ("<answer>42</answer>", False),
    ("<think>6 * 7</think>42", False),
    ("so <think>6 * 7</think><answer>42</answer>", False),
    ("<think>6 * 7</think><answer>42</answer> right?", False),
    ("<think>6</think><think>7</think><answer>42</answer>", False),
    ("<think>6 * 7</think><answer>41</answer><answer>42</answer>", False),
    ("", False),
]


@pytest.mark.parametrize(("completion", "is_right"), THINK_THEN_ANSWER_CASES)
def test_format_wants_reasoning_then_an_answer_in_their_tags(completion: str, is_right: bool) -> None:
    assert judge("format", completion, "whatever the answer") is is_right


def test_format_matches_the_whole_completion_with_the_users_pattern() -> None:
    assert judge("format", "Answer: 42\n", "42", format_pattern=r"Answer: \d+") is True
    assert judge("format", "The Answer: 42", "42", format_pattern=r"Answer: \d+") is False


def entry(answer: str | None, source_dataset: str, **metadata: object) -> str:
    return json.dumps(
        {"question": "?", "answer": answer, "metadata": metadata | {"source_dataset": source_dataset}}
    )


@pytest.mark.parametrize(
    ("completion", "share"),
    [
        ("5", 1.0),
        ("2 + 3\nis\n5\n", 1.0),
        ("<answer>4</answer>, no, <answer> 5 </answer>", 1.0),
        ("<answer>4</answer>\n5", 0.0),
        ("6", 0.0),
        ("", 0.0),
    ],
)
def test_reasoning_gym_scores_the_tagged_text_or_the_last_line(completion: str, share: float) -> None:
    close: Any = pytest.approx(share, abs=0.02)
    assert judge("reasoning-gym", completion, entry("5", "chain_sum")) == Credit(close)


def test_reasoning_gym_takes_as_many_last_lines_as_the_answer_has() -> None:
    assert judge("reasoning-gym", "they are\n1 2\n3 4", entry("1 2\n3 4", "rotate_matrix")) == Credit(1.0)


def test_reasoning_gym_gives_partial_credit() -> None:
    whole = entry("eat tea", "letter_jumble")
    assert judge("reasoning-gym", "eat tea", whole) == Credit(1.0)
    partly = judge("reasoning-gym", "eat eta", whole)
    assert isinstance(partly, Credit)
    assert 0 < partly.share < 1


def test_a_completion_that_the_scorer_cannot_read_is_wrong() -> None:
    factors = entry("2 × 3", "prime_factorization", number=6, factors=[2, 3])
    assert judge("reasoning-gym", "2 × 3", factors) == Credit(1.0)
    assert judge("reasoning-gym", "no idea", factors) == Credit(0.0)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("42", "is not the JSON of a reasoning_gym entry: TypeError"),
        ("{", "is not the JSON of a reasoning_gym entry: JSONDecodeError"),
        ('{"answer": "5"}', "KeyError: 'metadata'"),
        (entry("5", "nobodys_dataset"), "Dataset 'nobodys_dataset' not registered"),
        (entry("1 + 2", "countdown", numbers=[1, 2], target=4), "own answer 0.05; its metadata are damaged"),
        (entry("two", "prime_factorization"), "ValueError: invalid literal"),
    ],
)
def test_reasoning_gym_refuses_an_answer_that_is_no_usable_entry(answer: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        judge("reasoning-gym", "5", answer)


def test_a_missing_package_is_named_before_the_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(sys.modules, "reasoning_gym", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'freerun\[tasks\]'"):
        check_graders(RewardConfig(grader="number + reasoning-gym"))


def test_a_users_function_gets_its_arguments_by_keyword(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keyword_task.py").write_text(
        "def grade(*, answer, completion, prompt):\n    return (prompt, completion, answer)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert judge("keyword_task:grade", "a completion", "42") == ("the prompt", "a completion", "42")


def test_a_users_function_may_be_async_as_may_a_callable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "async_task.py").write_text(
        "import asyncio\n"
        "async def grade(prompt, completion, answer):\n    await asyncio.sleep(0)\n    return 0.5\n"
        "class Judge:\n    async def __call__(self, **texts):\n        return 0.25\n"
        "judge = Judge()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert judge("async_task:grade", "a completion", "42") == 0.5
    assert judge("async_task:judge", "a completion", "42") == 0.25


def test_an_unknown_grader_is_answered_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        ConfigError,
        match=r'unknown grader "nubmer" in reward.grader = "0.5 \* nubmer \+ exact"; '
        r'there are number, exact, .*; did you mean "number"\?',
    ):
        check_graders(RewardConfig(grader="0.5 * nubmer + exact"))
    with pytest.raises(ConfigError, match='your own function is written "module:function"'):
        check_graders(RewardConfig(grader="judge.py"))


@pytest.mark.parametrize("name", ["my_task:", ":grade", "my task:grade", "dir/my_task:grade", "a:b:c"])
def test_a_malformed_function_name_is_refused_without_importing(name: str) -> None:
    with pytest.raises(ConfigError, match='write "module:function"'):
        check_graders(RewardConfig(grader=name))


def test_a_bad_pattern_is_refused_with_its_position() -> None:
    with pytest.raises(ConfigError, match="unterminated subpattern at position 3"):
        check_graders(RewardConfig(grader="regex", pattern="abc(def"))
    with pytest.raises(ConfigError, match="has no group; put parentheses"):
        check_graders(RewardConfig(grader="regex", pattern=r"#### \d+"))
    with pytest.raises(ConfigError, match=r'reward.format_pattern ".*missing \), unterminated subpattern'):
        check_graders(RewardConfig(grader="exact + format", format_pattern="(<answer>"))


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", 'has no function "grade"; it has none'),
        ("def judge(**_): return True", 'has no function "grade"; it has judge'),
        ("import a_module_nobody_has", "ModuleNotFoundError: No module named 'a_module_nobody_has'"),
        ("def grade(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("grade = 3", "is a int, not a function"),
        ("def grade(prompt, answer): return True", "asks for nothing of the completion; define it as def grade"),
        ("def grade(prompt, completion, answer, more): return True", '"more" is none of prompt, answer, row'),
        ("def grade(completion, finish_reson=None): return True", 'did you mean "finish_reason"'),
        ("def grade(completions, finish_reason): return [True]", 'did you mean "finish_reasons"'),
        ("def grade(completion, answer, /): return True", '"completion" cannot be given by name'),
    ],
)
def test_an_unusable_users_function_is_a_config_error(
    source: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"unusable_task_{abs(hash(source))}"
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f'reward.grader: "{module}:grade".*{complaint}'):
        make_graders(RewardConfig(grader=f"{module}:grade"))


def test_a_module_that_does_not_exist_says_where_it_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"run freerun in the directory of nobody.py.*searched {tmp_path}\)"):
        make_graders(RewardConfig(grader="nobody:grade"))
