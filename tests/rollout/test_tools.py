"""Whatever a policy asks of its tools, it gets text; only what it cannot help raises."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.chat.messages import Message, ToolCall
from freerun.errors import ConfigError
from freerun.rollout import abandoned
from freerun.rollout.abandoned import TooManyAbandonedError
from freerun.rollout.tools import MAX_CALLS_PER_TURN, ToolRunner, ToolServerError, as_tools


def call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(id=f"id-{name}", name=name, arguments=arguments)


def ask(functions: list[Callable[..., Any]], *calls: ToolCall, seconds: float = 30.0) -> list[str]:
    async def run() -> tuple[Message, ...]:
        return await ToolRunner(seconds=seconds).answers(as_tools(functions), calls)

    return [message.content for message in asyncio.run(run())]


def add(a: int, b: int) -> int:
    return a + b


async def later(a: int) -> str:
    await asyncio.sleep(0)
    return f"later {a}"


def test_plain_and_async_functions_are_called_with_their_arguments() -> None:
    calls = (call("add", '{"a": 1, "b": "2"}'), call("later", '{"a": 5}'))
    assert ask([add, later], *calls) == ["3", "later 5"]


def test_an_answer_names_the_call_that_it_answers() -> None:
    async def run() -> tuple[Message, ...]:
        return await ToolRunner(seconds=30).answers(as_tools([add]), [call("add", '{"a": 1, "b": 2}')])

    assert asyncio.run(run()) == (Message(role="tool", content="3", tool_call_id="id-add", name="add"),)


def test_results_become_text() -> None:
    results: dict[str, Any] = {"text": "as it is", "none": None, "rows": [{"a": 1}], "odd": 1j, "lone": "\ud800"}

    def get(key: str) -> Any:
        return results[key]

    texts = ask([get], *(call("get", f'{{"key": "{key}"}}') for key in results))
    assert texts == ["as it is", "null", '[{"a":1}]', "1j", "?"]


def test_a_long_result_is_cut() -> None:
    def long() -> str:
        return "x" * 30_000

    [text] = ask([long], call("long"))
    assert text == "x" * 20_000 + "\n[cut: the first 20,000 of 30,000 characters]"


def divide(a: int, b: int) -> float:
    return a / b


def leave() -> None:
    raise SystemExit(3)


def stop() -> None:
    raise StopIteration


async def interrupt() -> None:
    raise KeyboardInterrupt


async def cancel() -> None:
    raise asyncio.CancelledError


class Silent(Exception):  # noqa: N818 - not ours to name
    def __str__(self) -> str:
        raise ValueError


def silent() -> None:
    raise Silent


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (call("divide", '{"a": 1, "b": 0}'), "error: ZeroDivisionError: division by zero"),
        (call("divide", '{"a": 1}'), "error: divide cannot be called with these arguments: Object missing "),
        (call("divide", "a = 1"), "error: divide cannot be called with these arguments: JSON is malformed"),
        (call("multiply"), 'error: there is no tool "multiply"; there are divide, leave'),
        (call("x" * 5000), "error: there is no tool"),
        (call("leave"), "error: SystemExit: 3"),
        (call("stop"), "error: RuntimeError: "),
        (call("interrupt"), "error: KeyboardInterrupt: "),
        (call("cancel"), "error: cancel was cancelled"),
        (call("silent"), "error: Silent: it cannot be printed"),
    ],
)
def test_what_fails_is_told_to_the_policy(asked: ToolCall, answer: str) -> None:
    [text] = ask([divide, leave, stop, interrupt, cancel, silent], asked)
    assert text.startswith(answer)
    assert len(text) < 1_100


def test_a_policy_without_tools_is_told_so() -> None:
    assert ask([], call("add")) == ['error: there is no tool "add"; there are none']


def test_a_tool_that_hangs_is_given_up_and_counted() -> None:
    is_over = threading.Event()

    def hang() -> None:
        is_over.wait()

    async def hang_too() -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        runner = ToolRunner(seconds=0.05)
        answers = await runner.answers(as_tools([hang, hang_too]), [call("hang"), call("hang_too")])
        assert answers[0].content == "error: hang took longer than 0.05 seconds and was given up"
        assert answers[1].content == "error: hang_too took longer than 0.05 seconds and was given up"
        while runner.abandoned.num_running > 1:  # the coroutine ends when it is cancelled, the thread does not
            await asyncio.sleep(0.001)
        is_over.set()
        while runner.abandoned.num_running:
            await asyncio.sleep(0.001)

    asyncio.run(run())


def test_a_tool_that_hangs_does_not_hold_up_the_others() -> None:
    is_over = threading.Event()

    def hang() -> None:
        is_over.wait()

    def end() -> str:
        is_over.set()
        return "done"

    assert ask([hang, end], call("hang"), call("end")) == ["null", "done"]


def test_a_turn_may_only_make_so_many_calls() -> None:
    texts = ask([add], *[call("add", '{"a": 1, "b": 1}')] * (MAX_CALLS_PER_TURN + 2))
    assert texts == ["2"] * MAX_CALLS_PER_TURN + ["error: at most 16 calls in a turn"] * 2


def test_what_the_policy_cannot_help_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone() -> None:
        raise ToolServerError("the server is gone")

    with pytest.raises(ToolServerError):
        ask([gone], call("gone"))
    monkeypatch.setattr(abandoned, "MAX_ABANDONED", 0)
    with pytest.raises(TooManyAbandonedError):
        ask([add], call("add", '{"a": 1, "b": 1}'))


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match='two tools are named "add"'):
        as_tools([add, add])


@given(st.text(), st.text())
def test_no_call_raises(name: str, arguments: str) -> None:
    async def run() -> None:
        calls = [call(name, arguments), call("later", arguments)]
        assert len(await ToolRunner(seconds=30).answers(as_tools([later]), calls)) == 2

    asyncio.run(run())
