"""Sends one message to a service that Apprise knows: it answers yes or no, and after half a minute we no longer wait."""

from __future__ import annotations

import asyncio
import logging
from functools import cache

from apprise import Apprise, AppriseAsset, NotifyBase, NotifyFormat, NotifyType, PersistentStoreMode

from heartbeat.threads import in_daemon_thread
from scheduler.channels.message import DeliveryResult, Message
from scheduler.model.settings import Network
from scheduler.net import proxies

TOTAL = 30.0  # seconds, whatever the service needs to do
HANGING = 16  # sendings that may still hang after their time; a thread cannot be ended from outside

_under_way: set[asyncio.Future[bool]] = set()

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


async def send(url: str, message: Message, network: Network, *, total: float = TOTAL) -> DeliveryResult:
    """Send `message` once as plain text; waits for at most `total` seconds, then nobody knows whether it arrived.

    Apprise opens its own connections, through the proxies of `network`: no address is refused to it, and of a refusal the
    reason is not known. It blocks, so it runs in a daemon thread.
    """
    service = _service(url)
    if service is None:
        return DeliveryResult("dead", "Apprise knows no service of this URL")
    name = str(service.service_name)
    if len(_under_way) >= HANGING:
        return DeliveryResult("retry", f"{HANGING} earlier messages to services of Apprise still hang")
    proxies.set_proxies_for_libraries(network)
    asking = asyncio.ensure_future(in_daemon_thread(_ask, service, message))
    _under_way.add(asking)
    asking.add_done_callback(_under_way.discard)
    try:
        async with asyncio.timeout(total):
            yes = await asyncio.shield(asking)
    except TimeoutError:
        return DeliveryResult("uncertain", f"{name} did not answer in time")
    return DeliveryResult("delivered") if yes else DeliveryResult("retry", f"{name} did not take the message")


def _ask(service: NotifyBase, message: Message) -> bool:
    """Apprise turns what goes wrong inside a service into a no."""
    title = message.title if service.title_maxlen > 0 else ""
    caller = Apprise(asset=_asset())
    caller.add(service)
    return bool(caller.notify(message.text, title, NotifyType.INFO, body_format=NotifyFormat.TEXT))


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
