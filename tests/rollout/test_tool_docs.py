"""The words that a policy gets about a tool are those of its docstring, in any of the usual styles."""

from collections.abc import Callable
from typing import Any

import pytest

from freerun.rollout.tool_docs import read_docs


def google(city: str, days: int) -> None:
    """Look up the weather.

    Only for cities.

    Args:
        city (str): where to look,
            in full: no codes
        days: how many

    Returns:
        city: the weather of the city
    """


def numpy(city: str, days: int) -> None:
    """Look up the weather.

    Only for cities.

    Parameters
    ----------
    city : str
        where to look,
        in full: no codes
    days : int, optional
        how many

    Returns
    -------
    str
        days: not a parameter
    """


def rest(city: str, days: int) -> None:
    """Look up the weather.

    Only for cities.

    :param str city: where to look,
        in full: no codes
    :type city: str
    :param days: how many
    :returns: the weather
    """


def flat(city: str, days: int) -> None:
    """Look up the weather.

    Only for cities.

    Args:
    city: where to look, in full: no codes
    days: how many
    """


@pytest.mark.parametrize("function", [google, numpy, rest, flat])
def test_every_style_says_the_same(function: Callable[..., Any]) -> None:
    docs = read_docs(function, ("city", "days"))
    assert docs.description == "Look up the weather.\nOnly for cities."
    assert docs.parameters == {"city": "where to look, in full: no codes", "days": "how many"}


def test_a_docstring_without_a_style_is_all_description() -> None:
    def calc(expression: str) -> None:
        """Work out an arithmetic expression: 12*7.
        Note: expression: is text."""

    assert read_docs(calc, ("expression",)) == (
        "Work out an arithmetic expression: 12*7. Note: expression: is text.",
        {},
    )


def test_a_function_without_a_docstring_has_no_words() -> None:
    assert read_docs(lambda: None, ()) == ("", {})


def test_names_that_are_no_parameters_are_not_described() -> None:
    def calc(expression: str) -> None:
        """Work it out.

        Args:
            expression: such as 1+1
            precision: a parameter of an earlier version
        """

    assert set(read_docs(calc, ("expression",)).parameters) == {"expression"}
