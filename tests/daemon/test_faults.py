"""Plants a part of the faults in real daemons under a real Prometheus. `make faults` plants all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import required_programs
from fault_simulation import FaultSimulation

pytestmark = [pytest.mark.process, pytest.mark.long_simulation, required_programs.needs("prometheus")]

CHOSEN = (
    "a runner exits with 3",
    "a checklist is gone",
    "a precheck fails, on_error: skip",
    "an agent has been paused for long",
    "a wake is refused",
    "a channel answers 404",
    "a config is refused",
)


def test_each_fault_fires_exactly_its_alert_and_the_repair_resolves_it(tmp_path: Path) -> None:
    simulation = FaultSimulation(tmp_path, CHOSEN)
    simulation.run()
    assert len(simulation.faults) == len(CHOSEN)
    assert simulation.problems() == [], simulation.report()
