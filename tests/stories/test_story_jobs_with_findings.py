"""Jobs whose agents report findings (`answer: structured`): the same rules as for heartbeats, end to end."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from config_file import complaints
from servers.messages import Models, message, text_answer, tool
from servers.scripted import Act, Request, reply
from test_story_explain import explained_entry, fact_of, records_of
from world import AgentCall, MakeWorld, World

from heartbeatd.verbs import Ack, CloseProblem, RunJob
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.insight.explanation import explain_all, explain_now
from scheduler.model.outcome import Kind, Trigger

KEY = "sk-ant-canary-0123456789"
MODEL = """
providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{url}"}}}}
agents:
  ops: {{runner: {{kind: anthropic}}, heartbeat: {{interval: none}}}}
cron:
  mail: {{every: 1h, prompt: "Look at the mail.", agent: ops, answer: structured, deliver: log{more}}}
"""
PROGRAM = """
agents:
  ops: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{interval: none}}}}
cron:
  mail: {{every: 1h, prompt: "Look at the mail.", agent: ops, answer: structured, deliver: log{more}}}
"""


def finding(key: str, text: str, severity: str = "warning", *, resolved: bool = False) -> dict[str, object]:
    return {"key": key, "text": text, "severity": severity, "resolved": resolved}


def reports(*found: dict[str, object]) -> Act:
    """A model reports these findings by its tool."""
    return reply(message(tool("report_findings", {"findings": list(found)}), stop_reason="tool_use"))


def first_lines(world: World) -> list[str]:
    return [f"{when:%H:%M} {text.splitlines()[0].split(' (', 1)[0]}" for when, _, text in world.delivered]


def test_a_day_of_a_job_that_looks_at_the_mail(make_world: MakeWorld) -> None:
    """One message when a problem opens, one when it gets worse, one when it is over, whatever the number of runs."""

    def answer(request: Request) -> Act:
        hour = world.clock.now.hour
        if hour < 10 or hour >= 16:
            return reports()
        return reports(finding("mail:queue", "120 mails wait", "critical" if hour >= 12 else "warning"))

    with Models(answer) as server:
        world = make_world(MODEL.format(url=server.url, more=""), environ={"KEY": KEY}, start="2026-03-02 00:00")
        world.run(hours=23)
    assert [(hour, text.split(": ")[0]) for hour, text in (line.split(" ", 1) for line in first_lines(world))] == [
        ("10:00", "warning  cron/mail mail:queue"),
        ("12:00", "CRITICAL cron/mail mail:queue"),
        ("17:00", "over     cron/mail mail:queue"),
    ]
    asked = server.requests[-1].json
    assert asked["tools"][0]["name"] == "report_findings"
    assert [row["result"] for row in world.records("mail")].count("alert") == 6
    assert world.records("mail")[10]["why"] == "duplicate"


def test_the_prompt_of_a_job_names_its_open_problems_and_no_others(make_world: MakeWorld) -> None:
    world = make_world(PROGRAM.format(more=""), scripts={"mail": lambda call: "[mail:queue] 120 mails wait"})
    world.run(hours=2)
    first, second = (call.stdin for call in world.calls)
    assert "Answer with JSON alone" in first
    assert "These problems are open" not in first
    assert "[mail:queue] warning, since 2026-03-02 09:00" in second
    assert "checklist" not in first


def test_explain_says_why_a_job_with_findings_is_quiet(make_world: MakeWorld) -> None:
    world = make_world(PROGRAM.format(more=""), scripts={"mail": lambda call: "[mail:queue] 120 mails wait"})
    world.run(hours=3)
    [mail] = [each for each in explain_all(records_of(world)).entries if each.name == "mail"]
    assert (mail.result, mail.why) == ("quiet", "known")
    assert mail.says.startswith("ran 3 times, 1 message delivered; mail:queue: known since 09:00, next reminder")
    facts = explain_now(explained_entry(world, "mail")).as_data()
    assert (
        fact_of(facts, "answer")["says"]
        == "not sent again; its recipients have already got its content; mail:queue: already open"
    )
    assert "is over when the agent reports its end, or after 2 answers in a row without it" in fact_of(facts, "open")["says"]


def test_a_problem_of_a_job_can_be_acknowledged_and_closed(make_world: MakeWorld) -> None:
    world = make_world(PROGRAM.format(more=", problems: {remind: 2h}"), scripts={"mail": lambda call: "[mail:queue] 120 wait"})
    world.run(hours=1)
    number = world.problem("mail:queue", "mail").id
    world.request(VerbRequest(Ack(), number))
    world.run(hours=6)
    assert len(world.delivered) == 1
    world.request(VerbRequest(CloseProblem(), number))
    world.run(hours=1)
    assert len(world.delivered) == 2


def test_a_precheck_and_findings_work_together_as_for_heartbeats(make_world: MakeWorld) -> None:
    """The lines of the precheck are evidence: the end comes without a call, and unchanged output makes none."""
    more = ", precheck: {command: ./queue.sh, unchanged: skip}"
    world = make_world(PROGRAM.format(more=more), scripts={"mail": lambda call: "[queue] 120 mails wait at mx1"})
    printed = ["mx1: 120 mails wait", "mx1: 120 mails wait", "NO_WORK", "NO_WORK"]
    world.prechecks["mail"] = lambda call: printed[len(world.precheck_calls) - 1]
    world.run(hours=4)
    assert len(world.calls) == 1
    assert first_lines(world) == [
        "09:00 warning  cron/mail queue: 120 mails wait at mx1",
        "12:00 over     cron/mail queue: after 3h, its lines are gone   p1",
    ]
    assert [row["why"] for row in world.records("mail")] == [None, "precheck_unchanged", "precheck", "precheck"]


def test_a_model_is_asked_again_about_a_line_without_a_finding(make_world: MakeWorld) -> None:
    answers = iter(
        [reports(finding("a", "disk sda fails")), reports(finding("a", "disk sda fails"), finding("b", "fan 2 stands"))]
    )
    with Models(lambda request: next(answers)) as server:
        world = make_world(MODEL.format(url=server.url, more=", precheck: ./hardware.sh"), environ={"KEY": KEY})
        world.prechecks["mail"] = lambda call: "disk sda fails\nfan 2 stands"
        world.run(hours=1)
    assert len(server.requests) == 2
    assert len(world.delivered[0][2].splitlines()) == 2


def test_an_alert_of_a_job_counts_as_a_success_for_the_agents_that_it_wakes(make_world: MakeWorld) -> None:
    world = make_world(PROGRAM.format(more=", wake_heartbeat: ops, wake_on: success"))
    world.scripts["mail"] = lambda call: "[mail:queue] 120 mails wait"
    world.write("ops/HEARTBEAT.md", "- look\n")
    world.run(hours=1, minutes=1)
    assert [call.name for call in world.calls] == ["mail", "ops"]


def test_a_run_by_hand_over_http_does_not_tie_a_problem_to_its_caller(make_world: MakeWorld) -> None:
    found = ["[mail] waits", "HEARTBEAT_OK", "HEARTBEAT_OK"]
    world = make_world(PROGRAM.format(more=""), scripts={"mail": lambda call: found[len(world.calls) - 1]})
    world.request(VerbRequest(RunJob(), (Kind.CRON, "mail"), Sender("bot", "token", Trigger.API, "bot")))
    world.run(hours=2, minutes=1)
    assert world.problem("mail", "mail").over_at is not None


def test_a_job_that_becomes_a_text_again_has_no_open_problems(make_world: MakeWorld) -> None:
    world = make_world(PROGRAM.format(more=""), scripts={"mail": lambda call: "[mail:queue] 120 mails wait"})
    world.run(hours=1)
    world.reload(PROGRAM.format(more="").replace("answer: structured, ", ""))
    world.run(hours=1)
    assert world.delivered[-1][2] == "[mail:queue] 120 mails wait"
    assert [entry.says for entry in explain_all(records_of(world)).entries if entry.name == "mail"] == [
        "ran 2 times, 2 messages delivered, only to the log"
    ]


def test_a_text_is_sent_each_time_beside_findings_that_are_known(make_world: MakeWorld) -> None:
    with Models(lambda request: text_answer("Two mails came today.")) as server:
        world = make_world(MODEL.format(url=server.url, more=", ask_again: 0"), environ={"KEY": KEY})
        world.run(hours=2)
    assert [text for _, _, text in world.delivered] == ["Two mails came today.", "Two mails came today."]


def test_an_agent_and_a_job_with_one_name_have_their_own_problems(make_world: MakeWorld) -> None:
    text = PROGRAM.format(more="").replace("ops: {runner", "mail: {runner").replace("agent: ops", "agent: mail")
    world = make_world(text.replace("interval: none", 'interval: 1h, stagger: 0s, deliver: log, checklist: "- look\\n"'))
    answers = {"heartbeat": "[disk] full", "cron": "[mail:queue] waits"}

    def answer(call: AgentCall) -> str:
        return answers["cron" if "Look at the mail." in call.stdin else "heartbeat"]

    world.scripts["mail"] = answer
    world.run(hours=3)
    assert sorted(line.split(" ", 1)[1] for line in first_lines(world)) == [
        "warning  cron/mail mail:queue: waits",
        "warning  mail disk: full",
    ]


def test_asking_again_needs_findings(tmp_path: Path) -> None:
    text = PROGRAM.format(more=", ask_again: 1").replace("answer: structured, ", "")
    [complaint] = complaints(tmp_path, text)
    assert "only an answer with findings can be incomplete; remove ask_again" in complaint


def test_the_findings_of_a_job_survive_a_restart(make_world: MakeWorld) -> None:
    world = make_world(PROGRAM.format(more=""), scripts={"mail": lambda call: "[mail:queue] 120 mails wait"})
    world.run(hours=1)
    world.downtime(minutes=10)
    world.run(hours=3)
    assert len(world.delivered) == 1
    assert world.clock.now - world.problem("mail:queue", "mail").since > timedelta(hours=3)
    assert world.problem("mail:queue", "mail").subject == (Kind.CRON, "mail", "reported")
