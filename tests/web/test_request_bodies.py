"""Tests of the models of request bodies and of their JSON schemas."""

import pytest
from loops import loop_over

from scheduler.web.http_errors import HttpError
from scheduler.web.request_bodies import AlertmanagerBody, EmptyBody, HoldBody, PauseBody, RequestBody, ResultBody, parse_body

MODELS = RequestBody.__subclasses__()


@loop_over("model", MODELS)
def test_every_body_has_a_schema_with_the_keys_that_may_be_sent(model: type[RequestBody]) -> None:
    schema = model.model_json_schema()
    assert list(schema["properties"]) == model.allowed_keys() if model is not EmptyBody else schema["properties"] == {}
    assert schema.get("additionalProperties", True) is (model is AlertmanagerBody)


def test_a_schema_describes_what_the_daemon_checks() -> None:
    hold = HoldBody.model_json_schema()
    assert hold["required"] == ["id", "for"]
    assert hold["properties"]["id"]["pattern"] == "^[A-Za-z0-9._:/@+-]{1,100}$"


@loop_over(
    ("model", "sent", "message"),
    [
        (PauseBody, {"for": None}, "for: an empty value is not a duration; write 90s, 30m or 1h30m"),
        (PauseBody, {"fro": "1h", "for": 3}, "'fro' is not allowed here; write for, until"),
        (PauseBody, {"\ud800": "1h"}, "a key of the body is not a string; write for, until"),
        (ResultBody, {}, "write either text or error, as a string in quotes, or findings, as a list"),
        (ResultBody, {"findings": [], "error": "x"}, "write either text or error, as a string in quotes, or findings, as a list"),
        (ResultBody, {"findings": {}}, "findings: write a list of objects with key, text, severity and resolved"),
        (ResultBody, {"findings": [{}]}, "none of the findings has a key or a text"),
        (ResultBody, {"text": "x", "truncated": 1}, "truncated: write true or false"),
        (ResultBody, {"text": 5}, "text: write a string in quotes"),
        (HoldBody, {"id": "chat\n", "for": "2m"}, "id: write 1 to 100 of A-Z a-z 0-9 . _ : / @ + -, as in chat:4711"),
        (AlertmanagerBody, {"version": "4", "alerts": ["x"]}, "alerts: write a list of at least one alert"),
    ],
)
def test_an_invalid_body_is_rejected_with_advice(model: type[RequestBody], sent: dict[str, object], message: str) -> None:
    with pytest.raises(HttpError) as refused:
        parse_body(sent, model)
    assert (refused.value.status, refused.value.code, refused.value.message) == (400, "bad_request", message)
