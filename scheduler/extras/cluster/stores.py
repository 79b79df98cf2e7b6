"""What the core calls for a database on a PostgreSQL server.

`ServerStores` in scheduler/store/locations.py lists the functions. In addition, scheduler/engine/standby.py calls `make_standby`,
and scheduler/cli/busy.py calls `make_lane`.
"""

from __future__ import annotations

from scheduler.extras.cluster.command_lanes import ServerLane
from scheduler.extras.cluster.leadership import lead_for_a_command
from scheduler.extras.cluster.postgresql import ServerStore, open_server_read_only
from scheduler.extras.cluster.standby import ServerStandby

__all__ = ["lead_for_a_command", "make_lane", "make_standby", "open_for_writing", "open_read_only"]

open_for_writing = ServerStore.open_server
open_read_only = open_server_read_only
make_standby = ServerStandby
make_lane = ServerLane
