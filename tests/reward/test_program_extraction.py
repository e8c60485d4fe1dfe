"""The code grader finds the program in what a model writes, and the code of the prompt that it completes."""

from collections.abc import Iterator

import pytest
from sandboxes import RIGHT, WRONG

from freerun.reward.code import judge
from freerun.reward.program import PromptCode, asked_names, program_in, prompt_code
from freerun.sandbox.limits import Limits
from freerun.sandbox.sandbox import Sandbox

PROMPT = 'import math\n\n\ndef area(radius):\n    """Of a circle."""\n'
AREA = "def check(candidate):\n    assert math.isclose(candidate(2), 4 * math.pi)\ncheck(area)"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(Limits(seconds=30))
    sandbox.start()
    yield sandbox
    sandbox.close()


def test_the_program_is_the_last_fenced_block() -> None:
    text = "First:\n```python\nx = 1\n```\nBetter:\n```python\ny = 2\n```\nDone."
    assert program_in(text, PromptCode(), ["y"]).strip() == "y = 2"
    assert program_in("Sure.\n```py\ny = 2\n", PromptCode(), ["y"]).strip() == "y = 2"


SOLUTION = f"```python\n{RIGHT}```\n"
AROUND = {
    "a command after it": SOLUTION + "Run it:\n```bash\npython square.py\n```\n",
    "an output after it": SOLUTION + "It prints\n```text\n9\n```\nas it should.",
    "an example after it": SOLUTION + "Use it so:\n```python\nprint(square(3))\n```",
    "an example that imports it": SOLUTION + "```python\nfrom square import square\nprint(square(3))\n```",
    "an example with a wrong draft before": f"```python\n{WRONG}```\nBetter:\n{SOLUTION}```\nsquare(3)\n```",
    "a command before it": "```sh\npip install nothing\n```\n" + SOLUTION,
    "an unfinished command after it": SOLUTION + "```console\n$ python",
    "a title": f"```python title=square.py\n{RIGHT}```",
    "braces": f"```{{.python .numberLines}}\n{RIGHT}```",
    "another name of Python": f"```Python3.11\r\n{RIGHT}```",
    "no language": f"```\n{RIGHT}```\n```json\n{{}}\n```",
    "a wrong language": f"```text\n{RIGHT}```",
    "four backticks": f"````python\n{RIGHT}````",
}


@pytest.mark.parametrize("completion", AROUND.values(), ids=AROUND)
def test_the_program_is_found_among_other_blocks(completion: str) -> None:
    assert program_in(completion, PromptCode(), ["square"]).strip() == RIGHT.strip()


def test_a_completion_continues_the_function_of_the_prompt(sandbox: Sandbox) -> None:
    rest = "    return math.pi * radius ** 2\n\nThis computes the area.\n"
    assert judge(sandbox, PROMPT, rest, AREA).passed
    chat = f"<|im_start|>user\nComplete this:\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    assert judge(sandbox, chat, rest, AREA).passed
    assert not judge(sandbox, PROMPT, "    return radius\n", AREA).passed


def test_a_completion_that_defines_the_function_stands_for_itself(sandbox: Sandbox) -> None:
    whole = "def area(radius):\n    return math.pi * radius ** 2\n"
    for completion in (whole, f"Here:\n```python\n{whole}```", f"```python\nimport math\n{whole}"):
        assert judge(sandbox, PROMPT, completion, AREA).passed
        assert judge(sandbox, f"Do it.\n```python\n{PROMPT}```\n", completion, AREA).passed


def test_a_prompt_of_prose_or_with_a_whole_function_has_no_code_to_complete() -> None:
    assert prompt_code("Write a function to find the area of a circle.") == PromptCode()
    assert prompt_code("Repair this:\n```python\ndef area(r):\n    return r\n```") == PromptCode()
    assert prompt_code(PROMPT).helpers == {"math"}


def test_tests_that_ask_for_nothing_are_refused() -> None:
    assert asked_names("import math\nassert math.isclose(f(1), 2)", known=()).program == ["f"]
    assert asked_names("assert f(sys.maxsize)", known=()).modules == ["sys"]
    for tests in ("", "assert True", "assert len([]) == sum([])", "def check(candidate):\n    candidate(1)"):
        with pytest.raises(ValueError, match="calls no function"):
            asked_names(tests, known=())
    with pytest.raises(ValueError, match="not a Python program"):
        asked_names("assert f(1) = 2", known=())


def test_a_prompt_whose_code_cannot_run_is_no_grade(sandbox: Sandbox) -> None:
    prompt = PROMPT.replace("import math", "import numpy")
    with pytest.raises(ValueError, match="No module named 'numpy'"):
        judge(sandbox, prompt, "    return 12.566\n", "assert area(2) > 12")
