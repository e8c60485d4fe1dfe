"""The listeners of a run: the store, the terminal, and those that a recipe or a program adds.

    emit(event) ─► store ─► terminal ─► queue ─► thread of each listener that was added

A listener is a callable that gets every event, in order; it is closed at the end if it has `close`. The store
and the terminal belong to every run and are called directly: both return at once, and a store that cannot write
ends the run. The others are user code. Each runs in its own thread behind a queue, so a slow one delays
nothing. A listener that raises, or falls `MAX_BEHIND` events behind, is reported once and gets no more events.

A new tracker is a factory `(recipe, run_directory) -> listener`: name it in `run.listeners` as "module:function",
or add it to `LISTENERS`.
"""

import inspect
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from freerun.config.recipe import Recipe
from freerun.config.user_code import check_signature, import_named, is_user_code
from freerun.errors import ConfigError
from freerun.events.events import AnyEvent, Listener, Notice
from freerun.events.store import Store
from freerun.terminal.view import open_run_view
from freerun.terminal.wording import printable

ListenerFactory = Callable[[Recipe, Path], Listener]
LISTENERS: dict[str, ListenerFactory] = {
    "store": lambda recipe, directory: Store(directory),
    "terminal": lambda recipe, directory: open_run_view(directory),
}
OF_EVERY_RUN = ("store", "terminal")
SETTING = "run.listeners"

MAX_BEHIND = 10_000
FINISH_SECONDS = 60.0
"""How long the end of a run waits for a listener to handle its remaining events."""
HINT_SECONDS = 1.0
"""How long it waits before it says that it is waiting."""


class Listeners:
    """All listeners of a run; call it with each event."""

    def __init__(self, own: Sequence[Listener] = ()) -> None:
        self._own = list(own)
        self._added: list[QueuedListener] = []
        self._watched: list[Callable[[], Iterable[str]]] = []
        self._seconds = 0.0
        """The run's clock at the newest event."""

    def __call__(self, event: AnyEvent) -> None:
        self._seconds = event.seconds
        for listener in self._own:
            listener(event)
        for added in self._added:
            added(event)
        self._report_failures()

    def add(self, name: str, listener: Listener) -> None:
        """Add a listener whose delays and failures must not affect the run."""
        self._added.append(QueuedListener(name, listener))

    def watch(self, find_faults: Callable[[], Iterable[str]]) -> None:
        """Call `find_faults` with each event and report what it finds; it must return immediately."""
        self._watched.append(find_faults)

    def say(self, text: str) -> None:
        """Emit a message that users should read once."""
        self(Notice(seconds=self._seconds, text=printable(text)))

    def check(self) -> None:
        """Raise if the run can no longer be recorded."""
        self._call("check")

    def flush(self) -> None:
        """Return when everything emitted so far is on disk."""
        self._call("flush")

    def rewind(self, version: int, *, seconds: float = 0.0) -> None:
        """Forget what happened after a checkpoint, because it will happen again."""
        self._call("rewind", version, seconds=seconds)

    def finish(self) -> None:
        """Wait for the added listeners and close them."""
        for listener in self._added:
            listener.close(self.say)
        self._report_failures()

    def _report_failures(self) -> None:
        failed = [listener for listener in self._added if listener.failure]
        self._added = [listener for listener in self._added if listener not in failed]
        for text in [text for find_faults in self._watched for text in find_faults()]:
            self.say(text)
        for listener in failed:
            self.say(f"listener {listener.name} {listener.failure}; it gets no more events")

    def _call(self, method: str, *values: Any, **named: Any) -> None:
        for listener in self._own:
            if (function := getattr(listener, method, None)) is not None:
                function(*values, **named)


class QueuedListener:
    """User code in its own thread; an exception becomes `failure`."""

    def __init__(self, name: str, listener: Listener) -> None:
        self.name = name
        self.failure = ""
        self._listener = listener
        self._queue: queue.SimpleQueue[AnyEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"listener {name}", daemon=True)
        self._thread.start()

    def __call__(self, event: AnyEvent) -> None:
        if self._queue.qsize() >= MAX_BEHIND:
            self.failure = self.failure or f"is {MAX_BEHIND:,} events behind"
            self._queue.put(None)
        elif not self.failure:
            self._queue.put(event)

    def close(self, say: Callable[[str], None]) -> None:
        """Return when it has handled all events and is closed, or after `FINISH_SECONDS`; `say` reports a wait."""
        self._queue.put(None)
        self._thread.join(HINT_SECONDS)
        if self._thread.is_alive():
            num_left = max(0, self._queue.qsize() - 1)
            say(f"waiting up to {FINISH_SECONDS:g} s for listener {self.name}, which has {num_left:,} events left")
            self._thread.join(max(0.0, FINISH_SECONDS - HINT_SECONDS))
        if self._thread.is_alive():
            self.failure = self.failure or f"is still busy after {FINISH_SECONDS:g} s"

    def _run(self) -> None:
        try:
            while (event := self._queue.get()) is not None and not self.failure:
                self._listener(event)
        except BaseException as error:  # noqa: BLE001 - the edge of user code: it must not end the run
            self.failure = f"raised {_describe(error)}"
        try:
            if (close := getattr(self._listener, "close", None)) is not None:
                close()
        except BaseException as error:  # noqa: BLE001 - as above
            self.failure = self.failure or f"raised {_describe(error)} when it was closed"


@contextmanager
def open_listeners(recipe: Recipe, directory: Path, given: Sequence[Listener] = ()) -> Iterator[Listeners]:
    """The listeners of a run: built in, named in the recipe, and given by a program."""
    own: list[Listener] = []
    with ExitStack() as stack:
        stack.callback(_close_all, own)
        for name in OF_EVERY_RUN:
            own.append(LISTENERS[name](recipe, directory))
        listeners = Listeners(own)
        stack.callback(listeners.finish)
        for name in recipe.run.listeners:
            listeners.add(name, _make(name, recipe, directory))
        for listener in given:
            name = getattr(listener, "__qualname__", type(listener).__name__)
            listeners.add(name, _checked(listener, f"listener {name}"))
        yield listeners


def _close_all(listeners: Sequence[Listener]) -> None:
    """Close all in order, even if one raises: the summary reports the size of the closed store."""
    with ExitStack() as stack:
        for listener in reversed(listeners):
            if (close := getattr(listener, "close", None)) is not None:
                stack.callback(close)


def check_listeners(recipe: Recipe) -> None:
    """Raise if a name in `run.listeners` is not a factory."""
    for name in recipe.run.listeners:
        _factory(name)


def _factory(name: str) -> ListenerFactory:
    if name in OF_EVERY_RUN:
        raise ConfigError(f'config: {SETTING}: every run has the listener "{name}"; leave it out')
    if name in LISTENERS:
        return LISTENERS[name]
    if not is_user_code(name):
        raise ConfigError(f'config: {SETTING}: there is no listener "{name}"; write "module:function"')
    _, factory = import_named(name, setting=SETTING)
    check_signature(factory, None, None, name=name, setting=SETTING, shape="listener(recipe, run_directory)")
    return factory


def _make(name: str, recipe: Recipe, directory: Path) -> Listener:
    try:
        listener = _factory(name)(recipe, directory)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f'config: {SETTING}: "{name}" raised {_describe(error)}') from error
    return _checked(listener, f'config: {SETTING}: what "{name}" returned')


def _checked(listener: Any, what: str) -> Listener:
    """Raise if the listener cannot be called with an event."""
    if not callable(listener):
        raise ConfigError(f"{what} is a {type(listener).__name__}; it must be a function of an event")
    if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__):
        raise ConfigError(f"{what} is async; listeners are called in a thread: use a plain function")
    return listener  # type: ignore[no-any-return]


def _describe(error: BaseException) -> str:
    return printable(f"{type(error).__name__}: {error}")
