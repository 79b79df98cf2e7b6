"""Asks the extra for buttons below messages. It is loaded when a channel has `buttons: true`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, cast

from scheduler.channels.message import Button
from scheduler.engine.inbox import Request
from scheduler.model.settings import Channel
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction
from scheduler.system import extras
from scheduler.work.executor import WorkerLoop

if TYPE_CHECKING:
    from scheduler.net.http_client import HttpClient  # takes a fifth of a second, which `plan` and `explain` need not wait for


class Poller(Protocol):
    """Asks the services of chats for pressed buttons."""

    def poll(self, monotonic: float, channels: Mapping[str, Channel]) -> float | None:
        """Pass on the presses that have arrived, and ask for more. Returns the seconds until the next call; None: no limit."""


class ButtonListener(Protocol):
    """The module that the entry point `buttons` in `heartbeatd.listeners` names."""

    def buttons_of(self, tx: Transaction, message: OutboxMessage, channel: Channel) -> tuple[Button, ...]:
        """The buttons below a message."""

    def delete_old_uses(self, tx: Transaction) -> None:
        """Forget which buttons were used, once they can be used no more."""

    def make_poller(
        self,
        http: HttpClient,
        loop: WorkerLoop,
        notify: Callable[[], None],
        submit: Callable[[Request], Future[Any]],
    ) -> Poller: ...


def listener_of(channels: Mapping[str, Channel]) -> ButtonListener | None:
    """The extra; None if none of these channels has buttons. Raises MissingExtra."""
    has_buttons = any(channel.buttons for channel in channels.values())
    return cast("ButtonListener", extras.load("listeners", "buttons")) if has_buttons else None


def buttons_of(tx: Transaction, message: OutboxMessage, channel: Channel) -> tuple[Button, ...]:
    """The buttons below a message in this channel."""
    found = listener_of({channel.name: channel})
    return found.buttons_of(tx, message, channel) if found else ()
