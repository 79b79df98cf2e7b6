"""What the core calls for runs on workers: `RemoteExecutors` in scheduler/work/run_extras.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from heartbeatd.state_folder import config_folder
from scheduler.extras.cluster.command_lanes import QueueLane
from scheduler.extras.cluster.job_queue import JobQueue, QueueUnavailable
from scheduler.extras.cluster.payloads import ClaimCodec, attempt_key
from scheduler.extras.cluster.remote_executor import RemoteExecutor
from scheduler.extras.cluster.remote_executor import ask_state as ask_state_of
from scheduler.model.daemon_health import QueueState
from scheduler.model.entry import Claim, Entry, Key
from scheduler.model.outcome import AttemptResult
from scheduler.model.settings import Settings
from scheduler.work.plan import make_plan
from scheduler.work.run_extras import DaemonLinks

__all__ = ["ask_state", "make_executor", "make_lane"]

make_lane = QueueLane


class ClaimExecutor(RemoteExecutor[Claim, AttemptResult]):
    """Has the attempts of runs executed by workers."""

    _codec: ClaimCodec

    def adopt_runs(
        self, running: Collection[tuple[str, int, int]], past_instances: Collection[str], is_over: Callable[[], bool]
    ) -> bool:
        """See `scheduler.work.run_extras.RemoteExecutor`."""
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
        _NeededQueues(links.entries),
    )


def ask_state(settings: Settings) -> QueueState:
    """The state of the queues now. Nothing is written."""
    return asyncio.run(_ask_state(settings))


async def _ask_state(settings: Settings) -> QueueState:
    remote = settings.remote
    assert remote is not None
    queue = JobQueue(remote.dsn, remote.name)
    try:
        await queue.open(may_create=False)
        return await ask_state_of(queue, remote.lease.total_seconds(), needed_queues(make_plan(settings).entries.values()))
    except QueueUnavailable as error:
        return QueueState(str(error))
    finally:
        with suppress(QueueUnavailable):
            await queue.close()


class _NeededQueues:
    """The queues that the config in force names. They are collected once for each plan, which may have many agents."""

    def __init__(self, entries: Callable[[], Mapping[Key, Entry]]) -> None:
        self._entries = entries
        self._known: tuple[Mapping[Key, Entry], frozenset[str]] | None = None

    def __call__(self) -> frozenset[str]:
        entries = self._entries()
        if self._known is None or self._known[0] is not entries:
            self._known = entries, needed_queues(entries.values())
        return self._known[1]


def needed_queues(entries: Iterable[Entry]) -> frozenset[str]:
    """The queues of enabled agents and jobs."""
    return frozenset(entry.queue for entry in entries if entry.enabled)
