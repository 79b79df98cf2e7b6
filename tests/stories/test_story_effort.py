"""The thinking effort over a day: cheap heartbeats, a thorough job, and a server that does not know the key."""

from __future__ import annotations

import pytest
from servers.messages import Models, error_answer, message, text_answer, tool
from servers.scripted import Act, Request, reply
from world import MakeWorld

KEY = "sk-ant-canary-0123456789"
DAY = """
providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{url}"}}}}
defaults: {{effort: medium, model: claude-opus-5}}
agents:
  ops: {{heartbeat: {{interval: 8h, stagger: 0s, checklist: "- look\\n", effort: low, deliver: log}}}}
  web: {{heartbeat: {{schedule: "0 12 * * *", checklist: "- look\\n", deliver: log}}}}
  old: {{effort: none, model: claude-3, heartbeat: {{schedule: "0 13 * * *", checklist: "- look\\n", deliver: log}}}}
cron:
  review: {{schedule: "0 18 * * *", prompt: "Review the day", agent: ops, effort: max}}
  notes: {{schedule: "0 19 * * *", prompt: "Write notes", agent: ops}}
"""


def efforts(server: Models) -> list[object]:
    """What each request asked for, in order; None without the key."""
    return [request.json.get("output_config") for request in server.requests]


def test_heartbeats_think_little_and_a_job_as_much_as_it_says(make_world: MakeWorld) -> None:
    with Models(lambda _: text_answer("HEARTBEAT_OK")) as server:
        world = make_world(DAY.format(url=server.url), environ={"KEY": KEY})
        world.run(minutes=24 * 60 - 1)
    medium, low = {"effort": "medium"}, {"effort": "low"}
    assert efforts(server) == [low, medium, None, low, {"effort": "max"}, medium, low]


def test_a_model_that_does_not_know_the_effort_says_what_to_write(make_world: MakeWorld) -> None:
    def answer(request: Request) -> Act:
        if "output_config" in request.json:
            return error_answer(400, "invalid_request_error", "This model does not support the effort parameter.")
        return text_answer("HEARTBEAT_OK")

    with Models(answer) as server:
        world = make_world(DAY.format(url=server.url), environ={"KEY": KEY})
        world.run(minutes=1)
        assert world.history() == ["03-02 08:00 interval failed bad_request"]
        assert world.records()[0]["error"].endswith("if the model does not know effort: low, write effort: none, or another one")
        world.reload(DAY.format(url=server.url).replace("effort: low, ", "").replace("effort: medium", "effort: none"))
        world.run(minutes=8 * 60)
    assert world.history("ops")[-1] == "03-02 16:00 interval ok heartbeat_ok"


def test_a_decision_is_made_without_the_effort(make_world: MakeWorld) -> None:
    def answer(request: Request) -> Act:
        decides = request.json["model"] == "small"
        return reply(message(tool("decide", {"action": "run", "tasks": "look"}))) if decides else text_answer("HEARTBEAT_OK")

    with Models(answer) as server:
        yaml = DAY.format(url=server.url).replace("effort: low", "effort: low, decide: {model: small}")
        make_world(yaml, environ={"KEY": KEY}).run(minutes=1)
    assert efforts(server) == [None, {"effort": "low"}]


def test_an_effort_that_the_sdk_does_not_know_is_refused(make_world: MakeWorld) -> None:
    with pytest.raises(Exception, match=r"agents\.ops\.heartbeat\.effort: 'lots' .*low.*medium.*high.*xhigh.*max"):
        make_world(DAY.format(url="http://127.0.0.1:1").replace("effort: low", "effort: lots"))
