"""The trackers by name: built-in ones, registered ones, and a user's own.

Another package registers a reporter under the entry-point group `freerun.reporters`. A recipe names a user's
own as "module:class". Nothing of a tracker is imported before its process makes the reporter.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from freerun.config.user_code import check_signature, import_named, is_user_code
from freerun.config.values import did_you_mean
from freerun.errors import ConfigError
from freerun.trackers.reporter import Reporter

ENTRY_POINTS = "freerun.reporters"
REPORT_SETTING = "report.to"
METHODS = ("start", "event", "close")


class Tracker(NamedTuple):
    """A built-in tracker."""

    module: str
    reporter: str
    """A class without arguments."""
    packages: tuple[str, ...] = ()
    """Packages that it imports."""
    extra: str = ""
    """The extra that installs them."""


TRACKERS: dict[str, Tracker] = {
    "jsonl": Tracker("freerun.trackers.jsonl", "JsonLinesReporter"),
    "tensorboard": Tracker(
        "freerun.trackers.tensorboard", "TensorBoardReporter", ("tensorboard",), extra="tensorboard"
    ),
    "wandb": Tracker("freerun.trackers.wandb", "WandbReporter", ("wandb",), extra="wandb"),
    "trackio": Tracker("freerun.trackers.trackio", "TrackioReporter", ("trackio",), extra="trackio"),
    "mlflow": Tracker(
        "freerun.trackers.mlflow", "MlflowReporter", ("mlflow", "sqlalchemy", "alembic"), extra="mlflow"
    ),
    "opentelemetry": Tracker(
        "freerun.trackers.opentelemetry",
        "OpenTelemetryReporter",
        ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
        extra="otel",
    ),
}


def check_trackers(names: Sequence[str], *, setting: str = f"config: {REPORT_SETTING}") -> None:
    """Raise for unknown reporters and missing packages; `setting` is the setting that names them."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(f'{setting} names "{name}" twice; remove one')
        if is_user_code(name):
            _own(name)
        elif name in TRACKERS:
            _check_packages(name, TRACKERS[name], setting)
        else:
            _registered(name, setting)


def make_reporter(name: str) -> Reporter:
    """A new reporter, not started."""
    if is_user_code(name):
        return _own(name)()
    if name in TRACKERS:
        module = importlib.import_module(TRACKERS[name].module)
        reporter: Reporter = getattr(module, TRACKERS[name].reporter)()
        return reporter
    registered: Reporter = _registered(name, f"config: {REPORT_SETTING}").load()()
    return registered


def _own(name: str) -> Callable[[], Reporter]:
    _, made = import_named(name, setting=REPORT_SETTING)
    check_signature(made, name=name, setting=REPORT_SETTING, shape="__init__(self), without arguments")
    missing = [method for method in METHODS if inspect.isclass(made) and not hasattr(made, method)]
    if missing:
        raise ConfigError(
            f'config: {REPORT_SETTING}: "{name}" has no method {", ".join(missing)}; a reporter has start(run), '
            "event(event) and close(outcome)"
        )
    return made


def _registered(name: str, setting: str) -> EntryPoint:
    found = entry_points(group=ENTRY_POINTS)
    if name not in found.names:
        known = sorted({*TRACKERS, *found.names})
        raise ConfigError(
            f'{setting}: there is no tracker "{name}"{did_you_mean(name, known)}; there are '
            f'{", ".join(known)}, and your own as "module:class"'
        )
    return found[name]


def _check_packages(name: str, tracker: Tracker, setting: str) -> None:
    missing = [package for package in tracker.packages if not _is_installed(package)]
    if missing:
        raise ConfigError(
            f'{setting}: "{name}" needs the package {", ".join(missing)}; '
            f"pip install 'freerun[{tracker.extra}]', or report later with freerun track"
        )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
