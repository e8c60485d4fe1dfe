"""Describes a simulated run in a few lines: who was busy, who waited, and a timeline per stage."""

from freerun.simulation.run import Outcome, SimulatedStep

LINE_WIDTH = 60
"""Width of a timeline in characters."""


def describe_occupation(outcome: Outcome) -> list[str]:
    """Shares of the time, and the trainer's steps on a timeline."""
    return [
        f"trained   {outcome.tokens_per_second:,.0f} tokens/s, {outcome.step_seconds:.1f} s a step",
        f"engines   computing {outcome.engine_busy:.0%} (recomputing caches {outcome.engine_recomputing:.0%}), "
        f"loading {outcome.engine_loading:.0%}; {outcome.mean_decoding:.0f} sequences at once, "
        f"{outcome.num_preemptions} preemptions",
        f"trainer   training {outcome.trainer_busy:.0%}, waiting {outcome.trainer_waits:.0%}; the gate was shut "
        f"{outcome.gate_closed:.0%}",
        f"time      {timeline(outcome)}  (# training, . waiting; {outcome.seconds:,.0f} s in all)",
    ]


def timeline(outcome: Outcome, width: int = LINE_WIDTH) -> str:
    """One character per interval: what the trainer did in the middle of it."""
    part = outcome.seconds / width
    return "".join(_doing_at(outcome.steps, outcome.begin + (place + 0.5) * part) for place in range(width))


def _doing_at(steps: tuple[SimulatedStep, ...], seconds: float) -> str:
    for step in steps:
        if seconds <= step.seconds:
            return "#" if seconds > step.seconds - step.step_seconds else "."
    return "."
