"""Sends a message to a service that Apprise supports. Without an answer in half a minute, the delivery is uncertain."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

from scheduler.channels.channel_kind import ChannelKind, SendContext, prefixed_text, text_after_prefix
from scheduler.channels.http_post import channel_url
from scheduler.channels.url_template import url_scheme
from scheduler.model.message import DeliveryResult, Message
from scheduler.model.settings import Channel

# Apprise takes a fifth of a second and 20 MiB to import, and most configs have no such channel: it is imported at the first use.
if TYPE_CHECKING:
    import asyncio

    from apprise import AppriseAsset, NotifyBase

MAX_HANGING = 16  # messages that may still hang after their time; a thread cannot be ended from outside

_under_way: set[asyncio.Future[bool]] = set()


async def send(channel: Channel, message: Message, context: SendContext) -> DeliveryResult:
    """Send `message` once as plain text. After the time of `context` it is unknown whether it arrived.

    The prefix is the title if the service has titles.

    Apprise opens its own connections, through the proxies of the config: no address is refused, and the reason of a failure is
    not known. It blocks, so it runs in a daemon thread.
    """
    import asyncio

    from heartbeat.threads import in_daemon_thread
    from scheduler.net import proxies

    service = _find_service(channel_url(channel))
    if service is None:
        return DeliveryResult("dead", "Apprise does not support the service of this URL")
    name = str(service.service_name)
    if len(_under_way) >= MAX_HANGING:
        return DeliveryResult("retry", f"{MAX_HANGING} earlier messages to services of Apprise still hang")
    proxies.set_proxies_for_libraries(context.http.network)
    sending = asyncio.ensure_future(in_daemon_thread(_notify, service, channel, message))
    _under_way.add(sending)
    sending.add_done_callback(_under_way.discard)
    try:
        async with asyncio.timeout(context.seconds):
            accepted = await asyncio.shield(sending)
    except TimeoutError:
        return DeliveryResult("uncertain", f"{name} did not answer in time")
    return DeliveryResult("delivered") if accepted else DeliveryResult("retry", f"{name} did not accept the message")


def _notify(service: NotifyBase, channel: Channel, message: Message) -> bool:
    """Whether the service accepted the message. Apprise turns every error inside a service into False."""
    from apprise import Apprise, NotifyFormat, NotifyType

    from scheduler.net.library_requests import limited_answers

    has_titles = service.title_maxlen > 0
    prefix = channel.prefix_for(message.kind, message.name, message.title)
    title = (prefix or message.title) if has_titles else ""
    text = text_after_prefix(channel, message) if has_titles else prefixed_text(channel, message)
    caller = Apprise(asset=_asset())
    caller.add(service)
    with limited_answers():
        return bool(caller.notify(text, title, NotifyType.INFO, body_format=NotifyFormat.TEXT))


def _find_service(url: str) -> NotifyBase | None:
    from apprise import Apprise

    return Apprise.instantiate(url, asset=_asset())


@cache
def _asset() -> AppriseAsset:
    """Settings with which Apprise keeps nothing on disk, logs and interpolates nothing, and follows no redirect."""
    from apprise import AppriseAsset, PersistentStoreMode

    for library in ("apprise", "requests", "urllib3"):  # they log URLs, which contain tokens
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    return AppriseAsset(
        app_id="heartbeatd",
        app_desc="heartbeatd",
        storage_mode=PersistentStoreMode.MEMORY,
        async_mode=False,
        http_redirects=False,
        allow_templates=False,
    )


def _check_url(url: str) -> int:
    """How many characters the service of a URL takes in one message."""
    service = _find_service(url)
    if service is None:
        problem = "this is not a URL of a service that Apprise supports, or a part of it is missing"
        raise ValueError(f"{url_scheme(url)}:// cannot be used: {problem}")
    return max(int(service.body_maxlen), 2)


KIND = ChannelKind("apprise", send, check_url=_check_url, url_form="a URL of Apprise", own_connections=True)
