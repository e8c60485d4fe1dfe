"""The arguments of every verb: its own options, and keys of a recipe as `--section.key value`."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from freerun.config.load import nearest_keys
from freerun.errors import FreerunError

if TYPE_CHECKING:
    from freerun.events.best import CheckpointVersion


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors as one line and keeps the line breaks of its texts."""

    section = ""
    """Section of keys that are written without one, with its dot."""

    def __init__(self, prog: str, description: str, epilog: str = "", *, usage: str) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def take(self, name: str, metavar: str, explanation: str, **options: Any) -> None:
        """An argument with a value; `type` is a path unless `options` say otherwise."""
        self.add_argument(name, metavar=metavar, help=explanation, **{"type": Path, **options})

    def take_version(self) -> None:
        """Which checkpoint of a run is meant."""
        words = "the run's checkpoint of this version, or best: highest held-out accuracy; default: the newest"
        self.take("--version", "N", words, type=version)

    def flag(self, name: str, explanation: str) -> None:
        self.add_argument(name, action="store_true", help=explanation)

    def parse_own(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The verb's own options; refuses one that it does not have, by its name."""
        args, unknown = self.parse_known_args(arguments)
        if unknown:
            kind = "option" if unknown[0].startswith("-") else "argument"
            raise FreerunError(f'{self.prog} takes no {kind} "{unknown[0]}"; {self._remedy(unknown[0])}')
        return args

    def parse_with_keys(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The verb's own options, and the `--section.key value` overrides for `load_recipe`."""
        own, overrides = split_overrides(arguments)
        return self.parse_own(own), overrides

    def _remedy(self, option: str) -> str:
        name = option.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=0.8) or [
            f"--{key}" for key in nearest_keys(self.section + name.removeprefix("--"))
        ]
        if near and near[0] == name:  # a section without its key
            return f'write "{name}.KEY value"; "freerun train --help" lists the keys'
        return f'did you mean "{near[0]}"?' if near else f'"{self.prog} --help" explains its arguments'

    def error(self, message: str) -> NoReturn:
        raise FreerunError(f'{message}; "{self.prog} --help" explains its arguments')


def version(text: str) -> CheckpointVersion:
    """A number, or `best`."""
    return "best" if text == "best" else int(text)


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The verb's own arguments, and the `--section.key value` overrides between them.

    argparse cannot do this: it would take the value of an option it does not know for a positional argument.
    """
    own: list[str] = []
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, has_value, _ = argument.partition("=")
        if not name.startswith("--") or "." not in name:
            own.append(argument)
            continue
        overrides.append(argument)
        if not has_value and rest and not rest[0].startswith("--"):
            overrides.append(rest.pop(0))
    return own, overrides
