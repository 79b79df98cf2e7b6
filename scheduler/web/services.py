"""Carries out the verbs that need no tick of the engine: reload and ping. Says what a new wake waits for."""

from __future__ import annotations

from heartbeatd.answers import Reloaded, TestedChannels, WakeAccepted
from heartbeatd.verbs import Ping, Reload, Wake
from scheduler.engine import ping_message
from scheduler.insight import wake_waits
from scheduler.web.api_request import ApiRequest
from scheduler.web.app_state import open_reader
from scheduler.web.http_errors import HttpError, bad_request
from scheduler.web.perform import COMPLETED, handles, sender_of


@handles(Reload)
def reload_config(request: ApiRequest, verb: Reload) -> Reloaded:
    """Apply the config file as it is now, or only compare it."""
    found = request.app_state.reload_config(by=sender_of(request).by, dry=verb.dry_run)
    changed: dict[str, list[str]] = {}
    for each in found.diff.changes:
        part, _, key = each.key.partition(".")
        for name, inside in [(name, each.key) for name in each.entries] or [(part, key)]:
            changed.setdefault(name, []).append(inside)
    return Reloaded(
        added=list(found.diff.added),
        removed=list(found.diff.removed),
        changed=changed,
        unchanged=found.unchanged,
        lines=found.lines,
        warnings=list(found.warnings),
        says=f"the config file is {'valid' if verb.dry_run else 'active'}",
    )


@handles(Ping)
def ping_channels(request: ApiRequest, verb: Ping) -> TestedChannels:
    """Send a test message to the named channel, or to all that need no target."""
    try:
        return ping_message.send_test_messages(request.app_state.settings(), verb.channel, request.app_state.clock())
    except ping_message.UnknownChannel as error:
        raise HttpError(404, "not_found", str(error)) from None
    except ValueError as error:
        raise bad_request(str(error)) from None


def _add_wait(request: ApiRequest, answer: WakeAccepted) -> WakeAccepted:
    """What a new wake waits for, unless its run starts."""
    with open_reader(request.app_state) as db:
        wait = wake_waits.wait_of_wake(db, answer.wake, request.app_state.clock())
    if wait is None or wait.is_starting:
        return answer
    says = f"{answer.says}; it {wait.describe(request.app_state.settings().zone)}"
    return WakeAccepted(wake=answer.wake, waits_for=wait.reason, until=wait.until, says=says)


COMPLETED[Wake] = _add_wait
