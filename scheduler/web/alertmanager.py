"""Alertmanager's notification, its webhook's body of version 4, as the wake of an agent.

The form is Prometheus's: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from scheduler.config.file.message_parts import format_count
from scheduler.model.outcome import Trigger
from scheduler.model.wake import TEXT_LIMIT, Wake
from scheduler.web.request_bodies import AlertmanagerBody

FIRING = "firing"
LONGEST_SENDER = 200  # characters
LONGEST_VALUE = 300  # characters of a label or an annotation
MOST_LEFT_OUT = 1_000_000  # alerts; a larger number is none that somebody has counted
ROOM_FOR_END = 100  # bytes of the text kept free to say how many alerts it leaves out


def wake(agent: str, body: AlertmanagerBody, token: str = "") -> Wake:
    """The wake that a notification asks for, sent with a token. Repeats for one group merge, as they have one sender.

    Where all is resolved nobody needs to be woken: it is told by the next beat.
    """
    alerts = sorted(body.alerts, key=lambda alert: _status(alert) != FIRING)  # those that fire first
    firing = any(_status(alert) == FIRING for alert in alerts)
    return Wake(agent, source=Trigger.WEBHOOK, sender=_sender(body), text=_told(body, alerts), urgent=firing, token=token)


def _sender(body: AlertmanagerBody) -> str:
    sender = f"{_value(body.receiver)} {_value(body.group)}".encode(errors="replace").decode()
    if len(sender) <= LONGEST_SENDER:
        return sender
    return f"{sender[: LONGEST_SENDER - 17]} {sha256(sender.encode()).hexdigest()[:16]}"


def _told(body: AlertmanagerBody, alerts: Sequence[Mapping[str, Any]]) -> str:
    """What the agent reads: as many alerts as fit into what is kept of a wake, and how many more there are."""
    told = f"Alertmanager notifies: {_line(body.status)}."
    room = TEXT_LIMIT - ROOM_FOR_END
    left_out = _number(body.truncated)
    for number, alert in enumerate(alerts):
        part = f"{told}\n\n{_alert(alert)}"
        if number and len(part.encode(errors="replace")) > room:
            left_out += len(alerts) - number
            break
        told = part.encode(errors="replace")[:room].decode(errors="ignore")
    return f"{told}\n\nLeft out here: {format_count(left_out, 'more alert')}." if left_out else told


def _alert(alert: Mapping[str, Any]) -> str:
    labels, annotations = _pairs(alert.get("labels")), _pairs(alert.get("annotations"))
    return "\n".join(_lines(alert, labels, annotations))


def _lines(alert: Mapping[str, Any], labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[str]:
    """One alert, a value to a line: values are written as JSON has them, so that none breaks out of its line."""
    yield f"{_line(labels.get('alertname', 'an alert without a name'))}: {_line(_status(alert))}"
    yield f"  since: {_line(alert.get('startsAt'))}"
    if _status(alert) != FIRING:
        yield f"  until: {_line(alert.get('endsAt'))}"
    yield from (f"  {_line(name)}: {_quoted(value)}" for name, value in annotations.items())
    yield from (f"  {_line(name)}={_quoted(value)}" for name, value in labels.items() if name != "alertname")
    if source := _value(alert.get("generatorURL")):
        yield f"  source: {_quoted(source)}"


def _pairs(given: object) -> dict[str, str]:
    return {name: _value(value) for name, value in given.items()} if isinstance(given, dict) else {}


def _status(alert: Mapping[str, Any]) -> str:
    return _value(alert.get("status"))


def _value(given: object) -> str:
    return given if isinstance(given, str) else "" if given is None else json.dumps(given)


def _number(given: object) -> int:
    return given if type(given) is int and 0 < given <= MOST_LEFT_OUT else 0


def _quoted(value: str) -> str:
    cut = value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}..."
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in json.dumps(cut, ensure_ascii=False))


def _line(given: object) -> str:
    """A value without quotes, on one line and not too long."""
    return _quoted(_value(given))[1:-1]
