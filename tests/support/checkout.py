"""The folders of the checkout that tests read files from."""

from __future__ import annotations

from pathlib import Path

HOME = Path(__file__).parents[2]
DATA = HOME / "tests" / "data"
SERVERS = HOME / "tests" / "support" / "servers"  # stand-ins for the servers and programs that heartbeatd talks to
