"""Turns a notification of Alertmanager (webhook body, version 4) into a wake of an agent.

The format is described in https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heartbeat.words import format_count, shorten
from heartbeatd.operations import error_sentence
from heartbeatd.verbs import Wake
from scheduler.engine.effects import Sender
from scheduler.model.outcome import Trigger
from scheduler.model.wake import TEXT_LIMIT
from scheduler.web.http_errors import bad_request

VERSION_HINT = '"4": only this version of Alertmanager\'s webhook body is supported'
FIRING = "firing"
MAX_SENDER_LENGTH = 200  # characters
MAX_VALUE_LENGTH = 300  # characters of a label or an annotation
MAX_OMITTED_ALERTS = 1_000_000  # alerts; a larger number cannot be a real count
RESERVED_FOR_END = 100  # bytes of the text kept free for the sentence about omitted alerts


class AlertmanagerBody(BaseModel):
    """Version 4 of the body of Alertmanager's webhook.

    Nothing else is checked, because Alertmanager does not repeat a rejected notification.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    version: Annotated[Literal["4"], Field(description=VERSION_HINT)]
    alerts: Annotated[list[dict[str, Any]], Field(min_length=1, description="a list of at least one alert")]
    status: Any = None
    receiver: Any = None
    group_key: Any = Field(None, alias="groupKey")
    truncated_alerts: Any = Field(None, alias="truncatedAlerts")


def is_notification(sent: Mapping[str, Any]) -> bool:
    """Whether a body is one of Alertmanager."""
    return "alerts" in sent


def wake_from_alerts(sent: Mapping[str, Any], sender: Sender) -> tuple[Wake, Sender]:
    """The wake for a notification, and the group of alerts as its sender: repeats for one group merge.

    If all alerts are resolved, the wake is not urgent: it starts no run and waits for the next one. Raises HttpError.
    """
    try:
        body = AlertmanagerBody.model_validate(sent)
    except ValidationError as error:
        raise bad_request(error_sentence(error, AlertmanagerBody)) from None
    alerts = sorted(body.alerts, key=lambda alert: _alert_status(alert) != FIRING)  # firing alerts first
    firing = any(_alert_status(alert) == FIRING for alert in alerts)
    text = _wake_text(body, alerts).encode(errors="replace").decode()  # an alert may have half of a surrogate pair
    wake = Wake(text=text, urgent=firing)
    return wake, replace(sender, name=_sender_of_group(body), source=Trigger.WEBHOOK)


def _sender_of_group(body: AlertmanagerBody) -> str:
    sender = f"{_as_text(body.receiver)} {_as_text(body.group_key)}".encode(errors="replace").decode()
    if len(sender) <= MAX_SENDER_LENGTH:
        return sender
    return f"{sender[: MAX_SENDER_LENGTH - 17]} {sha256(sender.encode()).hexdigest()[:16]}"


def _wake_text(body: AlertmanagerBody, alerts: Sequence[Mapping[str, Any]]) -> str:
    """The text for the agent: as many alerts as fit into a wake, and the number of those left out."""
    text = f"Alertmanager notifies: {_single_line(body.status)}."
    room = TEXT_LIMIT - RESERVED_FOR_END
    left_out = _truncated_count(body.truncated_alerts)
    for number, alert in enumerate(alerts):
        longer = f"{text}\n\n{_alert_text(alert)}"
        if number and len(longer.encode(errors="replace")) > room:
            left_out += len(alerts) - number
            break
        text = longer.encode(errors="replace")[:room].decode(errors="ignore")
    return f"{text}\n\nLeft out here: {format_count(left_out, 'more alert')}." if left_out else text


def _alert_text(alert: Mapping[str, Any]) -> str:
    labels, annotations = _string_pairs(alert.get("labels")), _string_pairs(alert.get("annotations"))
    return "\n".join(_alert_lines(alert, labels, annotations))


def _alert_lines(alert: Mapping[str, Any], labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[str]:
    """One alert as lines of text, one value per line. Values are escaped as in JSON, so that none can start a line of its own."""
    yield f"{_single_line(labels.get('alertname', 'an alert without a name'))}: {_single_line(_alert_status(alert))}"
    yield f"  since: {_single_line(alert.get('startsAt'))}"
    if _alert_status(alert) != FIRING:
        yield f"  until: {_single_line(alert.get('endsAt'))}"
    yield from (f"  {_single_line(name)}: {_quote_text(value)}" for name, value in annotations.items())
    yield from (f"  {_single_line(name)}={_quote_text(value)}" for name, value in labels.items() if name != "alertname")
    if source := _as_text(alert.get("generatorURL")):
        yield f"  source: {_quote_text(source)}"


def _string_pairs(given: object) -> dict[str, str]:
    return {name: _as_text(value) for name, value in given.items()} if isinstance(given, dict) else {}


def _alert_status(alert: Mapping[str, Any]) -> str:
    return _as_text(alert.get("status"))


def _as_text(given: object) -> str:
    return given if isinstance(given, str) else "" if given is None else json.dumps(given)


def _truncated_count(given: object) -> int:
    return given if type(given) is int and 0 < given <= MAX_OMITTED_ALERTS else 0


def _quote_text(value: str) -> str:
    cut = shorten(value, MAX_VALUE_LENGTH)
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in json.dumps(cut, ensure_ascii=False)
    )


def _single_line(given: object) -> str:
    """A value on one line, without quotes, cut at MAX_VALUE_LENGTH."""
    return _quote_text(_as_text(given))[1:-1]
