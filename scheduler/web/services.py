"""Carries out the verbs that need no tick of the engine: reload and ping."""

from __future__ import annotations

from heartbeatd.answers import Reloaded, TestedChannels
from heartbeatd.verbs import Ping, Reload
from scheduler.engine import ping_message
from scheduler.web.api_request import ApiRequest
from scheduler.web.http_errors import HttpError, bad_request
from scheduler.web.perform import handles, sender_of


@handles(Reload)
def reload_config(request: ApiRequest, verb: Reload) -> Reloaded:
    """Apply the config file as it is now, or only compare it."""
    found = request.app_state.reloader.reload(by=sender_of(request).by, dry=verb.dry_run)
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
