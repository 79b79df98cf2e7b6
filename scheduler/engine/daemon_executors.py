"""Carries out the runs of a daemon, and sends its messages and pings: on one asyncio loop, or the runs on workers."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from operator import attrgetter

from heartbeatd.answers import Asked, PersonQuestion
from heartbeatd.verbs import Ask
from scheduler.engine import deadman_switch, delivery
from scheduler.engine.clock_adjustment import ClockReading
from scheduler.engine.deadman_switch import Ping
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.runs_in_progress import PersonWaits
from scheduler.engine.standby import Standby
from scheduler.engine.tick_items import Refused, Request
from scheduler.model.daemon_health import QueueState
from scheduler.model.entry import Claim
from scheduler.model.events import Event, QuestionMoved
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import AttemptResult
from scheduler.model.settings import Settings
from scheduler.net.http_client import HttpClient
from scheduler.store import boots, runs
from scheduler.system import lanes
from scheduler.system.boot_clock import BootClock
from scheduler.system.process import Children
from scheduler.work.executor import Executor, LocalExecutor, WorkerLoop
from scheduler.work.plan import Plan
from scheduler.work.run_extras import (
    DaemonLinks,
    RemoteExecutor,
    Tracing,
    import_runner_libraries,
    remote_executors,
    resources_of_run,
)

YES, NO = "yes", "no"
MAX_PAST_BOOTS = 100  # whose attempts are looked for in the queue of the workers


class Approvals:
    """Asks people for runs in progress. `submit` passes requests to the engine, which calls `note_event` after each commit."""

    def __init__(self, submit: Callable[[Request], Future[object]], loop: WorkerLoop) -> None:
        self._submit = submit
        self._loop = loop
        self._news: dict[int, asyncio.Event] = {}  # of the questions that wait

    def note_event(self, happened: Event) -> None:
        """Let a question that has ended be read again."""
        if isinstance(happened, QuestionMoved) and happened.number in self._news:
            self._loop.call_soon(self._news[happened.number].set)

    async def ask(self, claim: Claim, text: str) -> str | None:
        """Why a person has not allowed something; None: it is allowed. The same key gives the same question."""
        verb = Ask(text=text, options=[YES, NO], key=secrets.token_hex(8))
        request = VerbRequest(verb, claim.run.id, Sender(claim.entry.label))
        try:
            asked = await self._request(request)
        except Refused as refused:
            return f"refused, because no person can be asked: {refused}"
        news = self._news.setdefault(asked.id, asyncio.Event())
        try:
            # It may have ended before its event was awaited, so it is read first.
            while (asked := await self._request(request)).state == "open":
                await news.wait()
                news.clear()
        finally:
            self._news.pop(asked.id, None)
        if asked.answer is None:
            return f"refused, because {asked.why}"
        return None if asked.answer == YES else "refused by a person"

    async def _request(self, request: VerbRequest[Ask]) -> PersonQuestion:
        answer = await asyncio.wrap_future(self._submit(request))
        assert isinstance(answer, Asked)
        return answer.question


class DaemonExecutors:
    """The executors of one daemon. All of them share one loop and one HTTP client.

    `plan` returns that in force. `notify` is called when there is a result. `report_queue` and `report_workers`
    get what is found out about workers, in the thread of the loop. `remote` is the executor of runs on workers; None: this
    process carries them out. `standby` is that of the daemon, which sets it before the first run starts.
    """

    def __init__(
        self,
        settings: Settings,
        plan: Callable[[], Plan],
        instance: str,
        clock: BootClock,
        read_clocks: Callable[[], ClockReading],
        notify: Callable[[], None],
        report_queue: Callable[[QueueState], None],
        report_workers: Callable[[Sequence[tuple[Claim, str]]], None],
        submit: Callable[[Request], Future[object]],
    ) -> None:
        self.standby = Standby()
        self.loop = WorkerLoop(clock)
        self.waits = PersonWaits()
        self.approvals = Approvals(submit, self.loop)
        self.traces = Tracing(lambda: plan().settings)
        self.http = HttpClient(lambda: plan().settings.network, wait=lambda: self.standby.wait_until_allowed())
        self._read_clocks = read_clocks
        self._lanes = lanes.lanes_beside(settings.state)
        self._lanes.make_lock_files()
        self.remote: RemoteExecutor | None = None
        if settings.remote:
            links = DaemonLinks(
                lambda: plan().entries,
                instance,
                self.loop,
                notify,
                lambda: self.standby.allows_start(),
                report_queue,
                report_workers,
                self.traces,
            )
            self.remote = remote_executors().make_executor(settings, links)
        self.runs: Executor[Claim, AttemptResult] = self.remote or LocalExecutor(
            self._carry_out_run, attrgetter("run.mark"), notify, self.loop
        )
        self.deliveries: LocalExecutor[Delivery, DeliveryResult] = LocalExecutor(
            self._send_delivery, lambda outgoing: f"{instance}/outbox/{outgoing.message.id}", notify, self.loop
        )
        # The result of a ping can wait for the next tick.
        self.pings: LocalExecutor[Ping, DeliveryResult] = LocalExecutor(
            lambda ping, _: deadman_switch.send_ping(ping, self.http), lambda _: "", lambda: None, self.loop
        )

    def adopt_runs(
        self, db: sqlite3.Connection, written_by: str | None, is_over: Callable[[], bool], *, may_lack_commits: bool
    ) -> bool:
        """Continue with the runs that workers have executed while the daemon was down. False if it `is_over` before.

        Waits until the queue can be reached. If the database may lack commits, no run is continued: an attempt in the queue may
        be one that has ended before. `written_by` is the instance of the last write of this process, whose boot it may lack too.
        """
        if self.remote is None:
            return True
        running = [
            (run.owner, run.id, run.fence)
            for _, _, run in runs.all_open_runs(db)
            if run.state == "running" and not may_lack_commits
        ]
        past = boots.latest_instances(db, MAX_PAST_BOOTS)
        return self.remote.adopt_runs(running, [*past, written_by] if written_by else past, is_over)

    def prepare(self, settings: Settings) -> None:
        """Import what the runs of these settings need, before they are in force."""
        if self.remote is None:
            import_runner_libraries(settings)
        self.traces.prepare(settings)

    def make_lock_files(self, settings: Settings) -> None:
        """Create the lock files: for a thousand agents this takes half a second, which no run should wait for."""
        self._lanes.make_lock_files([*settings.heartbeats, *settings.job_agents])

    def close(self, *, release_lease: bool) -> None:
        """End all tasks, close all connections, and stop leading."""
        if self.remote is not None:
            self.remote.close()  # before the lease is free: the next leader must find what this one submits last
        self.standby.stop(release=release_lease)
        self.loop.close(self.http.close)
        self.traces.close()

    async def _carry_out_run(self, claim: Claim, children: Children) -> AttemptResult:
        """Carry out one attempt, with its agent locked as long as it lasts; its children inherit the lock."""
        await self.standby.wait_until_allowed()
        started_at = self._read_clocks().monotonic
        children.permit = self.standby
        children.waited = lambda: self.waits.seconds(claim.run.id, self._read_clocks().monotonic)
        elapsed = lambda: timedelta(seconds=self._read_clocks().monotonic - started_at - children.waited())  # noqa: E731
        with self._lanes.lock_for_claim(claim) as (claim_in_lane, inherited):
            resources = resources_of_run(children, inherited, self.http, partial(self.approvals.ask, claim))
            return await self.traces.run_attempt(claim_in_lane, resources, elapsed)

    async def _send_delivery(self, outgoing: Delivery, children: Children) -> DeliveryResult:
        children.permit = self.standby
        return await delivery.send_delivery(outgoing, children.start, self.http, self._read_clocks().now)
