"""The lines of time of a simulated run say what its outcome says, spread over time."""

from simulated_setups import make_setup

from freerun.events.events import AnyEvent, EngineLoaded, EngineReport, Queues
from freerun.simulation.costs import LinearTrainer
from freerun.simulation.lanes import Lanes
from freerun.simulation.run import Outcome, Setup, simulate

WIDTH = 20


def lanes_of(setup: Setup) -> tuple[dict[str, str], Outcome]:
    """The characters of each lane."""
    lanes = Lanes()
    outcome = simulate(setup, emit=lanes)
    lines = lanes.describe(outcome, WIDTH)
    return {line.split()[0]: line.split()[1] for line in lines}, outcome


def mean(lane: str) -> float:
    """Of the shares that the characters stand for, up to a tenth too low."""
    return sum(0 if character == "." else int(character) / 10 for character in lane) / len(lane)


def test_a_slow_trainer_shuts_the_gate_for_as_long_as_the_outcome_says() -> None:
    lanes, outcome = lanes_of(make_setup(trainer_costs=LinearTrainer(step=30.0, token=0.0)))
    assert {len(lane) for lane in lanes.values()} == {WIDTH}
    assert outcome.gate_closed > 0.5
    assert mean(lanes["gate"]) <= outcome.gate_closed <= mean(lanes["gate"]) + 0.15


def test_a_fast_trainer_leaves_the_gate_open_and_loads_stand_out() -> None:
    lanes, outcome = lanes_of(make_setup(trainer_costs=LinearTrainer(step=0.01, token=0.0)))
    assert mean(lanes["gate"]) <= outcome.gate_closed <= mean(lanes["gate"]) + 0.1
    assert outcome.engine_loading > 0
    assert set(lanes["loads"]) != {"."}
    assert mean(lanes["loads"]) <= outcome.engine_loading + 0.02
    assert mean(lanes["slots"]) > 0


def test_shares_are_tenths_and_nothing_is_a_dot() -> None:
    lanes = Lanes()
    stored: list[AnyEvent] = []
    outcome = simulate(make_setup(), emit=stored.append)
    for event in stored:
        if isinstance(event, EngineReport | EngineLoaded | Queues):
            lanes(event)
    for line in lanes.describe(outcome, 7):
        name, characters = line.split()[:2]
        assert name in {"slots", "gate", "loads"}
        assert len(characters) == 7
        assert set(characters) <= {*".0123456789"}
