"""Calls between the untrusted program and its tests, over one socket, in plain data.

    examiner ── ["get", 0, "f"] ───────────► candidate     object 0 is the program's module
    examiner ◄─ ["value", ["mine", 1, …]] ── candidate
    examiner ── ["call", 1, [args, kwargs]]► candidate
    examiner ◄─ ["call", 1, …] ───────────── candidate     a function the tests passed as an argument
    examiner ── ["value", …] ──────────────► candidate
    examiner ◄─ ["value", …, changed] ────── candidate     and what it did to its arguments, if it returns None
    examiner ◄─ ["raised", "ValueError", …]                or what it raised

"class" and "instance" replace "value" where the result is a class, or a direct instance of the called class.

The two sides differ in two ways. Only the program's objects have attributes: through a function of the tests
one could reach its globals, and with them everything. And only the program accepts changes to its arguments
immediately; the tests must ask for them (`in_place`).
"""

import builtins
import json
import socket
from typing import Any, NoReturn

from freerun.sandbox.limits import MESSAGE_BYTES
from freerun.sandbox.plain import NotPlainError, decode, encode

Frame = list[Any]


class LinkLost(BaseException):
    """The other side is gone or sends garbage. Not an `Exception`: a test that catches those must not continue."""


class Remote:
    """An object of the other side. If it is open, its attributes can be read.

    It compares with nothing and has no hash: the object's own code would answer, and it may be a solution that
    equals everything. For the same reason it is closed unless it is a class that the tests name, or a direct
    instance of one: `f(x).startswith(y)` must not be answered by an object that says yes, and the result of a
    method is trusted no more than that of a function. Its truth value is fixed.

    It defines nothing that it cannot do, not even to refuse it: `isinstance(f(x), Iterable)` is true for a class
    that has `__iter__`. So it is neither iterable nor sized; only subclasses are hashable or callable.
    """

    def __init__(
        self, link: "CallLink", number: int, description: str, *, is_true: bool, kind: str = "value"
    ) -> None:
        self._link = link
        self._number = number
        self._description = description
        self._is_true = is_true
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._kind == "value":
            self._refuse()
        return self._link.get(self._number, name)

    def __bool__(self) -> bool:
        return self._is_true

    def __repr__(self) -> str:
        return f"<{self._description} of the program>"

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotPlainError(f"the program returned a {self._description}: only plain data can be tested")

    __hash__ = None  # type: ignore[assignment]
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


class RemoteFunction(Remote):
    """A remote object that its owner calls callable; a lie gains nothing, since it could return a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(self, args, kwargs)


class FunctionOfTests(RemoteFunction):
    """A function of the tests, for the program, which may use it in any way, for example as a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def in_place(function: Any) -> Any:
    """The function; if it is the program's, its changes to its arguments are applied when it returns None.

    For calls whose result the tests discard. In `assert f(d, k) == d.get(k)` an f that empties d and returns
    None must not change what it is compared with.
    """
    if not isinstance(function, RemoteFunction):
        return function
    return lambda *args, **kwargs: function._link.call(function, args, kwargs, is_in_place=True)


class CallLink:
    """One side's end of the socket, and the objects it has sent references to."""

    def __init__(self, sock: socket.socket, *, root: Any = None, is_program: bool = False) -> None:
        self._socket = sock
        self.is_program = is_program
        self._objects: list[Any] = [root]

    def get(self, number: int, name: str, *, may_be_class: bool = False) -> Any:
        return self._ask(["get", number, name], opens="class" if may_be_class else "")

    def call(
        self, function: RemoteFunction, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_in_place: bool = False
    ) -> Any:
        details = [encode(list(args), self._refer), encode(kwargs, self._refer)]
        return self._ask(
            ["call", function._number, details],
            opens="instance" if function._kind == "class" else "",
            changeable=args if is_in_place or self.is_program else (),
        )

    def serve(self) -> None:
        """Answer requests until the other side is gone."""
        while True:
            self._answer(self._receive())

    def _ask(self, message: Frame, *, opens: str, changeable: tuple[Any, ...] = ()) -> Any:
        self._send(message)
        while (reply := self._receive())[0] in ("get", "call"):
            self._answer(reply)
        try:
            if reply[0] in ("value", "class", "instance"):
                kind = opens if reply[0] == opens else "value"
                value = self._decoded(reply[1], kind)
                if value is None and changeable:
                    self._change(changeable, reply[2])
                return value
            name, text = str(reply[1]), str(reply[2])
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError) as error:
            raise LinkLost(f"a value that cannot be read: {type(error).__name__}: {error}") from None
        raise _exception(name, text)

    def _decoded(self, data: Any, kind: str) -> Any:
        if kind != "value" and isinstance(data, list) and data[0] == "mine":
            return self._resolve(data, kind)
        return decode(data, self._resolve)

    def _answer(self, message: Frame) -> None:
        try:
            reply = self._perform(message)
        except Exception as error:  # noqa: BLE001 - raised again at the other end of the link
            reply = ["raised", _builtin_name(error), f"{error}"[:500]]
        self._send(reply)

    def _perform(self, message: Frame) -> Frame:
        verb, number, details = message
        target = self._own(number)
        if verb == "get":
            if not self.is_program:
                raise NotPlainError("a function of the tests has no attributes here")
            value = getattr(target, details)
            return ["class" if isinstance(value, type) else "value", encode(value, self._refer), None]
        args, kwargs = (decode(part, self._resolve) for part in details)
        before = _snapshot(args)
        result = target(*args, **kwargs)
        after = _snapshot(args) if result is None else before
        kind = "instance" if type(result) is target else "value"
        return [kind, encode(result, self._refer), after if after != before else None]

    def _own(self, number: Any) -> Any:
        """Our object with this reference number; only an exact int is a number."""
        if type(number) is not int or not 0 <= number < len(self._objects):
            raise NotPlainError(f"a reference to object {number!r:.40}, which was never given")
        return self._objects[number]

    def _refer(self, value: Any) -> list[Any]:
        if isinstance(value, Remote):
            return ["yours", value._number]
        self._objects.append(value)
        name = getattr(value, "__name__", "")
        description = f"{type(value).__name__} {name}".strip()
        return ["mine", len(self._objects) - 1, description, bool(value), callable(value)]

    def _resolve(self, reference: list[Any], kind: str = "value") -> Any:
        if reference[0] == "yours":
            return self._own(reference[1])
        _, number, description, is_true, is_callable = reference
        stand_in = Remote if is_callable is not True else FunctionOfTests if self.is_program else RemoteFunction
        return stand_in(self, int(number), str(description)[:80], is_true=is_true is True, kind=kind)

    def _change(self, args: tuple[Any, ...], contents: Any) -> None:
        """Apply the changes made to copies of our arguments."""
        for value, content in zip(args, contents or [None] * len(args), strict=True):
            if content is None:
                continue
            changed = decode(content, self._resolve)
            if type(value) is not type(changed):
                raise NotPlainError(f"a {type(value).__name__} that became a {type(changed).__name__}")
            if isinstance(value, list | bytearray):
                value[:] = changed
            elif isinstance(value, dict | set):
                value.clear()
                value.update(changed)

    def _send(self, message: Frame) -> None:
        body = json.dumps(message).encode()
        try:
            self._socket.sendall(len(body).to_bytes(4, "big") + body)
        except OSError:
            raise LinkLost("the program ended") from None

    def _receive(self) -> Frame:
        length = int.from_bytes(self._read(4), "big")
        if length > MESSAGE_BYTES:
            raise LinkLost(f"a value of {length} bytes; {MESSAGE_BYTES} may be returned")
        try:
            message = json.loads(self._read(length))
        except (ValueError, RecursionError, MemoryError) as error:
            # Catch MemoryError too: tests that catch every Exception would take it for one of the program's.
            raise LinkLost(f"a message that cannot be read: {type(error).__name__}: {error}") from None
        if not (isinstance(message, list) and len(message) == 3):
            raise LinkLost("a message of no known kind")
        return message

    def _read(self, length: int) -> bytes:
        parts: list[bytes] = []
        while length:
            try:
                part = self._socket.recv(min(length, 1 << 20))
            except OSError:
                part = b""
            if not part:
                raise LinkLost("the program ended")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


_ENDS_OF_LOOPS = (StopIteration, StopAsyncIteration)


def _snapshot(args: Any) -> list[Any]:
    """The contents of the mutable arguments; None for arguments that are immutable or not data."""
    contents: list[Any] = []
    for value in args:
        try:
            contents.append(encode(value) if type(value) in (list, dict, set, bytearray) else None)
        except (NotPlainError, RecursionError):
            contents.append(None)
    return contents


def _builtin_name(error: Exception) -> str:
    """The nearest built-in exception class: the tests do not know the program's classes."""
    return next(str(c.__name__) for c in type(error).__mro__ if getattr(builtins, c.__name__, None) is c)


def _exception(name: str, text: str) -> BaseException:
    """The exception raised by the other side; never one that would end this process or a loop in it."""
    if name == "MemoryError":
        return LinkLost("the program ran out of memory")
    kind = getattr(builtins, name, None)
    # In `all(map(f, xs))` a StopIteration of f would end the map, and pass for "no more items".
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _ENDS_OF_LOOPS):
        try:
            return kind(text)
        except TypeError:  # UnicodeDecodeError wants five arguments
            pass
    return RuntimeError(f"{name}: {text}")
