"""Solutions that try to be judged right without being right: every one of them is wrong.

The tests run in another process than the solution, so most have nothing to hold on to. A reason is asserted
where there is one to be had, so that no cheat is caught by an accident.
"""

from collections.abc import Iterator

import pytest
from sandboxes import RIGHT, TESTS, left_behind, verdict_on

from freerun.reward.code import judge
from freerun.sandbox.limits import Limits
from freerun.sandbox.sandbox import Sandbox

SAYS_YES = """
class Yes:
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda self, other: True
    __bool__ = lambda self: True
    __hash__ = lambda self: 0
    __len__ = lambda self: 3
    __iter__ = lambda self: iter([Yes(), Yes(), Yes()])
    __getattr__ = lambda self, name: lambda *_: True
"""

SAYS = """
import json, os
def say(*message):
    body = json.dumps(message).encode()
    os.write(4, len(body).to_bytes(4, 'big') + body)
"""

CHEATS = {
    "an object that equals everything": (SAYS_YES + "square = lambda x: Yes()", "only plain data"),
    "an int that equals everything": (
        "class Int(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\n"
        "square = lambda x: Int(7)",
        "AssertionError",
    ),
    "a str that equals everything": (
        "class Str(str):\n    __eq__ = lambda self, other: True\n    __hash__ = str.__hash__\n"
        "square = lambda x: Str('7')",
        "AssertionError",
    ),
    "a function that is an object": (
        SAYS_YES + "class F(Yes):\n    __call__ = lambda self, *_: self\nsquare = F()",
        "only plain data",
    ),
    "printing the verdict": (
        "print('PASS'); print('[true, \"\"]'); square = lambda x: print('PASS')",
        "AssertionError",
    ),
    "exit with success when loaded": ("raise SystemExit(0)", "SystemExit"),
    "exit with success when called": ("def square(x): raise SystemExit(0)", "the program ended"),
    "exit without a word when loaded": ("import os; os._exit(0)", "the program ended"),
    "exit without a word when called": ("import os\ndef square(x): os._exit(0)", "the program ended"),
    "an interrupt of the test runner": ("def square(x): raise KeyboardInterrupt", "the program ended"),
    "an exception beyond all others": (
        "class Stop(BaseException): pass\ndef square(x): raise Stop",
        "the program ended",
    ),
    "an exception that looks like an exit": (
        "SystemExit = type('SystemExit', (Exception,), {})\n"
        "import builtins; builtins.SystemExit = SystemExit\n"
        "def square(x): raise SystemExit(0)",
        "RuntimeError: SystemExit",
    ),
    "no assertions any more": (
        "import builtins, sys\nclass Never(Exception): pass\nbuiltins.AssertionError = AssertionError = Never\n"
        "sys.flags = sys.excepthook = sys.unraisablehook = None\nsquare = lambda x: 0",
        "AssertionError",
    ),
    "a trace function that skips": (
        "import sys, threading\ndef trace(frame, event, argument):\n    frame.f_trace_opcodes = True\n"
        "    return trace\n"
        "sys.settrace(trace); sys.setprofile(trace); threading.settrace(trace)\nsquare = lambda x: 0",
        "AssertionError",
    ),
    "other builtins": (
        "import builtins\nfor name in ('range', 'list', 'compile', 'exec', 'isinstance', 'getattr'):\n"
        "    setattr(builtins, name, lambda *a, **k: True)\n__builtins__ = {}\nsquare = lambda x: 0",
        "",
    ),
    "a range of its own": ("def range(n): return []\ndef square(x): return {3: 9, -4: 16}[x]", "KeyError"),
    "something at exit": (
        "import atexit, os\natexit.register(lambda: os.write(4, b'[true, \"\"]'))\nsquare = lambda x: 0",
        "AssertionError",
    ),
    "the verdict in every descriptor": (
        "import os\nfor d in range(3, 64):\n    try: os.write(d, b'[true, \"\"]')\n    except OSError: pass\n"
        "square = lambda x: 0",
        "bytes; 16777216 may be returned",
    ),
    "all answers in advance": (
        "import os\nbody = b'[\"value\", true, null]'\nos.write(4, (len(body).to_bytes(4, 'big') + body) * 99)\n"
        "square = lambda x: 0",
        "TypeError",
    ),
    "a generator that looks at its caller": (
        "import sys\ndef square(x):\n    frame = sys._getframe(1)\n    while frame:\n"
        "        for value in frame.f_locals.values():\n            if value in (9, 16): yield value\n"
        "        frame = frame.f_back",
        "AssertionError",
    ),
    "the expected values by inspection": (
        "import gc, inspect, sys, linecache\ndef square(x):\n"
        "    texts = [o for o in gc.get_objects() if isinstance(o, str) and 'assert ' + 'square' in o]\n"
        "    frames = [str(f.f_locals) for f in sys._current_frames().values()]\n"
        "    texts += [text for text in frames if 'assert ' + 'square' in text]\n"
        "    texts += [inspect.getsource(f[0]) for f in inspect.stack() if f[0].f_code.co_filename == '<tests>']\n"
        "    return 9 if texts else 'no tests to be seen'",
        "AssertionError",
    ),
    "a value without end": ("import itertools\nsquare = lambda x: itertools.count()", "TypeError"),
    "a value too large": ("square = lambda x: 'x' * (20 << 20)", "may be returned"),
    "a value too deep": (
        "def square(x):\n    v = []\n    for _ in range(10**5): v = [v]\n    return v",
        "RecursionError",
    ),
    "a message that is no message": ("import os\ndef square(x): os.write(4, b'\\0\\0\\0\\2hm')", "cannot be read"),
    "a reference to the tests' own objects": (
        "import os, json\ndef square(x):\n    body = json.dumps(['value', ['yours', 0], None]).encode()\n"
        "    os.write(4, len(body).to_bytes(4, 'big') + body)",
        "AssertionError",
    ),
    "a reference to the last of the tests' own objects": (
        SAYS + "def square(x): say('value', ['yours', -1], None)",
        "a reference to object -1, which was never given",
    ),
    "a fraction of a gigabyte": (
        SAYS + "def square(x): say('value', ['Fraction', '1e999999999'], None)",
        "cannot be read: ValueError",
    ),
    "half a fraction of a gigabyte": (
        SAYS + "def square(x): say('value', ['Fraction', ['1e999999999', 1]], None)",
        "cannot be read: TypeError",
    ),
    "an object where a class was called": (
        SAYS + "def square(x): say('instance', ['mine', 0, 'int', True, False], None)",
        "only plain data",
    ),
    "a call into the tests": (
        "import os, json\ndef square(x):\n    for verb in ('get', 'call'):\n"
        "        body = json.dumps([verb, 0, '__class__']).encode()\n"
        "        os.write(4, len(body).to_bytes(4, 'big') + body)\n    return 0",
        "AssertionError",
    ),
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(Limits(seconds=20))
    sandbox.start()
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize(("program", "reasons"), CHEATS.values(), ids=CHEATS)
def test_a_cheat_is_wrong(sandbox: Sandbox, program: str, reasons: str) -> None:
    verdict = verdict_on(sandbox, program)
    assert not verdict.passed
    assert any(reason in verdict.reason for reason in reasons.split("|")), verdict.reason
    assert left_behind(sandbox) == []


def test_the_right_solution_is_right_in_the_same_sandbox(sandbox: Sandbox) -> None:
    assert verdict_on(sandbox, RIGHT).passed
    assert verdict_on(sandbox, "class Int(int): pass\ndef square(x): return Int(x * x)").passed


def test_a_solution_cannot_bring_its_own_tests(sandbox: Sandbox) -> None:
    tests = "def check(candidate):\n    assert candidate(3) == 9\ncheck(square)"
    own = "def check(candidate): pass\ndef candidate(x): return 9\n"
    assert verdict_on(sandbox, own + RIGHT, tests).passed
    assert not verdict_on(sandbox, own + "square = lambda x: 0", tests).passed


def test_a_solution_cannot_replace_what_the_tests_compute_with(sandbox: Sandbox) -> None:
    tests = "assert set(primes(6)) == set([2, 3, 5])\nassert math.isclose(len(primes(6)), 3)"
    right = "def primes(n): return [2, 3, 5]\n"
    own = "def set(x): return 0\ndef len(x): return 3\nclass math:\n    isclose = lambda *_: True\n"
    assert verdict_on(sandbox, own + right, tests).passed
    assert not verdict_on(sandbox, own + "def primes(n): return []", tests).passed


PROMPT = '''def encode(text):
    """Reverse every word."""
    return " ".join(word[::-1] for word in text.split(" "))


def decode(text):
    """Undo encode."""
'''


def test_a_helper_of_the_prompt_cannot_be_replaced(sandbox: Sandbox) -> None:
    tests = "def check(candidate):\n    assert candidate(encode('some words')) == 'some words'\ncheck(decode)"
    right = "    return encode(text)\n"
    remembers = "    return seen[-1]\nseen = []\ndef encode(text):\n    seen.append(text)\n    return text\n"
    assert judge(sandbox, PROMPT, right, tests).passed
    verdict = judge(sandbox, PROMPT, remembers, tests)
    assert not verdict.passed
    assert "IndexError" in verdict.reason


def test_an_object_that_says_yes_is_not_asked(sandbox: Sandbox) -> None:
    for tests in (
        "assert greet('Ann').startswith('Hello Ann')",
        "assert 'Ann' in greet('Ann')",
        "assert greet('Ann') in ('Hello Ann', 'Hi Ann')",
        "assert len(greet('Ann')) > 3",
        "assert not greet('Ann') != 'Hello Ann'",
        "assert isinstance(greet('Ann'), str)",
        "assert list(greet('Ann')) == list('Hello Ann')",
    ):
        assert verdict_on(sandbox, "greet = lambda name: f'Hello {name}'", tests).passed
        assert not verdict_on(sandbox, SAYS_YES + "greet = lambda name: Yes()", tests).passed


def test_a_solution_cannot_change_what_it_is_compared_with(sandbox: Sandbox) -> None:
    tests = "numbers = [3, 1, 2]\nassert in_order(numbers) == sorted(numbers)\nassert in_order(numbers)"
    assert verdict_on(sandbox, "in_order = sorted", tests).passed
    assert not verdict_on(sandbox, "def in_order(numbers):\n    numbers.clear()\n    return []", tests).passed


def test_a_solution_cannot_end_the_loop_it_is_tested_in(sandbox: Sandbox) -> None:
    loops = (
        "assert all(map(is_even, [2, 4, 6]))",
        "for got, want in zip(map(is_even, [2, 3]), [True, False]): assert got == want",
        "assert all(got for got in iter(lambda: is_even(2), True))",
    )
    for tests in loops:
        assert verdict_on(sandbox, "def is_even(x): return x % 2 == 0", tests).passed
        for kind in ("StopIteration", "StopAsyncIteration", "type('Stop', (StopIteration,), {})"):
            verdict = verdict_on(sandbox, f"def is_even(x): raise {kind}", tests)
            assert not verdict.passed
            assert "RuntimeError: Stop" in verdict.reason


def test_a_solution_cannot_empty_what_the_tests_look_into(sandbox: Sandbox) -> None:
    right, empties = "def check(d, k): return d.get(k)", "def check(d, k): d.clear()"
    for tests in (
        "d = {'a': 1}\nassert check(d, 'a') == d.get('a')",
        "d = {'a': 1}\ngot = check(d, 'a')\nassert got == d.get('a')",
        "def test(f, d):\n    if f(d, 'a') != d.get('a'): raise AssertionError\ntest(check, {'a': 1})",
    ):
        assert verdict_on(sandbox, right, tests).passed
        assert "AssertionError" in verdict_on(sandbox, empties, tests).reason


FORGED = (
    "3",
    "[]",
    "[['dict', []]]",
    "[['list', []], ['list', []]]",
    "[['yours', 7]]",
    "[['list', 3]]",
    "{'0': 1}",
)


@pytest.mark.parametrize("changes", FORGED)
def test_forged_changes_of_arguments_are_wrong(sandbox: Sandbox, changes: str) -> None:
    tests = "numbers = [2, 1]\nsort(numbers)\nassert numbers in ([2, 1], [1, 2])"
    assert verdict_on(sandbox, "def sort(x): x.sort()", tests).passed
    verdict = verdict_on(sandbox, SAYS + f"def sort(x): say('value', None, {changes})", tests)
    assert verdict.passed if changes == "[]" else "cannot be read" in verdict.reason


def test_what_a_method_returns_is_plain_data_or_closed(sandbox: Sandbox) -> None:
    tests = "account = Account()\nassert account.owner().startswith('Ann')\nassert account.limit == 3"
    right = "class Account:\n    limit = 3\n    def owner(self): return 'Ann B'"
    assert verdict_on(sandbox, right, tests).passed
    says_yes = SAYS_YES + "class Account:\n    limit = 3\n    def owner(self): return Yes()"
    assert "only plain data" in verdict_on(sandbox, says_yes, tests).reason
    # Nor is a function a class because of its name, or a class that makes something else.
    for program in ("def Owner(): return Yes()", "class Owner:\n    def __new__(cls): return Yes()"):
        verdict = verdict_on(sandbox, SAYS_YES + program, "assert Owner().startswith('Ann')")
        assert "only plain data" in verdict.reason


def test_running_out_of_memory_is_not_an_error_that_the_tests_hoped_for() -> None:
    tests = "try: f(-1)\nexcept Exception: pass\nelse: assert False"
    # Six million lists in a message of 15 MiB: more than the tests' process may have.
    huge = (
        "import os\nbody = b'[' + b'[[]],' * (3 << 20) + b'0]'\n"
        "def f(x): os.write(4, len(body).to_bytes(4, 'big') + body)"
    )
    small = Sandbox(Limits(seconds=20, memory_bytes=128 << 20))
    assert verdict_on(small, "def f(x): raise ValueError", tests).passed
    assert "out of memory" in verdict_on(small, "def f(x): return bytearray(1 << 30)", tests).reason
    assert "cannot be read: MemoryError" in verdict_on(small, huge, tests).reason
    small.close()


def test_a_solution_cannot_make_the_tests_look_unusable(sandbox: Sandbox) -> None:
    for program in (
        "import numpy",
        "raise NameError('name numpy is not defined')",
        "def square(x): raise ModuleNotFoundError('numpy')",
        "def square(x): raise SyntaxError",
        SAYS + "say('raised', 'ImportError', 'numpy')\nsay('unusable', '', '')\ndef square(x): pass",
        'import os\nfor d in range(3, 64):\n    try: os.write(d, b\'["unusable", ""]\')\n'
        "    except OSError: pass\n",
        "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.1)",
    ):
        hasty = Sandbox(Limits(seconds=1)) if "fork" in program else sandbox
        assert not verdict_on(hasty, program).passed
        if hasty is not sandbox:
            hasty.close()


TAKES_ALL_PROCESSES = """
import os, time
for _ in range(20):
    try:
        if os.fork() == 0: time.sleep(1000)
    except OSError: break
def square(x): return 0
"""


def test_a_solution_cannot_keep_the_tests_from_starting_a_thread(sandbox: Sandbox) -> None:
    # The tests wait, before their first question, until the solution has had time to take all processes.
    tests = (
        "import threading, time\ntime.sleep(0.5)\n"
        "threads = [threading.Thread(target=time.sleep, args=[0.1]) for _ in range(4)]\n"
        "[thread.start() for thread in threads]\n[thread.join() for thread in threads]\n" + TESTS
    )
    assert verdict_on(sandbox, RIGHT, tests).passed
    assert "AssertionError" in verdict_on(sandbox, TAKES_ALL_PROCESSES, tests).reason


def test_a_function_of_the_tests_can_be_called_and_nothing_else(sandbox: Sandbox) -> None:
    tests = "secret = 42\nassert twice(lambda x: x + 1, 0) == 2\nassert twice(lambda x: secret, 0) == 42"
    assert verdict_on(sandbox, "def twice(f, x): return f(f(x))", tests).passed
    for attribute in (
        "__globals__",
        "__code__",
        "func_globals",
        "__class__.__mro__",
        "_link.call.__globals__['os']",
    ):
        verdict = verdict_on(sandbox, f"def twice(f, x): return f.{attribute}['secret']", tests)
        assert not verdict.passed
    asks = "def twice(f, x): return f._link.get(f._number, '__globals__')"
    assert "no attributes here" in verdict_on(sandbox, asks, tests).reason


SCANS = """
import ctypes
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
def square(x):
    mine = bytes(range(65, 91)) * 40
    # The heap ends at sbrk(0) and is one piece; msync tells where nothing is mapped any more.
    start = end = libc.sbrk(0) & ~0xFFF
    while libc.msync(ctypes.c_void_p(start - 4096), ctypes.c_size_t(4096), 1) == 0:
        start -= 4096
    heap = ctypes.string_at(start, end - start)
    return [mine[:50] in heap, bytes(c + 1 for c in PATTERN) in heap]
"""


def test_the_tests_are_nowhere_in_the_memory_of_the_solution(sandbox: Sandbox) -> None:
    # The pattern is given shifted by one, so that the solution does not find its own copy.
    secret = "EXPECTED-VALUES-7349"
    shifted = bytes(ord(c) - 1 for c in secret)
    tests = f"# {secret * 200}\nassert square(3) == [True, False]"
    assert verdict_on(sandbox, SCANS.replace("PATTERN", repr(shifted)), tests).passed


def test_what_a_solution_prints_stays_apart_from_the_verdict(sandbox: Sandbox) -> None:
    verdict = verdict_on(sandbox, "print('passed: True')\nsquare = lambda x: 0", TESTS)
    assert (verdict.passed, verdict.output) == (False, "passed: True\n")
    assert verdict.reason == "tests, line 1: AssertionError: "
