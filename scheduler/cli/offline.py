"""Asking while no daemon runs: the same requests, applied to the database by ourselves under its lock."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from scheduler.cli.times import utc_now
from scheduler.config.build import load
from scheduler.engine import plan_sync
from scheduler.engine.inbox import Asked, Request
from scheduler.engine.outbox_requests import Drop, SendAgain
from scheduler.engine.requests import Pause, Resume, RunJob, WakeAgent
from scheduler.engine.tick import Tick
from scheduler.model.entry import Key
from scheduler.model.outcome import Trigger
from scheduler.model.wake import Wake
from scheduler.store.database import Store, check_file, check_links
from scheduler.store.transaction import Transaction
from scheduler.system.process import MARK
from scheduler.system.state_lock import Lock, private_folder
from scheduler.work import plan


class Offline:
    """Applies requests to the database of a config that is valid. Raises ConfigError, Taken, Unusable, StoreError, Refused."""

    def __init__(self, path: Path) -> None:
        self._plan = plan.make(load.load(path, os.environ, resolve=False).settings)  # nothing is sent from here

    def knows(self, key: Key) -> bool:
        return key in self._plan.entries

    def entries(self) -> Iterable[Key]:
        return self._plan.entries

    def wake(self, name: str, text: str) -> int:
        wake = Wake(name, source=Trigger.MANUAL, sender="cli", text=text)
        return int(self._apply(WakeAgent(wake, cause=os.environ.get(MARK))))

    def run_job(self, name: str) -> int:
        return int(self._apply(RunJob(name, Trigger.MANUAL)))

    def pause(self, key: Key | None, span: timedelta | None) -> None:
        self._apply(Pause(key, None if span is None else utc_now() + span))

    def resume(self, key: Key | None) -> list[str]:
        return list(self._apply(Resume(key)))

    def send_again(self, message_id: int) -> None:
        self._apply(SendAgain(message_id))

    def drop(self, message_id: int) -> None:
        self._apply(Drop(message_id))

    def _apply(self, request: Request) -> Any:
        """One transaction, in which the rows follow the config first: the daemon may never have seen what is asked about."""
        state, instance = self._plan.settings.state, secrets.token_hex(8)
        check_file(state)
        check_links(state)
        private_folder(state.parent)
        with Lock.take(state.with_name(state.name + ".lock"), started_at=utc_now(), instance=instance):
            store = Store.open(state)
            try:
                return self._turn(store, instance, request)
            finally:
                store.close()

    def _turn(self, store: Store, instance: str, request: Request) -> Any:
        asked, now = Asked(request), utc_now()
        with store.transaction() as db:
            tick = Tick(Transaction(db, now, instance, self._plan.settings.hash), self._plan, now, random.Random())  # noqa: S311 (spreads retries, hides nothing)
            plan_sync.sync(tick, {})
            asked.apply(tick)
        asked.reply()
        return asked.future.result()
