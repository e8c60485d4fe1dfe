"""An environment of verifiers: sums that are worked out with a tool."""

from sums_v1.taskset import SumsTaskset

__all__ = ["SumsTaskset"]
