"""Describes the timeline of a scenario by its main events."""

from freerun.events.events import (
    AnyEvent,
    CheckpointSaved,
    EvalFinished,
    EvalSkipped,
    GroupFinished,
    Notice,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
)


def in_words(event: AnyEvent) -> str:
    """The event as one line; empty for omitted events."""
    match event:
        case StepFinished(result=result, groups=groups):
            return f"step to version {result.version}, groups {[group.ordinal for group in groups]}"
        case WeightsLoaded(version=version):
            return f"all engines have version {version}"
        case GroupFinished(ordinal=ordinal, outcome=outcome, reason=reason) if outcome != "buffered":
            return f"group {ordinal} {outcome}{f': {reason}' if reason else ''}"
        case EvalFinished(version=version):
            return f"version {version} is evaluated"
        case EvalSkipped(version=version, reason=reason):
            return f"version {version} is not evaluated: {reason}"
        case CheckpointSaved(version=version):
            return f"checkpoint {version} is sealed"
        case Notice(text=text):
            return text
        case WorkerDied(worker=worker, reason=reason, is_restarted=is_restarted):
            return f"{worker} {'is replaced' if is_restarted else 'is lost'}: {reason}"
    return ""
