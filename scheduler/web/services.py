"""Carries out the verbs that need no tick of the engine: reload and ping. Says what a new wake waits for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from heartbeatd.answers import Reloaded, TestedChannel, TestedChannels, WakeAccepted
from heartbeatd.verbs import Ping, Reload, Wake
from scheduler.channels import ping_message
from scheduler.insight import wake_waits
from scheduler.model.settings import Channel
from scheduler.web.api_request import ApiRequest
from scheduler.web.app_state import open_reader
from scheduler.web.http_errors import bad_request, not_found
from scheduler.web.perform import COMPLETED, handles, sender_of

MAX_PINGS = 8  # test messages that are sent at the same time


@handles(Reload)
def reload_config(request: ApiRequest, verb: Reload) -> Reloaded:
    """Apply the config file as it is now, or only compare it."""
    found = request.app_state.reload_config(by=sender_of(request).by, dry=verb.dry_run)
    return Reloaded(
        added=list(found.diff.added),
        removed=list(found.diff.removed),
        changed={name: list(keys) for name, keys in found.diff.changed.items()},
        unchanged=found.diff.unchanged,
        lines=list(found.lines),
        warnings=list(found.warnings),
    )


@handles(Ping)
def ping_channels(request: ApiRequest, verb: Ping) -> TestedChannels:
    """Send a test message to the named channel, or to all that need no target."""
    channels = _channels_to_ping(request, verb.channel)
    network, now = request.app_state.settings().network, request.app_state.clock()
    with ThreadPoolExecutor(MAX_PINGS) as threads:
        sent = threads.map(lambda channel: ping_message.send_test_message(channel, network, now), channels)
        tested = zip(channels, sent, strict=True)
        return TestedChannels(
            channels=[TestedChannel(channel=channel.name, state=each.state, error=each.error or None) for channel, each in tested]
        )


def _channels_to_ping(request: ApiRequest, named: str | None) -> list[Channel]:
    declared = request.app_state.settings().channels
    if named is None:
        return [channel for channel in ping_message.testable_channels(declared) if not channel.needs_target]
    name, _, recipient = named.partition(":")
    if name not in declared:
        raise not_found(f"channel {name!r}")
    try:
        return [ping_message.channel_to_test(declared[name], recipient)]
    except ValueError as error:
        raise bad_request(str(error)) from None


def _add_wait(request: ApiRequest, answer: WakeAccepted) -> WakeAccepted:
    """What a new wake waits for, unless its run starts."""
    with open_reader(request.app_state) as db:
        wait = wake_waits.wait_of_wake(db, answer.wake, request.app_state.clock())
    if wait is None or wait.is_starting:
        return answer
    return WakeAccepted(wake=answer.wake, waits_for=wait.reason, until=wait.until)


COMPLETED[Wake] = _add_wait
