"""The code grader judges right, and says when it cannot."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from code_tasks import canonical_tasks, data_directory
from hypothesis import given, settings
from hypothesis import strategies as st
from process_table import children_running
from sandboxes import RIGHT, TESTS, WRONG, descendants, left_behind, verdict_on

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError, SandboxError
from freerun.processes.local import LocalLauncher
from freerun.reward.code import check_absences, judge
from freerun.reward.pool import GraderPool
from freerun.sandbox import plain
from freerun.sandbox.limits import Limits
from freerun.sandbox.sandbox import Sandbox
from freerun.types import Completion, Grade, GradeFailed, Prompt, Reward, Span


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(Limits(seconds=30))
    sandbox.start()
    yield sandbox
    sandbox.close()


def test_canonical_solutions_pass(sandbox: Sandbox) -> None:
    directory = data_directory()
    if directory is None:
        pytest.skip("HumanEval and MBPP are not here: set FREERUN_DATA to the directory that holds them")
    sample = canonical_tasks(directory)[::10]
    wrong = {p.key: judge(sandbox, p.prompt, p.completion, p.answer).reason for p in sample}
    assert {key: reason for key, reason in wrong.items() if reason} == {}
    assert len(sample) == 60


OWN_TASKS = {
    "a function": (RIGHT, TESTS),
    "a function with the name of a built-in": ("def sum(a, b):\n    return a * b", "assert sum(2, 3) == 6"),
    "several functions": (
        "def f(x): return x + 1\ndef g(x): return f(x) * 2",
        "assert f(1) == 2\nassert g(1) == 4",
    ),
    "a constant": ("LIMIT = (1, 2.5, 'x', None, {3})", "assert LIMIT == (1, 2.5, 'x', None, {3})"),
    "an exception": (
        "class Bad(ValueError): pass\ndef f(x): raise Bad('no')",
        "try:\n    f(1)\nexcept ValueError as error:\n    assert str(error) == 'no'\nelse:\n    assert False",
    ),
    "an iterator": ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]\nassert next(f(1)) == 0"),
    "fractions and decimals": (
        "from fractions import Fraction\nfrom decimal import Decimal\n"
        "def f(n): return Fraction(n, 7 ** 6000), Decimal(n)",
        "from fractions import Fraction\nassert f(3) == (Fraction(3, 7 ** 6000), 3)",
    ),
    "in place, thrown away": (
        "def f(x): x.sort()",
        "def check(candidate):\n    x = [2, 1]\n    candidate(x)\n    assert x == [1, 2]\ncheck(f)",
    ),
    "in place": ("def f(x): x.sort()", "x = [2, 1]\nassert f(x) is None\nassert x == [1, 2]"),
    "a function as argument": ("def f(g, x): return g(g(x))", "assert f(lambda n: n * 2, 3) == 12"),
    "a function as result": ("def adder(n): return lambda x: x + n", "assert adder(2)(3) == 5"),
    "a type as argument": ("def f(x, t): return [v for v in x if type(v) is t]", "assert f([1, 'a'], int) == [1]"),
    "a class": (
        "class Stack:\n    def __init__(self): self.items = []\n"
        "    def push(self, x): self.items.append(x)\n    def pop(self): return self.items.pop()",
        "stack = Stack()\nstack.push(3)\nassert stack.items == [3]\nassert stack.pop() == 3",
    ),
    "a truth that is an object": (
        "import re\ndef f(x): return re.match('a', x)",
        "assert f('ab')\nassert not f('b')",
    ),
    "a counter": (
        "from collections import Counter\nf = Counter",
        "assert f('aab') == {'a': 2, 'b': 1}\nassert type(f('')) is dict",
    ),
    "large numbers": ("def f(n): return 7 ** n", "assert f(30_000) == 7 ** 30_000\nassert f(0.5) == 7 ** 0.5"),
    "what a script would do is not done": (RIGHT + "if __name__ == '__main__': square = None", TESTS),
}


@pytest.mark.parametrize(("program", "tests"), OWN_TASKS.values(), ids=OWN_TASKS)
def test_a_right_program_passes(sandbox: Sandbox, program: str, tests: str) -> None:
    verdict = verdict_on(sandbox, program, tests)
    assert verdict.passed, verdict.reason
    assert left_behind(sandbox) == []


def test_a_wrong_program_fails_with_the_reason(sandbox: Sandbox) -> None:
    reasons = {
        WRONG: "tests, line 1: AssertionError: ",
        "def cube(x): return x": "NameError: the program does not define square",
        "def square(x): return x.y": "tests, line 1: AttributeError: 'int' object has no attribute 'y'",
        "1 / 0": "ImportError: the program fails when it is loaded: ZeroDivisionError: division by zero",
    }
    assert {program: verdict_on(sandbox, program).reason for program in reasons} == reasons


UNUSABLE = {
    "a package": ("import numpy as np\nassert square(3) == np.int64(9)", "No module named 'numpy'"),
    "a package within a function": (
        "def check(candidate):\n    from numpy import array\n    assert candidate(3) == 9\ncheck(square)",
        "tests, line 2: ModuleNotFoundError",
    ),
    "a package after the first question": (
        "assert square(3) == 9\nimport numpy",
        "tests, line 2: ModuleNotFoundError",
    ),
    "a name of nobody": ("limit = later\nlater = 3\nassert square(3) == 9", "NameError: name 'later'"),
    "a return": ("assert square(3) == 9\nreturn", "SyntaxError: 'return' outside function"),
}


@pytest.mark.parametrize(("tests", "complaint"), UNUSABLE.values(), ids=UNUSABLE)
def test_tests_that_no_program_could_pass_are_no_grade(sandbox: Sandbox, tests: str, complaint: str) -> None:
    for program in (RIGHT, WRONG, "import os; os._exit(0)"):
        with pytest.raises(ValueError, match=f"cannot be run with any program.*{complaint}"):
            verdict_on(sandbox, program, tests)


def test_a_package_that_the_tests_can_do_without_is_not_missed(sandbox: Sandbox) -> None:
    tests = "try:\n    import numpy\nexcept ImportError:\n    numpy = None\nassert square(3) == 9"
    assert verdict_on(sandbox, RIGHT, tests).passed
    assert not verdict_on(sandbox, WRONG, tests).passed


def test_the_same_program_meets_the_same_fate() -> None:
    random = "import random\nprint(random.random(), hash('x'), list({'a', 'b', 'c'}))"
    outputs = set()
    for _ in range(2):
        sandbox = Sandbox()
        outputs |= {sandbox.run(random).output, sandbox.run(random).output}
        sandbox.close()
    assert len(outputs) == 1


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=5,
)


@settings(max_examples=25, database=None)
@given(PLAIN)
def test_plain_data_arrives_as_it_was_sent(value: object) -> None:
    assert repr(plain.decode(plain.encode(value), plain.refuse)) == repr(value)


# When the sandbox itself does not work


HANGS = "import time\ntime.sleep(1000)"


def kill_server_at_work(launcher: int, *, is_executor: bool = False) -> None:
    """Wait until a program and its tests are being executed, then kill the server beneath, or its executor."""
    while len(found := descendants(launcher)) < 4:
        time.sleep(0.01)
    os.kill(found[1 if is_executor else 0], signal.SIGKILL)


def test_a_dead_fork_server_is_an_error_and_replaced(sandbox: Sandbox) -> None:
    assert verdict_on(sandbox, RIGHT).passed
    assert sandbox.pid is not None
    killer = threading.Thread(target=kill_server_at_work, args=[sandbox.pid])
    killer.start()
    with pytest.raises(SandboxError, match="fork server of the sandbox died"):
        verdict_on(sandbox, HANGS)
    killer.join()
    assert verdict_on(sandbox, RIGHT).passed


def test_a_dead_executor_is_an_error_and_costs_one_execution(sandbox: Sandbox) -> None:
    assert verdict_on(sandbox, RIGHT).passed
    before = sandbox.pid
    killer = threading.Thread(target=kill_server_at_work, args=[before], kwargs={"is_executor": True})
    killer.start()
    with pytest.raises(SandboxError, match="lost an execution"):
        verdict_on(sandbox, HANGS)
    killer.join()
    assert verdict_on(sandbox, RIGHT).passed
    assert not verdict_on(sandbox, WRONG).passed
    assert sandbox.pid == before
    assert left_behind(sandbox) == []


def test_a_program_that_cannot_be_locked_up_is_an_error() -> None:
    sandbox = Sandbox(Limits(memory_bytes=1 << 64))
    with pytest.raises(SandboxError, match="could not lock up"):
        sandbox.run("pass")
    sandbox.close()


LACKING = """
import ctypes, struct, sys
from freerun.errors import ConfigError
from freerun.reward.code import prove
from freerun.sandbox import seccomp, syscalls
from freerun.sandbox.sandbox import Examination, Sandbox
number, feature = int(sys.argv[1]), sys.argv[2]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7FFF0000)]
syscalls.forbid_new_privileges()
seccomp.install(b"".join(struct.pack("=HBBI", *instruction) for instruction in code))
try:
    prove(Sandbox())
except ConfigError as error:
    print(error)
sandbox = Sandbox(without=[feature])
print(sandbox.examine("def f(x): return x", Examination("assert f(3) == 3", ["f"])).passed)
print(sandbox.examine("def f(x): return x", Examination("assert f(3) == 4", ["f"])).passed)
print(sandbox.run(sys.argv[4]).output.split())
print(sandbox.run(sys.argv[3]).output)
sandbox.close()
"""

LOOK = """
import os
try: open('/etc/hostname')
except OSError: print('no-file')
try:
    if os.fork() == 0: os._exit(0)
    print('a-fork')
except OSError: print('no-fork')
"""

REACHES_OUT = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
reads, _ = os.pipe()
target = TARGET
for attempt in (
    lambda: os.chmod(target, 0o777),
    lambda: libc.fchmod(0, 0o777),
    lambda: os.utime(target, (0, 0)),
    lambda: os.truncate(target, 0),
    lambda: libc.flock(reads, 2),
    lambda: os.kill(os.getppid(), 0),
    lambda: libc.prlimit(os.getppid(), 7, None, None),
    lambda: libc.fcntl(reads, 8, os.getppid()),
    lambda: libc.fcntl(reads, 10, 9),
):
    ctypes.set_errno(0)
    try: number = ctypes.get_errno() if attempt() == -1 else 0
    except OSError as error: number = error.errno
    print(errno.errorcode.get(number, 'DONE'), end=' ')
"""


def run_lacking(number: int, feature: str, program: str = "") -> list[str]:
    """A filter on the process makes the kernel answer ENOSYS, as one without the system call would."""
    command = [sys.executable, "-c", LACKING, str(number), feature, program, LOOK]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


LACKS = [(272, "namespaces", "no-fork"), (444, "landlock", "a-fork"), (317, "seccomp", "a-fork")]


@pytest.mark.parametrize(("number", "feature", "fork"), LACKS)
def test_a_kernel_that_lacks_a_feature_is_refused_by_name(number: int, feature: str, fork: str) -> None:
    refusal, *rest = run_lacking(number, feature)
    assert refusal.startswith(f"the sandbox needs {feature}, which this machine refuses")
    assert f'reward.sandbox_without = ["{feature}"]' in refusal
    assert rest[:3] == ["True", "False", f"['no-file', '{fork}']"]


def test_without_namespaces_a_program_reaches_neither_files_nor_processes_of_its_user(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.write_text("content")
    before = target.stat()
    *_, attempts = run_lacking(272, "namespaces", REACHES_OUT.replace("TARGET", repr(str(target))))
    assert attempts.split() == ["EPERM"] * 9
    after = target.stat()
    assert (after.st_mode, after.st_mtime, after.st_size) == (before.st_mode, before.st_mtime, before.st_size)


def test_out_of_memory_the_kernel_takes_the_sandbox_first(sandbox: Sandbox) -> None:
    sandbox.run("pass")
    assert sandbox.pid is not None
    for pid in (sandbox.pid, *descendants(sandbox.pid)):
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"


def test_a_sandbox_without_walls_is_no_sandbox() -> None:
    with pytest.raises(ConfigError, match="keep one"):
        check_absences(RewardConfig(sandbox_without=("namespaces", "landlock")))
    with pytest.raises(ConfigError, match='names "selinux"; the sandbox knows namespaces, landlock, seccomp'):
        check_absences(RewardConfig(sandbox_without=("selinux",)))
    with pytest.raises(ConfigError, match=r"must be at least 1.0 s less than reward.timeout_seconds = 10"):
        RewardConfig(grader="code", code_seconds=9.5, timeout_seconds=10)


# In the pool


TOKEN_IDS, LOGPROBS = np.array([1], np.int32), np.array([-0.5], np.float32)


def completion_of(text: str) -> Completion:
    return Completion(token_ids=TOKEN_IDS, logprobs=LOGPROBS, spans=(Span(0, 1),), finish_reason="stop", text=text)


def sandbox_launcher() -> int:
    """The process above the fork server that the pool's grader process has started."""
    (grader,) = children_running("freerun.reward.worker")
    return descendants(grader.pid)[-2]


def test_in_the_pool_a_hostile_program_is_wrong_and_a_broken_sandbox_no_grade(tmp_path: Path) -> None:
    async def grades() -> list[Grade]:
        pool = GraderPool(
            RewardConfig(grader="code"),
            max_completion_tokens=16,
            launcher=LocalLauncher(tmp_path, {}),
            start_seconds=60,
            on_death=lambda worker, reason, is_restarted: None,
        )
        await pool.start()
        try:
            prompt = Prompt(ordinal=0, key="square", token_ids=TOKEN_IDS, text="Write square.", answer=TESTS)
            found = [await pool.grade(prompt, completion_of(RIGHT))]
            found.append(await pool.grade(prompt, completion_of("import os\nos._exit(0)")))
            killing = asyncio.to_thread(kill_server_at_work, sandbox_launcher())
            broken, _ = await asyncio.gather(pool.grade(prompt, completion_of(HANGS)), killing)
            found.append(broken)
            found.append(await pool.grade(prompt, completion_of(RIGHT)))
            return found
        finally:
            await pool.close()

    right, hostile, broken, again = asyncio.run(grades())
    assert (right, hostile, again) == (Reward(5.0, True), Reward(-5.0, False), Reward(5.0, True))
    assert isinstance(broken, GradeFailed)
    assert "SandboxError" in broken.reason
    assert "code: wrong: 'the program ended" in (tmp_path / "grader-0.log").read_text()
