"""What the core calls for runs on workers: `RemoteExecutors` in scheduler/work/remote.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from heartbeatd.state_folder import config_folder
from scheduler.extras.cluster.command_lanes import QueueLane
from scheduler.extras.cluster.job_queue import JobQueue, QueueUnavailable
from scheduler.extras.cluster.payloads import ClaimCodec, attempt_key
from scheduler.extras.cluster.remote_executor import RemoteExecutor
from scheduler.model.daemon_health import QueueState
from scheduler.model.entry import Claim
from scheduler.model.outcome import AttemptResult
from scheduler.model.settings import RemoteQueue, Settings
from scheduler.work.remote import DaemonLinks

__all__ = ["ask_state", "make_executor", "make_lane"]

make_lane = QueueLane


class ClaimExecutor(RemoteExecutor[Claim, AttemptResult]):
    """Has the attempts of runs executed by workers."""

    _codec: ClaimCodec

    def adopt_runs(
        self, running: Collection[tuple[str, int, int]], past_instances: Collection[str], is_over: Callable[[], bool]
    ) -> bool:
        """See `scheduler.work.remote.RemoteExecutor`."""
        numbers = {attempt_key(instance, run_id, fence): run_id for instance, run_id, fence in running}
        return self.adopt(numbers, past_instances, self._codec.claim_of_leftover, is_over)


def make_executor(settings: Settings, links: DaemonLinks) -> ClaimExecutor:
    """The executor of a daemon."""
    remote = settings.remote
    assert remote is not None
    codec = ClaimCodec(
        links.entries, config_folder(settings.path), settings.host, links.traces.begin_queueing, links.traces.end_queueing
    )
    return ClaimExecutor(
        JobQueue(remote.dsn, remote.name),
        codec,
        links.notify,
        links.loop,
        links.instance,
        remote.lease.total_seconds(),
        links.may_start_runs,
        links.report_state,
        links.report_workers,
    )


def ask_state(remote: RemoteQueue) -> QueueState:
    """The state of the queue now. Nothing is written."""
    return asyncio.run(_ask_state(remote))


async def _ask_state(remote: RemoteQueue) -> QueueState:
    queue = JobQueue(remote.dsn, remote.name)
    try:
        await queue.open(may_create=False)
        workers = await queue.find_workers(remote.lease.total_seconds())
        return QueueState(None, tuple(workers), await queue.longest_wait())
    except QueueUnavailable as error:
        return QueueState(str(error))
    finally:
        with suppress(QueueUnavailable):
            await queue.close()
