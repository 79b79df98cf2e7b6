"""Plants every fault in real daemons under a real Prometheus: which alert fires after how long, and whether any other does."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from fault_simulation import FaultSimulation


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        simulation = FaultSimulation(Path(folder), tuple(sys.argv[1:]))
        simulation.run()
        print(simulation.report())
        problems = simulation.problems()
        print("".join(f"  {problem}\n" for problem in problems), end="")
        sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
