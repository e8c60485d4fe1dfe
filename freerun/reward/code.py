"""The grader "code": the completion is a program, the answer its tests, and the sandbox decides.

    prompt, completion ── program.py ──► program ──► candidate ◄─┐
    answer ── program.py ──► tests + names ────────► examiner ───┴──► verdict

A program that fails, crashes, hangs or uses too much is wrong, and the log says why. Tests that are unusable
(they test nothing, or need what this Python lacks) raise, and so does a sandbox that does not work: no grade is
better than a wrong one.
"""

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError, SandboxError
from freerun.reward.program import asked_names, program_in, prompt_code
from freerun.reward.verdict import GraderFunction
from freerun.sandbox.limits import Limits
from freerun.sandbox.sandbox import FEATURES, Examination, FeatureError, Sandbox, Verdict
from freerun.types import Prompt

_PROOF = Examination("assert double(21) == 42", ["double"])


def check_absences(config: RewardConfig) -> None:
    """Raise if `reward.sandbox_without` is invalid."""
    names = config.sandbox_without
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


def check_tests(prompt: Prompt) -> None:
    """Raise `ValueError` unless the answer is a Python program that calls for a function."""
    asked_names(prompt.answer, known=prompt_code(prompt.text).helpers)


def code_grader(config: RewardConfig) -> GraderFunction:
    """The grader, with its sandbox started and tested; raises `ConfigError` if the sandbox does not work."""
    sandbox = Sandbox(Limits(config.code_seconds, config.code_memory_bytes), without=config.sandbox_without)
    prove(sandbox)

    def grade_code(prompt: str, completion: str, answer: str) -> bool:
        verdict = judge(sandbox, prompt, completion, answer)
        if not verdict.passed:
            print(f"code: wrong: {verdict.reason!r}")  # quoted: the program wrote this text
        return verdict.passed

    return grade_code


def judge(sandbox: Sandbox, prompt: str, completion: str, answer: str) -> Verdict:
    """Whether the completion passes the tests in the answer, and if not, why."""
    code = prompt_code(prompt)
    names = asked_names(answer, known=code.helpers)
    program = program_in(completion, code, names.program)
    # The prompt's helpers run with the tests: a completion may define its own, but is not tested with them.
    return sandbox.examine(program, Examination(answer, names.program, prelude=code.header, modules=names.modules))


def prove(sandbox: Sandbox) -> None:
    """Start the sandbox; raise `ConfigError` unless it passes a correct program and fails a wrong one."""
    try:
        sandbox.start()
        right = sandbox.examine("import xml.dom\ndef double(x): return 2 * x", _PROOF)
        wrong = sandbox.examine("def double(x): return x", _PROOF)
    except FeatureError as error:
        remedy = f'allow it with reward.sandbox_without = ["{error.feature}"], or use another machine'
        raise ConfigError(f"{error}; {remedy}") from error
    except SandboxError as error:
        raise ConfigError(f"the sandbox of the code grader does not work on this machine: {error}") from error
    if not right.passed or wrong.passed:
        raise ConfigError(f"the sandbox of the code grader does not work on this machine: {right.reason}")
