"""One message sent to a service that Apprise knows: it says yes or no, and after half a minute we no longer wait."""

from __future__ import annotations

import logging
import threading
from functools import cache
from queue import Empty, SimpleQueue

from apprise import Apprise, AppriseAsset, NotifyBase, NotifyFormat, NotifyType, PersistentStoreMode

from heartbeat import waiting
from scheduler.transports import Message, Sent

TOTAL = 30.0  # seconds, whatever the service needs to do
HANGING = 16  # sendings that may still hang after their time; a thread cannot be ended from outside

_free = threading.BoundedSemaphore(HANGING)

for _name in ("apprise", "requests", "urllib3"):  # they print URLs, and in those are tokens
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


def limit(url: str) -> int:
    """How many characters the service of a URL takes in one message.

    ValueError, which shows no more of the URL than its scheme, if Apprise knows no such service or cannot read the rest.
    """
    service = _service(url)
    if service is None:
        raise ValueError("this is not a URL of a service that Apprise knows, or a part of it is missing")
    return max(int(service.body_maxlen), 2)


def send(url: str, message: Message, *, total: float = TOTAL) -> Sent:
    """Send `message` once as plain text; waits for at most `total` seconds, then nobody knows whether it arrived.

    Apprise opens its own connections: no address is refused to it, and of a refusal the reason is not known.
    """
    service = _service(url)
    if service is None:
        return Sent("dead", "Apprise knows no service of this URL", None)
    name = str(service.service_name)
    if not _free.acquire(blocking=False):
        return Sent("retry", f"{HANGING} earlier messages to services of Apprise still hang", None)
    answers: SimpleQueue[bool] = SimpleQueue()
    threading.Thread(target=_ask, args=(service, message, answers), name="apprise", daemon=True).start()
    waiting.blocks()
    try:
        yes = answers.get(timeout=total)
    except Empty:
        return Sent("uncertain", f"{name} did not answer in time", None)
    return Sent("delivered", "", None) if yes else Sent("retry", f"{name} did not take the message", None)


def _ask(service: NotifyBase, message: Message, answers: SimpleQueue[bool]) -> None:
    """Apprise turns what goes wrong inside a service into a no."""
    title = message.title if service.title_maxlen > 0 else ""
    try:
        caller = Apprise(asset=_asset())
        caller.add(service)
        answers.put(bool(caller.notify(message.text, title, NotifyType.INFO, body_format=NotifyFormat.TEXT)))
    finally:
        _free.release()


def _service(url: str) -> NotifyBase | None:
    return Apprise.instantiate(url, asset=_asset())


@cache
def _asset() -> AppriseAsset:
    """Nothing of ours is kept on disk, shown, or filled in, and nobody is redirected."""
    return AppriseAsset(
        app_id="heartbeatd",
        app_desc="heartbeatd",
        storage_mode=PersistentStoreMode.MEMORY,
        async_mode=False,
        http_redirects=False,
        allow_templates=False,
    )
