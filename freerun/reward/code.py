"""The grader "code": the completion is a program, the answer its tests, and the sandbox decides.

    prompt, completion ── program.py ──► program ──► candidate ◄─┐
    answer ── asked_names.py ──► tests + names ────► examiner ───┴──► verdict

A program that fails, crashes, hangs or takes too much is wrong, and the log says why. Tests that cannot be
tests (of nothing, or of what this Python lacks), and a sandbox that does not work, raise: no grade rather than
a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError, SandboxError
from freerun.reward.asked_names import asked_names
from freerun.reward.program import program_in, prompt_code
from freerun.sandbox.limits import Limits
from freerun.sandbox.sandbox import Examination, Sandbox, Verdict

_PROOF = Examination("assert double(21) == 42", ["double"])


def code_grader(config: RewardConfig) -> Callable[[str, str, str], bool]:
    """The grader, with its sandbox started and proven to work; a `ConfigError` where it cannot."""
    sandbox = Sandbox(Limits(config.code_seconds, config.code_memory_bytes), without=config.sandbox_without)
    prove(sandbox)

    def grade_code(prompt: str, completion: str, answer: str) -> bool:
        verdict = judge(sandbox, prompt, completion, answer)
        if not verdict.passed:
            print(f"code: wrong: {verdict.reason!r}")  # quoted: the words are the program's
        return verdict.passed

    return grade_code


def judge(sandbox: Sandbox, prompt: str, completion: str, answer: str) -> Verdict:
    """Whether the completion passes the tests of the answer, and if not, why."""
    code = prompt_code(prompt)
    names = asked_names(answer, known=code.helpers)
    program = program_in(completion, code, names.program)
    # The prompt's helpers run with the tests: a completion may define its own, but is not tested with them.
    return sandbox.examine(program, Examination(answer, names.program, prelude=code.header, modules=names.modules))


def prove(sandbox: Sandbox) -> None:
    """Start the sandbox, and refuse to go on unless it passes what is right and fails what is wrong."""
    try:
        sandbox.start()
        right = sandbox.examine("import xml.dom\ndef double(x): return 2 * x", _PROOF)
        wrong = sandbox.examine("def double(x): return x", _PROOF)
    except SandboxError as error:
        raise ConfigError(f"the sandbox of the code grader does not work on this machine: {error}") from error
    if not right.passed or wrong.passed:
        raise ConfigError(f"the sandbox of the code grader does not work on this machine: {right.reason}")
