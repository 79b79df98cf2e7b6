"""Calls an agent over HTTP: the request is JSON in a POST, the answer is in the response or comes later."""

from __future__ import annotations

import json

from heartbeat.runners import AgentRequest, Answer, Failure, HttpClient, HttpReply, agent_json
from heartbeat.runners.call_errors import CallError, error_from_reply, parse_json_object, redacted_line
from heartbeat.runners.redaction import Redactor, is_secret, reveal_secret, secret_parts
from heartbeat.spec import HttpRunner


async def call_agent(run: AgentRequest, runner: HttpRunner, http: HttpClient) -> Answer:
    """Post the request and read the response within `run.timeout`.

    Status 200 with JSON (`text` or `error`, and optionally `model`, `tokens`, `cost_usd`) or with plain text is the answer.
    Status 202 means that the agent sends the answer later and names the run by the `run` of the request. Every other response
    is a failure. Raises CallError.
    """
    url = reveal_secret(runner.url)
    headers = {"accept": "application/json, text/plain"} | {name: reveal_secret(value) for name, value in runner.headers.items()}
    if run.traceparent and not any(name.lower() == "traceparent" for name in headers):
        headers["traceparent"] = run.traceparent
    body = json.dumps(agent_json.request_data(run)).encode()
    return _parse_reply(await http.post(url, headers, body, run.timeout.total_seconds()), _redactor_for(runner, url))


def _redactor_for(runner: HttpRunner, url: str) -> Redactor:
    values = [reveal_secret(value) for value in runner.headers.values() if is_secret(value)]
    tokens = [value.partition(" ")[2] for value in values]  # of `Bearer TOKEN` only the token is secret
    return Redactor([*values, *tokens, *secret_parts(url, whole_url=is_secret(runner.url))])


def _parse_reply(reply: HttpReply, redactor: Redactor) -> Answer:
    if reply.status == 202:
        return Answer(later=True)
    if reply.status != 200:
        raise error_from_reply(reply, redactor)
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/plain":
        return Answer(text=agent_json.check_answer_text(reply.body.decode(errors="replace")))
    if kind != "application/json" and not kind.endswith("+json"):
        named = redacted_line(kind, redactor) or "no content type"
        raise CallError(Failure.BAD_ANSWER, f"answered with {named}; an answer is application/json or text/plain")
    return agent_json.parse_answer(parse_json_object(reply), failed=Failure.SERVER, redactor=redactor)
