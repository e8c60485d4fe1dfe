"""Finds the last number of a text, exactly: no floats, no limit on digits, no text that makes it fail.

What counts as one number:

    42   -3   −3   +7   3.0   .5   1,234.50   1e3      signs, decimals, thousands, exponents
    $5   -$5   $-5   42.   \\boxed{42}                   what surrounds it is ignored
    1/2                                                a fraction of two whole numbers (not 1/2/2024)

A minus is a sign only where no operand precedes it: `10-3` ends in 3, `= -3` in -3. A percent sign is ignored:
`50%` is 50. LaTeX fractions and expressions need the `math` grader.
"""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import NamedTuple

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_NUMBER = re.compile(
    rf"""
    (?P<sign> (?<![\w.)\]}}]) [-+−] )?  \$?  (?P<late_sign> (?<=\$) [-+−] )?
    (?:
        (?<!/) (?P<numerator> {_WHOLE} ) / (?P<denominator> {_WHOLE} ) (?! [./]?[0-9] | / )
      | (?P<decimal> (?: {_WHOLE} (?:\.[0-9]+)? | \.[0-9]+ ) (?: [eE] [-+]? [0-9]{{1,4}} (?![0-9]) )? )
    )
    """,
    re.VERBOSE,
)
_DIGITS = frozenset("0123456789")
_CHARACTERS = _DIGITS | frozenset("+-−$.,/eE")

# Products of decimals are exact here: a completion of ten thousand digits is compared, not rounded.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


class Ratio(NamedTuple):
    """A number as it was written: a decimal, or a fraction of two."""

    numerator: Decimal
    denominator: Decimal

    def is_equal_to(self, other: Ratio) -> bool:
        if not (self.denominator and other.denominator):
            return False  # a division by zero equals nothing, not even itself
        return _EXACT.multiply(self.numerator, other.denominator) == _EXACT.multiply(
            other.numerator, self.denominator
        )


def last_number(text: str) -> Ratio | None:
    """The last number in the text, or None if there is none."""
    matches = list(_NUMBER.finditer(text, _start_of_last_run(text)))
    return _to_ratio(matches[-1]) if matches else None


def _start_of_last_run(text: str) -> int:
    """The start of the run of number characters that contains the last digit."""
    # The last number cannot begin earlier; scanning a whole long completion takes a hundred times as long.
    position = len(text)
    while position and text[position - 1] not in _DIGITS:
        position -= 1
    while position and text[position - 1] in _CHARACTERS:
        position -= 1
    return position


def _to_ratio(match: re.Match[str]) -> Ratio:
    sign = Decimal(-1 if (match["sign"] or match["late_sign"] or "+") in "-−" else 1)
    numerator = _to_decimal(match["numerator"] or match["decimal"])
    return Ratio(_EXACT.multiply(sign, numerator), _to_decimal(match["denominator"] or "1"))


def _to_decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))
