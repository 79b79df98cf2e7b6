"""Turns a notification of Alertmanager (webhook body, version 4) into a wake of an agent.

The format is described in https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

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


def _as_text(given: object) -> str:
    return given if isinstance(given, str) else "" if given is None else json.dumps(given)


def _as_texts(given: object) -> dict[str, str]:
    return {name: _as_text(value) for name, value in given.items()} if isinstance(given, dict) else {}


def _as_count(given: object) -> int:
    return given if type(given) is int and 0 < given <= MAX_OMITTED_ALERTS else 0


AnyText = Annotated[str, BeforeValidator(_as_text)]
AnyTexts = Annotated[dict[str, str], BeforeValidator(_as_texts)]


class Alert(BaseModel):
    """An alert of a notification. Nothing is checked, because Alertmanager does not repeat a rejected notification."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel)

    status: AnyText = ""
    labels: AnyTexts = {}
    annotations: AnyTexts = {}
    starts_at: AnyText = ""
    ends_at: AnyText = ""
    generator_url: AnyText = Field("", alias="generatorURL")

    @property
    def is_firing(self) -> bool:
        return self.status == FIRING


class AlertmanagerBody(BaseModel):
    """Version 4 of the body of Alertmanager's webhook."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel)

    version: Annotated[Literal["4"], Field(description=VERSION_HINT)]
    alerts: Annotated[list[Alert], Field(min_length=1, description="a list of at least one alert")]
    status: AnyText = ""
    receiver: AnyText = ""
    group_key: AnyText = ""
    truncated_alerts: Annotated[int, BeforeValidator(_as_count)] = 0


def is_notification(sent: Mapping[str, object]) -> bool:
    """Whether a body is one of Alertmanager."""
    return "alerts" in sent


def wake_from_alerts(sent: Mapping[str, object], sender: Sender) -> tuple[Wake, Sender]:
    """The wake for a notification, and the group of alerts as its sender: repeats for one group merge.

    If all alerts are resolved, the wake is not urgent: it starts no run and waits for the next one. Raises HttpError.
    """
    try:
        body = AlertmanagerBody.model_validate(sent)
    except ValidationError as error:
        raise bad_request(error_sentence(error, AlertmanagerBody)) from None
    text = _wake_text(body).encode(errors="replace").decode()  # an alert may have half of a surrogate pair
    wake = Wake(text=text, urgent=any(alert.is_firing for alert in body.alerts))
    return wake, replace(sender, name=_sender_of_group(body), source=Trigger.WEBHOOK)


def _sender_of_group(body: AlertmanagerBody) -> str:
    sender = f"{body.receiver} {body.group_key}".encode(errors="replace").decode()
    if len(sender) <= MAX_SENDER_LENGTH:
        return sender
    return f"{sender[: MAX_SENDER_LENGTH - 17]} {sha256(sender.encode()).hexdigest()[:16]}"


def _wake_text(body: AlertmanagerBody) -> str:
    """The text for the agent: as many alerts as fit into a wake, firing ones first, and the number of those left out."""
    alerts = sorted(body.alerts, key=lambda alert: not alert.is_firing)
    text = f"Alertmanager notifies: {_single_line(body.status)}."
    room, left_out = TEXT_LIMIT - RESERVED_FOR_END, body.truncated_alerts
    for number, alert in enumerate(alerts):
        longer = "\n".join((text, "", *_alert_lines(alert)))
        if number and len(longer.encode(errors="replace")) > room:
            left_out += len(alerts) - number
            break
        text = longer.encode(errors="replace")[:room].decode(errors="ignore")
    return f"{text}\n\nLeft out here: {format_count(left_out, 'more alert')}." if left_out else text


def _alert_lines(alert: Alert) -> Iterator[str]:
    """One alert as lines of text, one value per line. Values are escaped as in JSON, so that none can start a line of its own."""
    yield f"{_single_line(alert.labels.get('alertname', 'an alert without a name'))}: {_single_line(alert.status)}"
    yield f"  since: {_single_line(alert.starts_at)}"
    if not alert.is_firing:
        yield f"  until: {_single_line(alert.ends_at)}"
    yield from (f"  {_single_line(name)}: {_quote_text(value)}" for name, value in alert.annotations.items())
    yield from (f"  {_single_line(name)}={_quote_text(value)}" for name, value in alert.labels.items() if name != "alertname")
    if alert.generator_url:
        yield f"  source: {_quote_text(alert.generator_url)}"


def _quote_text(value: str) -> str:
    cut = shorten(value, MAX_VALUE_LENGTH)
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in json.dumps(cut, ensure_ascii=False)
    )


def _single_line(value: str) -> str:
    """A value on one line, without quotes, cut at MAX_VALUE_LENGTH."""
    return _quote_text(value)[1:-1]
