"""Ask the agent behind a URL: the run as JSON in a POST, the answer in its response, or later."""

from __future__ import annotations

import json

from heartbeat.runners import Answer, Failure, HttpClient, Reply, Run, agent_json
from heartbeat.runners.errors import Trouble, json_object, one_line, refusal
from heartbeat.runners.redaction import Veil, is_secret, parts_of, reveal
from heartbeat.spec import HttpRunner


async def ask(run: Run, runner: HttpRunner, http: HttpClient) -> Answer:
    """Post the run and read what comes back within `run.timeout`.

    200 with JSON (`text`, or `error`; beside them `model`, `tokens`, `cost_usd`) or with plain text is the answer. 202 means
    that it comes later: the run's number, `run` in the request, says where it belongs. Anything else is a failure.
    """
    try:
        return await _asked(run, runner, http)
    except Trouble as trouble:
        return trouble.answer


async def _asked(run: Run, runner: HttpRunner, http: HttpClient) -> Answer:
    url = reveal(runner.url)
    headers = {"accept": "application/json, text/plain"} | {name: reveal(value) for name, value in runner.headers.items()}
    body = json.dumps(agent_json.of(run)).encode()
    return _read(await http.post(url, headers, body, run.timeout.total_seconds()), _veil(runner, url))


def _veil(runner: HttpRunner, url: str) -> Veil:
    values = [reveal(value) for value in runner.headers.values() if is_secret(value)]
    tokens = [value.partition(" ")[2] for value in values]  # of `Bearer TOKEN` it is the token that must not be told
    return Veil([*values, *tokens, *parts_of(url, all_of_it=is_secret(runner.url))])


def _read(reply: Reply, veil: Veil) -> Answer:
    if reply.status == 202:
        return Answer(later=True)
    if reply.status != 200:
        raise refusal(reply, veil)
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/plain":
        return Answer(text=agent_json.checked(reply.body.decode(errors="replace")))
    if kind != "application/json" and not kind.endswith("+json"):
        named = one_line(kind, veil) or "no content type"
        raise Trouble(Failure.BAD_ANSWER, f"answered with {named}; an answer is application/json or text/plain")
    return agent_json.read(json_object(reply), failed=Failure.SERVER, veil=veil)
