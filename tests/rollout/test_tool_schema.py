"""A function's signature is its schema; one that cannot be described is refused before the run starts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import pytest

from freerun.errors import ConfigError
from freerun.rollout.tool_schema import ArgumentsError, read_arguments, read_tool


@dataclass
class Place:
    name: str


def weather(
    city: str,
    days: int = 1,
    share: float = 0.5,
    is_short: bool = True,
    unit: Literal["C", "F"] = "C",
    hours: list[int] = [6, 18],  # noqa: B006 - as users write it
    options: dict[str, str] | None = None,
    near: Optional[str] = None,  # noqa: UP045 - as users write it
) -> str:
    """Look up the weather.

    Args:
        city: where to look
    """
    return city


def test_the_schema_is_that_of_the_signature() -> None:
    tool, _ = read_tool(weather)
    assert (tool.name, tool.description) == ("weather", "Look up the weather.")
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where to look"},
            "days": {"type": "integer", "default": 1},
            "share": {"type": "number", "default": 0.5},
            "is_short": {"type": "boolean", "default": True},
            "unit": {"enum": ["C", "F"], "default": "C"},
            "hours": {"type": "array", "items": {"type": "integer"}},
            "options": {
                "anyOf": [{"type": "object", "additionalProperties": {"type": "string"}}, {"type": "null"}],
                "default": None,
            },
            "near": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["city"],
    }


def test_a_function_without_parameters_has_none() -> None:
    def dice() -> int:
        return 4

    assert read_tool(dice)[0].parameters == {"type": "object", "properties": {}, "required": []}


def test_a_description_may_stand_in_the_annotation() -> None:
    def look(city: Annotated[str, "where to look"]) -> str:
        return city

    assert read_tool(look)[0].parameters["properties"]["city"]["description"] == "where to look"


def test_a_dataclass_is_described_and_made() -> None:
    def go(place: Place) -> str:
        return place.name

    tool, arguments = read_tool(go)
    assert tool.parameters["properties"]["place"] == {"$ref": "#/$defs/Place"}
    assert list(tool.parameters["$defs"]) == ["Place"]
    assert read_arguments('{"place": {"name": "Rome"}}', arguments) == {"place": Place("Rome")}


def test_a_method_is_a_tool_without_self() -> None:
    class Shop:
        def buy(self, item: str) -> str:
            return item

    assert list(read_tool(Shop().buy)[0].parameters["properties"]) == ["item"]


def test_arguments_are_converted_and_defaults_filled_in() -> None:
    _, arguments = read_tool(weather)
    read = read_arguments('{"city": "Rome", "days": "3", "unit": "F"}', arguments)
    assert (read["city"], read["days"], read["unit"], read["hours"]) == ("Rome", 3, "F", [6, 18])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "missing required field `city`"),
        ("{}", "missing required field `city`"),
        ('{"city": "Rome", "dais": 3}', "unknown field `dais`"),
        ('{"city": "Rome", "days": "three"}', "Expected `int`"),
        ('{"city": "Rome", "unit": "K"}', "Invalid enum value 'K'"),
        ('{"city": "Rome"', "truncated"),
        ("city = Rome", "malformed"),
        ('["Rome"]', "Expected `object`"),
        ('"Rome"', "Expected `object`"),
        ("null", "Expected `object`"),
        ('{"city": "Rome", "days": 1' + "0" * 5000 + "}", "out of range"),
        ('{"city": ' + "[" * 100_000, "Expected `str`"),
        ('{"city": "\ud800"}', "surrogates not allowed"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_words(text: str, words: str) -> None:
    _, arguments = read_tool(weather)
    with pytest.raises(ArgumentsError, match=words):
        read_arguments(text, arguments)


def test_json_that_is_too_deep_is_refused() -> None:
    def look(where: dict) -> str:  # type: ignore[type-arg] # as users write it
        return ""

    with pytest.raises(ArgumentsError, match="recursion"):
        read_arguments('{"where": ' + '{"a":' * 100_000, read_tool(look)[1])


def untyped(expression):  # type: ignore[no-untyped-def] # what is tested
    return expression


def many(*cities: str) -> str:
    return ""


def named(**cities: str) -> str:
    return ""


def strange(city: object) -> str:
    return ""


def lost(city: "Nowhere") -> str:  # type: ignore[name-defined] # noqa: F821 - what is tested
    return ""


class Machine:
    def __call__(self, city: str) -> str:
        return city


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (untyped, r'no type for its parameter "expression".*def untyped\(expression: str\)'),
        (many, r'takes "\*cities: str"'),
        (named, r'takes "\*\*cities: str"'),
        (strange, "type that JSON cannot hold"),
        (lost, "name 'Nowhere' is not defined"),
        (lambda city: city, "has no name; define it with def"),
        (Machine(), "has no name; define it with def"),
        (min, "no signature|takes|no type"),
    ],
)
def test_a_function_that_cannot_be_described_is_refused(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_tool(function)
