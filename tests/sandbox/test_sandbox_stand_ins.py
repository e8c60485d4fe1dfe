"""What stands for an object of the program in the tests claims no ability that the object lacks."""

from collections.abc import Iterator

import pytest
from sandboxes import verdict_on

from freerun.sandbox.limits import Limits
from freerun.sandbox.sandbox import Sandbox

NOTHING = "class Thing:\n    __hash__ = None\ndef f(): return Thing()"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(Limits(seconds=20))
    sandbox.start()
    yield sandbox
    sandbox.close()


CLAIMS = (
    "callable(f())",
    "isinstance(f(), abc.Callable)",
    "isinstance(f(), abc.Iterable)",
    "isinstance(f(), abc.Iterator)",
    "isinstance(f(), abc.Sized)",
    "isinstance(f(), abc.Container)",
    "isinstance(f(), abc.Collection)",
    "isinstance(f(), abc.Hashable)",
    "isinstance(f(), abc.Sequence)",
    "isinstance(f(), abc.Reversible)",
    "issubclass(type(f()), abc.Iterable)",
    "hasattr(f(), '__iter__')",
    "hasattr(f(), '__call__')",
    "hasattr(f(), '__len__')",
    "hasattr(f(), '__contains__')",
    "hasattr(f(), '__getitem__')",
    "hasattr(f(), '__enter__')",
    "hasattr(f(), '__next__')",
    "getattr(f(), '__hash__', None) is not None",
)


@pytest.mark.parametrize("claim", CLAIMS)
def test_an_object_claims_no_ability_that_it_lacks(sandbox: Sandbox, claim: str) -> None:
    tests = f"import collections.abc as abc\nassert {claim}"
    assert "AssertionError" in verdict_on(sandbox, NOTHING, tests).reason


def test_a_function_that_is_returned_says_that_it_can_be_called(sandbox: Sandbox) -> None:
    tests = (
        "from collections.abc import Callable\nassert callable(f) and callable(f()) and isinstance(f(), Callable)"
    )
    assert verdict_on(sandbox, "def f(): return lambda: 3", tests).passed
    assert verdict_on(
        sandbox,
        "class Adder:\n    def __call__(self, x): return x\ndef f(): return Adder()",
        tests + "\nassert f()(3) == 3",
    ).passed
    assert "not callable" in verdict_on(sandbox, "def f(): return object()", "f()()").reason
    takes = "def f(g): return callable(g) and g(3)"
    assert verdict_on(sandbox, takes, "assert f(lambda x: x + 1) == 4").passed


def test_an_object_has_no_hash_of_its_own(sandbox: Sandbox) -> None:
    for tests in ("assert len({f(), f()}) == 2", "assert f() not in {1, 2}", "assert not {f(): 1}.get(2)"):
        assert "unhashable type: 'Remote'" in verdict_on(sandbox, NOTHING, tests).reason
    memoizes = "import functools\n@functools.cache\ndef f(g): return g(3)"
    assert verdict_on(sandbox, memoizes, "assert f(lambda x: x + 1) == 4").passed
