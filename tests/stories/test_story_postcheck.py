"""Proof that the work of a run was done (`postcheck`), and agents that say that they could not do it, end to end."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from config_file import complaints
from run_async import with_http
from servers.messages import Models, message, tool
from servers.scripted import Act, reply
from test_story_breakers import KEY, fleet
from test_story_explain import records_of
from test_story_slots import agent, job
from world import QUIET, AgentCall, Delayed, MakeWorld, World, utc

from heartbeat.postcheck import WorkPlace, verify
from heartbeat.result import AttemptResult
from heartbeat.runners import ProcessResult, Resources
from heartbeat.spec import Postcheck
from heartbeat.verdict import Suppression
from scheduler.config.settings.load import load_config
from scheduler.engine.delivery import Delivery
from scheduler.insight.explanation import explain_all
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Outcome

REPORT = "{file: report.md, fresher_than: 24h, not_empty: true}"


def findings_answer(given: dict[str, object]) -> Act:
    """A model reports this by its tool."""
    return reply(message(tool("report_findings", given), stop_reason="tool_use"))


def write_report(folder: Path, text: str, now: datetime) -> None:
    """Write the report, as an agent does at this time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(text, "utf-8")
    os.utime(folder / "report.md", (now.timestamp(), now.timestamp()))


def failures(world: World, name: str) -> list[str | None]:
    """The reason and the error of each run."""
    return [
        row["error"] if row["why"] == "postcheck" else row["why"] if row["result"] != "ok" else "ok"
        for row in world.records(name)
    ]


def test_a_day_of_an_agent_that_says_done_and_writes_no_report(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="6h", retries="0", postcheck=REPORT), start="2026-03-02 00:00")
    folder = world.folder / "agents" / "ops"

    def report(call: AgentCall) -> str:
        if call.at.hour == 6:
            write_report(folder, "", call.at)
        if call.at.hour == 12:
            write_report(folder, "All is well.", call.at)
        return QUIET

    world.scripts["ops"] = report
    world.run(hours=12)
    assert failures(world, "ops") == ["report.md is missing", "report.md is empty", "ok"]
    assert [text.splitlines()[0] for _, _, text in world.delivered] == [
        "warning  ops failed: postcheck: report.md is empty (2 times in a row since 2026-03-02 00:00 UTC)   p1",
        "over     ops failed: after 12h   p1",
    ]
    world.scripts["ops"] = lambda call: QUIET
    world.run(hours=24)
    assert failures(world, "ops")[3:] == ["ok", "ok", "ok", "report.md was last changed 1d ago, not within 1d"]
    [overview] = explain_all(records_of(world)).entries
    assert (overview.result, overview.why) == ("failed", "postcheck")
    assert overview.says == "1 of 3 runs failed: postcheck: report.md was last changed 1d ago, not within 1d"


def test_a_command_that_fails_shows_its_output_and_reads_the_answer(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", deliver="log", postcheck="./report-exists.sh", env="{PLACE: plain, TOKEN: canary-4711}"))
    seen: list[AgentCall] = []

    def check(call: AgentCall) -> ProcessResult:
        seen.append(call)
        return ProcessResult(3, b"no report in /srv for canary-4711\n", b"curl: 404\n")

    world.scripts["measure"], world.postchecks["measure"] = lambda call: "written to /srv", check
    world.run(minutes=61)
    assert [(call.stdin, call.env["PLACE"]) for call in seen] == [("written to /srv", "plain")]
    [row] = world.records("measure")
    assert (row["result"], row["why"], row["text"]) == ("failed", "postcheck", "written to /srv")
    assert row["error"] == "exit code 3: curl: 404\nstandard output: no report in /srv for ***"
    assert world.delivered[0][2].startswith("warning  cron/measure failed: postcheck: exit code 3: curl: 404")
    world.postchecks["measure"] = lambda call: ""
    world.run(hours=1)
    assert [text for _, _, text in world.delivered][1:] == [
        "written to /srv",
        "over     cron/measure failed: after 1h   p1\nIt was: postcheck: exit code 3: curl: 404",
    ]


@pytest.mark.parametrize(("retry", "calls"), [("false", 1), ("true", 3)])
def test_a_run_without_proof_is_tried_again_only_if_asked(make_world: MakeWorld, retry: str, calls: int) -> None:
    world = make_world(job(every="1h", retries="2", postcheck=f"{{command: check, retry: {retry}}}"))
    world.postchecks["measure"] = lambda call: 1
    world.run(minutes=61)
    assert (len(world.calls), failures(world, "measure")) == (calls, ["exit code 1"])


def test_a_file_and_a_command_must_both_show_the_work(make_world: MakeWorld) -> None:
    both = "{file: report.md, command: check}"
    world = make_world(agent(interval="1h", retries="0", postcheck=both))
    results = iter([1, "", ""])
    world.postchecks["ops"] = lambda call: next(results)

    def report(call: AgentCall) -> str:
        if call.at.hour == 9:
            write_report(world.folder / "agents" / "ops", "done", call.at)
        return QUIET

    world.scripts["ops"] = report
    world.run(hours=2, minutes=1)
    assert failures(world, "ops") == ["report.md is missing", "exit code 1", "ok"]


def test_a_command_that_fails_itself_is_not_checked(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", postcheck="check"), scripts={"measure": lambda call: 1})
    world.run(minutes=61)
    assert failures(world, "measure") == ["exit"]


def test_what_an_agent_has_found_is_sent_although_its_report_is_missing(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", retries="0", postcheck="{file: report.md}"))
    world.scripts["ops"] = lambda call: "[disk!] 97 %"
    world.run(hours=1)
    assert [text.split(" (", 1)[0] for _, _, text in world.delivered] == [
        "CRITICAL ops disk: 97 %",
        "warning  ops failed: postcheck: report.md is missing",
    ]
    assert [row["result"] for row in world.records("ops")] == ["failed", "failed"]


def test_an_alert_without_a_key_is_sent_although_the_report_is_missing(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0", postcheck="{file: report.md}"), scripts={"ops": lambda call: "The cellar is wet."})
    world.run(minutes=1)
    assert [text for _, _, text in world.delivered] == ["The cellar is wet."]


def test_a_failed_postcheck_wakes_the_agents_that_wait_for_failures(make_world: MakeWorld) -> None:
    text = agent(interval="none") + job(every="1h", wake_heartbeat="ops", wake_on="failure", postcheck="{file: out.txt}")
    world = make_world(text, scripts={"measure": lambda call: "done"})
    world.run(minutes=61)
    assert "| done\n| postcheck: out.txt is missing" in world.calls[-1].stdin


def test_a_job_with_a_prompt_is_checked_in_the_workspace_of_its_agent(make_world: MakeWorld) -> None:
    text = (
        agent(interval="none")
        + "cron:\n  digest: {every: 1h, prompt: Write report.md, agent: ops, postcheck: {file: report.md}}\n"
    )
    world = make_world(text)
    world.scripts["digest"] = lambda call: "done"
    world.run(minutes=61)
    write_report(world.folder / "agents" / "ops", "x", world.clock.now)
    world.run(hours=1)
    assert failures(world, "digest") == ["report.md is missing", "ok"]


def test_a_model_can_say_that_it_failed_and_its_findings_still_count(make_world: MakeWorld) -> None:
    finding = {"key": "disk:/var", "text": "92 %", "severity": "critical", "resolved": False}
    with Models(lambda request: findings_answer({"findings": [finding], "failed": "the mailbox does not answer"})) as server:
        world = make_world(fleet(server.url, "a", a="interval: 1h"), environ={"KEY": KEY})
        world.run(hours=1)
        assert len(server.requests) == 2
        server.answer = lambda request: findings_answer({"findings": [finding], "failed": ""})
        world.run(hours=1)
    assert [row["why"] for row in world.records("a")] == ["reported_failure", "reported_failure", "duplicate"]
    assert world.records("a")[0]["error"] == "the mailbox does not answer"
    assert [text.split(" (", 1)[0] for _, _, text in world.delivered] == [
        "CRITICAL a disk:/var: 92 %",
        "warning  a failed: reported_failure: the mailbox does not answer",
        "over     a failed: after 2h   p2\nIt was: reported_failure: the mailbox does not answer",
    ]


@pytest.mark.parametrize("answer", ['{"failed": "no network"}', '{"result": "see above", "failed": "no network"}'])
def test_a_program_can_say_that_it_failed(make_world: MakeWorld, answer: str) -> None:
    world = make_world(agent(interval="1h", retries="0"), scripts={"ops": lambda call: answer})
    world.run(minutes=1)
    [row] = world.records("ops")
    assert (row["result"], row["why"], row["error"]) == ("failed", "reported_failure", "no network")


@pytest.mark.parametrize(
    ("check", "complaint"),
    [
        ("{fresher_than: 1h}", "nothing is checked; write command: ./report-exists.sh, or file: report.md"),
        ("{command: x, not_empty: true}", "fresher_than and not_empty are about a file, and none is named"),
        ("{command: x, timeout: 10m}", "10m leaves the run no time; write less than the whole timeout of 10m"),
    ],
)
def test_a_postcheck_that_checks_nothing_is_an_error(tmp_path: Path, check: str, complaint: str) -> None:
    [found] = complaints(tmp_path, job(every="1h", postcheck=check))
    assert complaint in found


def test_a_postcheck_has_the_time_that_the_precheck_leaves(tmp_path: Path) -> None:
    keys = {"timeout": "20s", "precheck": "{command: x, timeout: 15s}", "postcheck": "{file: x, timeout: 6s}"}
    [found] = complaints(tmp_path, agent(**keys))
    assert "6s leaves the run no time; write less than 5s, what the precheck leaves of 20s" in found


@pytest.mark.parametrize(("retries", "warned"), [("0", True), ("1", False)])
def test_a_retry_of_a_postcheck_without_retries_is_a_warning(tmp_path: Path, retries: str, warned: bool) -> None:
    (tmp_path / "config.yaml").write_text(job(every="1h", postcheck="{file: x, retry: true}", retries=retries), "utf-8")
    warnings = " ".join(str(each) for each in load_config(tmp_path / "config.yaml", {}).warnings)
    assert ("retries is 0, so no further try follows; write retries: 1" in warnings) is warned


def test_the_call_of_the_agent_leaves_time_for_the_postcheck(make_world: MakeWorld) -> None:
    world = make_world(agent(timeout="100s", postcheck="{command: check, timeout: 40s}"))
    world.postchecks["ops"] = lambda call: ""
    world.run(minutes=1)
    assert world.plan().settings.heartbeats["ops"].timeout == timedelta(seconds=100)
    assert failures(world, "ops") == ["ok"]


def test_a_command_leaves_time_for_its_postcheck(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", timeout="100s", retries="0", postcheck="{command: check, timeout: 40s}"))
    world.postchecks["measure"] = lambda call: ""
    took = iter([59, 70])
    world.scripts["measure"] = lambda call: Delayed("", timedelta(seconds=next(took)))
    world.run(hours=2, minutes=5)
    assert failures(world, "measure") == ["ok", "timeout"]


def test_a_run_that_a_small_model_has_decided_to_skip_has_done_no_work_to_check(tmp_path: Path) -> None:
    skipped = AttemptResult(Outcome.OK, suppression=Suppression.DECIDED_SKIP)
    check = Postcheck(None, "missing.md", None, False, timedelta(minutes=1), False)
    place = WorkPlace(tmp_path, {}, utc("2026-03-02 08:00"))
    found = asyncio.run(with_http(lambda http: verify(skipped, check, place, Resources(cast("Any", None), http, may_block=True))))
    assert found is skipped


def test_a_report_and_a_failure_of_one_run_are_known_by_their_own_messages_to_each_recipient(make_world: MakeWorld) -> None:
    def send(outgoing: Delivery) -> DeliveryResult:
        is_lost = outgoing.message.channel == "phone" and outgoing.message.notice is not None
        return DeliveryResult("dead", "gone") if is_lost else DeliveryResult("delivered")

    hook = '{kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}'
    channels = f"channels: {{phone: {hook}, room: {hook}}}\n"
    yaml = channels + agent(deliver="[phone, room]", postcheck=REPORT, problems="{after: 1}")
    world = make_world(yaml, scripts={"ops": lambda _: "[disk] 92 % full"}, send=send)
    world.run(minutes=1)
    known = {
        (key, target.channel): (last.is_lost, last.delivered_at is not None)
        for key in ("disk", "failed")
        for target, last in world.problem(key).notices.items()
    }
    assert known == {
        ("disk", "phone"): (False, True),
        ("disk", "room"): (False, True),
        ("failed", "phone"): (True, False),
        ("failed", "room"): (False, True),
    }
