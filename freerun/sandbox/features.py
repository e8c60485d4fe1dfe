"""What the sandbox needs of the kernel, by the names that `reward.sandbox_without` uses."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable

from freerun.errors import ConfigError

FEATURES = {
    "namespaces": "a program could see which processes and files there are, not what is in them; "
    "it may not start processes, nor write",
    "landlock": "only the namespaces keep a program from files",
    "seccomp": "a program may make any system call: sockets, ptrace",
}
"""And what is lost without each."""


def check_allowed_absences(names: Iterable[str]) -> None:
    """Refuse a `reward.sandbox_without` that makes no sense."""
    for name in names:
        if name not in FEATURES:
            raise ConfigError(
                f'config: reward.sandbox_without names "{name}"; the sandbox knows {", ".join(FEATURES)}'
            )
    if {"namespaces", "landlock"} <= set(names):
        raise ConfigError(
            'config: reward.sandbox_without names both "namespaces" and "landlock"; '
            "without both nothing keeps a program from your files: keep one"
        )


def check_platform() -> None:
    """Refuse a machine whose system calls have other numbers, or are not Linux's."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ConfigError(
            "the sandbox of the code grader needs Linux on x86_64, "
            f"this is {sys.platform} on {platform.machine()}; grade code on another machine"
        )


def check_missing(missing: dict[str, str], allowed: Iterable[str]) -> None:
    """Refuse to run without a feature, unless the recipe allows it."""
    for name, problem in missing.items():
        if name not in allowed:
            raise ConfigError(
                f"the sandbox of the code grader needs {name}, which this machine refuses ({problem}); without it "
                f'{FEATURES[name]}; allow it with reward.sandbox_without = ["{name}"], or use another machine'
            )
    if {"namespaces", "landlock"} <= set(missing):
        raise ConfigError("the sandbox of the code grader needs namespaces or landlock; this machine has neither")
