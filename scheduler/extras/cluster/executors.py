"""What the core calls for runs on workers: `RemoteExecutors` in scheduler/work/run_extras.py."""

from __future__ import annotations

from heartbeatd.state_folder import config_folder
from scheduler.extras.cluster.command_lanes import QueueLane
from scheduler.extras.cluster.job_queue import JobQueue, QueueUnavailable, ask_queue
from scheduler.extras.cluster.payloads import ClaimCodec
from scheduler.extras.cluster.remote_executor import RemoteExecutor
from scheduler.extras.cluster.remote_executor import ask_state as ask_state_of
from scheduler.model.daemon_health import QueueState
from scheduler.model.settings import Settings
from scheduler.work.plan import make_plan
from scheduler.work.run_extras import DaemonLinks

__all__ = ["ask_state", "make_executor", "make_lane"]

make_lane = QueueLane


def make_executor(settings: Settings, links: DaemonLinks) -> RemoteExecutor:
    """The executor of a daemon."""
    remote = settings.remote
    assert remote is not None
    codec = ClaimCodec(
        links.entries, config_folder(settings.path), settings.host, links.traces.begin_queueing, links.traces.end_queueing
    )
    return RemoteExecutor(JobQueue(remote.dsn, remote.name), codec, links, remote.lease.total_seconds())


def ask_state(settings: Settings) -> QueueState:
    """The state of the queues now. Nothing is written."""
    remote = settings.remote
    assert remote is not None
    entries = make_plan(settings).entries.values()
    try:
        return ask_queue(remote, lambda queue: ask_state_of(queue, remote.lease.total_seconds(), entries), may_create=False)
    except QueueUnavailable as error:
        return QueueState(str(error))
