"""One heartbeat run inside another program: the daemon's rules, with Python functions as agent and channel."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from checkout import HOME
from loops import loop_over
from patience import PATIENCE
from world import utc

import heartbeat
from heartbeat import Beat
from heartbeat.findings import Finding
from heartbeat.runners import Action, Decision
from heartbeat.verdict import CUT_NOTE

NOW = utc("2026-03-02 08:00")


class Agent:
    """An agent that returns scripted answers, raises those that are exceptions, and records its prompts."""

    def __init__(self, *says: Any) -> None:
        self.says = list(says)
        self.asked: list[str] = []

    def __call__(self, prompt: str) -> Any:
        self.asked.append(prompt)
        answer = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def run(ask: Any = None, *, now: datetime = NOW, last: Beat | None = None, woken_by: str | None = None, **spec: Any) -> Beat:
    return heartbeat.beat(heartbeat.Spec(**{"ask": ask, "checklist": "- look"} | spec), now=now, last=last, woken_by=woken_by)


def beat(says: Any = "HEARTBEAT_OK", **more: Any) -> Beat:
    return run(Agent(says), **more)


def ended(found: Beat) -> str:
    return " ".join(filter(None, (found.result, found.why, found.text)))


@loop_over(
    ("says", "how", "end"),
    [
        ("HEARTBEAT_OK", {}, "ok heartbeat_ok"),
        (None, {}, "ok empty"),
        ("HEARTBEAT_OK fine", {}, "ok short_remainder"),
        ("HEARTBEAT_OK fine", {"ack_max_chars": 0}, "alert fine"),
        ("The disk is full.", {}, "alert The disk is full."),
        ("All is well: HEARTBEAT_OK, I think so.", {}, "alert All is well: HEARTBEAT_OK, I think so."),
        ("All is well: HEARTBEAT_OK, I think so.", {"ok_match": "anywhere"}, "ok heartbeat_ok"),
        ("The disk is full.", {"show_alerts": False, "show_ok": True}, "alert not_shown"),
        ("HEARTBEAT_OK", {"show_ok": True}, "ok HEARTBEAT_OK"),
        ({"text": "The disk is full."}, {}, "alert The disk is full."),
        ({"error": "no network"}, {}, "failed exit"),
        ({"later": True}, {}, "failed bad_answer"),
        (5, {}, "failed bad_answer"),
        ("x" * 70_000, {}, "failed bad_answer"),
        (OSError("gone"), {}, "failed exit"),
        (SystemExit(3), {}, "failed exit"),
        ("x", {"active_hours": "09:00-17:00"}, "skipped active_hours"),
        ("x", {"active_hours": "09:00-17:00", "timezone": "Europe/Berlin"}, "alert x"),
        ("x", {"checklist": "# Tasks\n- [ ]\n"}, "skipped checklist_empty"),
        ("x", {"checklist": "# Tasks\n", "on_empty": "run"}, "alert x"),
        ("x", {"checklist": "# Tasks\n", "woken_by": "a test"}, "alert x"),
        ("x", {"checklist": Path("/nowhere/HEARTBEAT.md")}, "skipped checklist_missing"),
        ("x", {"show_alerts": False, "show_ok": False}, "skipped not_shown"),
    ],
)
def test_a_run_ends_as_it_would_in_the_daemon(says: Any, how: dict[str, Any], end: str) -> None:
    assert ended(beat(says, **how)) == end


def test_a_skipped_run_calls_no_function_and_an_alert_goes_to_on_notify() -> None:
    agent, alerts = Agent("The disk is full. HEARTBEAT_OK"), []
    run(agent, now=NOW, checklist="", on_notify=alerts.append)
    assert (agent.asked, alerts) == ([], [])
    run(agent, now=NOW, checklist="- look", on_notify=alerts.append)
    assert (len(agent.asked), alerts) == (1, ["The disk is full."])


def test_the_prompt_has_the_checklist_the_time_and_the_last_result() -> None:
    agent = Agent(OSError("gone"), "HEARTBEAT_OK")
    first = run(agent, now=NOW, checklist="- look", timezone=ZoneInfo("Asia/Tokyo"), prompt="Be brief.")
    again = run(agent, now=NOW + timedelta(hours=1), checklist="- look", last=first, woken_by="the door bell")
    assert "Be brief." in agent.asked[0]
    assert "Monday 2026-03-02 17:00 (Asia/Tokyo, UTC+0900)" in agent.asked[0]
    assert "Time since the last run: 1h." in agent.asked[1]
    assert "Failed runs in a row before this one: 1." in agent.asked[1]
    assert "the door bell" in agent.asked[1]
    assert (first.error, first.failures, again.failures, again.asked_at) == ("it raised OSError: gone", 1, 0, again.at)


def test_the_same_alert_is_delivered_once_within_its_window() -> None:
    alerts: list[str] = []
    last, suppressed = None, []
    for hours in (0, 1, 23, 24, 25):
        last = beat("Disk  FULL", now=NOW + timedelta(hours=hours), last=last, on_notify=alerts.append)
        suppressed.append(last.why)
    assert alerts == ["Disk  FULL", "Disk  FULL"]
    assert suppressed == [None, "duplicate", "duplicate", None, "duplicate"]


def test_a_skip_keeps_all_carried_values() -> None:
    first = beat("Disk full")
    night = beat(now=NOW + timedelta(hours=1), active_hours="08:00-08:30", last=first)
    again = beat("Disk full", now=NOW + timedelta(hours=2), last=night)
    assert (night.result, night.asked_at, again.why) == ("skipped", NOW, "duplicate")


def test_a_decision_to_skip_calls_no_agent() -> None:
    decide, execute = Agent({"action": "skip", "tasks": ""}), Agent("done")
    found = run(now=NOW, checklist="- look", decide=decide, on_execute=execute)
    assert (ended(found), execute.asked) == ("ok decided_skip", [])
    assert "- look" in decide.asked[0]


def test_a_decision_to_run_gives_its_tasks_to_on_execute_or_else_to_the_agent() -> None:
    decision, execute, agent = {"action": "run", "tasks": "Look at b."}, Agent("b is down"), Agent("b is up")
    assert ended(run(now=NOW, checklist="- look", decide=Agent(decision), on_execute=execute)) == "alert b is down"
    assert execute.asked == ["Look at b."]
    decided = Decision(Action.RUN, "Look at b.")
    assert ended(run(agent, now=NOW, checklist="- look", decide=Agent(decided))) == "alert b is up"
    assert ">\nLook at b.\n</data-" in agent.asked[0]


@pytest.mark.parametrize("made", [{}, {"action": "run", "tasks": ""}, "skip", None, {"action": "maybe", "tasks": ""}])
def test_an_invalid_decision_is_a_failure_and_never_a_run(made: Any) -> None:
    execute = Agent("done")
    assert ended(run(now=NOW, checklist="- look", decide=Agent(made), on_execute=execute)) == "failed bad_answer"
    assert execute.asked == []


def test_the_checklist_may_be_a_file_that_is_created_where_it_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "HEARTBEAT.md"
    assert ended(beat(checklist=file, on_missing="create")) == "skipped checklist_missing"
    assert ended(beat(checklist=file)) == "skipped checklist_empty"
    file.write_text("- look at b\n")
    assert ended(beat(checklist=file)) == "ok heartbeat_ok"


def test_the_folder_of_a_missing_checklist_is_created_or_the_reason_is_reported(tmp_path: Path) -> None:
    assert ended(beat(checklist=tmp_path / "a/b/HEARTBEAT.md", on_missing="create")) == "skipped checklist_missing"
    assert ended(beat(checklist=tmp_path / "a/b/HEARTBEAT.md")) == "skipped checklist_empty"
    (tmp_path / "c").symlink_to(tmp_path / "gone/d")
    found = beat(checklist=tmp_path / "c/HEARTBEAT.md", on_missing="create")
    assert (found.why, found.error) == ("checklist_missing", f"could not create {tmp_path}/c/HEARTBEAT.md: File exists")


def test_exceptions_of_on_notify_reach_the_caller() -> None:
    with pytest.raises(ConnectionError):
        beat("Disk full", on_notify=Agent(ConnectionError()))


def test_a_keyboard_interrupt_reaches_the_caller() -> None:
    with pytest.raises(KeyboardInterrupt):
        beat(KeyboardInterrupt())


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"now": datetime(2026, 3, 2)}, "now has no time zone"),  # noqa: DTZ001
        ({"active_hours": "9-17"}, "'9' is not a time"),
        ({"active_hours": "08:00-08:00"}, "start and end are both 08:00"),
    ],
)
def test_a_wrong_argument_is_reported_before_any_call(how: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        beat(**how)


def test_a_call_without_functions_is_rejected() -> None:
    with pytest.raises(ValueError, match="there is no function to call"):
        run(now=NOW, checklist="- look", decide=Agent({}))


def bare(*argv: str) -> str:
    done = subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
        cwd="/",
        env={"PYTHONPATH": str(HOME)},
    )
    return done.stdout


def test_the_example_runs_as_a_bare_script() -> None:
    assert bare(str(HOME / "examples" / "embed.py")).splitlines() == [
        "08:00 ok heartbeat_ok",
        "  sent: ALERT: the disk is 97 % full.",
        "08:30 alert",
        "09:00 alert duplicate",
        "09:30 ok heartbeat_ok",
        "10:00 alert: Say how full the disk is. It is 98 % full.",
        "23:00 skipped active_hours",
    ]


def test_the_page_has_an_installation_command_and_its_example_runs() -> None:
    page = (HOME / "docs" / "library.md").read_text("utf-8")
    assert "`pip install /path/to/heartbeatd`" in page
    (named,) = set(re.findall(r"\]\(\.\./(examples/\S+\.py)\)", page))
    assert f".venv/bin/python {named}" in (HOME / named).read_text("utf-8").splitlines()[0]
    done = subprocess.run(
        [sys.executable, named], cwd=HOME, env={}, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_library_is_imported_when_it_is_first_used_and_needs_no_other_package() -> None:
    shown = "import sys, heartbeat; before = 'heartbeat.library' in sys.modules; heartbeat.beat; "
    foreign = "['scheduler', 'cron', 'anthropic', 'aiohttp', 'pydantic']"
    assert bare("-c", f"{shown}print(before, [name for name in {foreign} if name in sys.modules])") == "False []\n"


def test_an_unknown_attribute_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'bea'"):
        _ = heartbeat.bea  # type: ignore[attr-defined]
    assert NOW.tzinfo is UTC


MARKED = (
    "# Mail\n- [every 3h] Is mail unanswered?\n- Is the door open?\n\n# House\n- [paused] Is it warm?\n- [completed] Paint it.\n"
)
MAIL, DOOR = "Is mail unanswered?", "Is the door open?"


def items_of(prompt: str) -> list[str]:
    return [item for item in (MAIL, DOOR, "Is it warm?", "Paint it.", "# House", "[every", "[paused]") if item in prompt]


def test_the_annotations_of_a_checklist_decide_what_is_in_the_prompt() -> None:
    runs = [  # hours since the first run, the answer, more arguments, and the items in the prompt
        (0, OSError("gone"), {}, [MAIL, DOOR]),
        (1, "HEARTBEAT_OK", {}, [MAIL, DOOR]),  # a failed run has checked nothing
        (2, "HEARTBEAT_OK", {}, [DOOR]),
        (3, OSError("gone"), {}, [DOOR]),
        (3.5, "x", {"active_hours": "08:00-09:00"}, []),
        (4, "The mail is old.", {}, [MAIL, DOOR]),
        (5, "HEARTBEAT_OK", {"woken_by": "a test"}, [MAIL, DOOR]),
        (7, "HEARTBEAT_OK", {}, [DOOR]),
        (8, {"action": "skip"}, {"decide": None}, [MAIL, DOOR]),
        (9, "HEARTBEAT_OK", {"checklist": MARKED.replace("[every 3h]", "[every 1h]")}, [MAIL, DOOR]),
        (9.5, "HEARTBEAT_OK", {"checklist": MARKED.replace("mail", "post")}, [DOOR]),
        (10, "HEARTBEAT_OK", {}, [MAIL, DOOR]),  # while it was not on the list, it was forgotten
    ]
    last: Beat | None = None
    for hours, said, more, items in runs:
        agent = Agent(said)
        more = {"decide": agent} if "decide" in more else more
        given = {"now": NOW + timedelta(hours=hours), "checklist": MARKED, "last": last, **more}
        last = run(agent, **given)
        assert [item for prompt in agent.asked for item in items_of(prompt)] == items, hours
    for text in ("- [paused] Is it warm?\n", "- [completed] Paint it.\n"):
        assert ended(beat(checklist=text)) in ("skipped nothing_due", "skipped checklist_empty"), text
    recurring = "- [every 3h] Is mail unanswered?\n"
    first = beat(checklist=recurring)
    assert ended(beat(checklist=recurring, now=NOW + timedelta(hours=1), last=first)) == "skipped nothing_due"


def test_the_prompt_counts_the_boxes_of_a_checklist_without_work() -> None:
    agent = Agent("HEARTBEAT_OK")
    run(agent, now=NOW, checklist="- [x] one\n- [x] two\n", on_empty="run")
    assert "Boxes so far: 0 open, 2 done." in agent.asked[0]


def test_reasoning_is_neither_classified_nor_delivered() -> None:
    assert beat("<think>FAILED?</think>HEARTBEAT_OK").why == "heartbeat_ok"
    assert beat("<think>hm</think>The disk is full.").text == "The disk is full."
    assert beat("<think>hm</think>\n<thinking>hm?</thinking>The disk is full.").text == "The disk is full."
    assert beat("<think>hm</think>x", strip_reasoning=False).text == "<think>hm</think>x"


def test_a_truncated_answer_has_a_note_in_its_last_line() -> None:
    cut = beat({"text": "Half of", "truncated": True})
    assert (cut.truncated, cut.answer, cut.text) == (True, "Half of", f"Half of\n\n{CUT_NOTE}")
    assert beat({"text": "All is well.\n[disk:/va", "truncated": True}).text == f"All is well.\n\n{CUT_NOTE}"
    nothing = beat({"text": "<think>hm", "truncated": True})
    assert (nothing.result, nothing.why, nothing.failures) == ("failed", "bad_answer", 1)


def test_a_decision_to_skip_needs_no_tasks() -> None:
    assert beat("never asked", decide=lambda prompt: {"action": "skip"}).why == "decided_skip"


def run_hourly(*says: Any, **how: Any) -> list[Beat]:
    """One run per hour with these answers. Each gets the result of the run before it."""
    beats: list[Beat] = []
    for hours, said in enumerate(says):
        last = beats[-1] if beats else None
        beats.append(beat(said, now=NOW + timedelta(hours=hours), last=last, **how))
    return beats


def disk(text: str, severity: str = "warning", *, resolved: bool = False) -> dict[str, Any]:
    return {"key": "disk:/var", "text": text, "severity": severity, "resolved": resolved}


def test_a_finding_is_delivered_when_it_is_new_worse_or_over() -> None:
    answers = [
        disk("92 %"),
        disk("93 %"),
        disk("97 %", "critical"),
        disk("94 %"),
        disk("80 %", resolved=True),
        disk("gone", resolved=True),
    ]
    beats = run_hourly(*({"findings": [each]} for each in answers))
    assert [each.text for each in beats] == ["[disk:/var] 92 %", "", "[disk:/var!] 97 %", "", "[disk:/var] resolved: 80 %", ""]
    assert [each.result for each in beats] == ["alert"] * 4 + ["ok"] * 2
    assert [each.why for each in beats] == [None, "duplicate", None, "duplicate", None, "heartbeat_ok"]
    assert beats[1].findings == (Finding("disk:/var", "93 %"),)


def test_findings_may_be_lines_of_text_or_json_in_a_text() -> None:
    json_answer = 'So:\n```json\n{"findings": [{"key": "Disk: /VAR", "text": "93 %"}, {"key": "swap", "text": "full"}]}\n```'
    beats = run_hourly("[disk:/var] 92 %", json_answer, "[swap] full\n[disk:/var] 94 %")
    assert [each.text for each in beats] == ["[disk:/var] 92 %", "So:\n[swap] full", ""]
    assert [problem.since for problem in beats[2].problems] == [NOW + timedelta(hours=1), NOW]


def test_a_finding_that_still_holds_is_delivered_again_after_the_window() -> None:
    beats = run_hourly(*["[disk:/var] 92 %"] * 5, dedup_window=timedelta(hours=2))
    assert [bool(each.text) for each in beats] == [True, False, True, False, True]


def test_a_problem_ends_after_two_answers_without_it_and_is_then_new_again() -> None:
    quiet, full = "HEARTBEAT_OK", "[disk:/var] 92 %"
    beats = run_hourly(full, quiet, full, quiet, {"text": "ok ok", "truncated": True}, OSError("gone"), quiet, full)
    assert [each.text for each in beats if "disk" in each.text] == [full, full]
    assert [len(each.problems) for each in beats] == [1, 1, 1, 1, 1, 1, 0, 1]


def test_the_prompt_lists_the_problems_that_were_delivered() -> None:
    agent = Agent("[disk:/var] 92 %")
    first = run(agent, now=NOW, checklist="- look")
    run(agent, now=NOW + timedelta(hours=1), checklist="- look", last=first)
    assert "[disk:/var] warning" not in agent.asked[0]
    assert "[disk:/var] warning, since 2026-03-02 08:00, reported 2026-03-02 08:00: 92 %" in agent.asked[1]


def test_a_text_beside_findings_is_compared_by_itself() -> None:
    report = {"findings": [disk("92 %")], "text": "The week was calm."}
    beats = run_hourly(report, report, {"findings": [], "text": "The week was wild."}, {"findings": []})
    assert [each.text for each in beats] == ["[disk:/var] 92 %\n\nThe week was calm.", "", "The week was wild.", ""]


def test_findings_that_are_not_shown_are_not_counted_as_delivered() -> None:
    hidden, shown = beat("[disk:/var] 92 %", show_alerts=False, show_ok=True), "[disk:/var] 93 %"
    assert (hidden.result, hidden.why, hidden.problems) == ("alert", "not_shown", ())
    assert beat(shown, now=NOW + timedelta(hours=1), last=hidden).text == shown


def test_a_cut_answer_with_findings_has_a_note_in_its_last_line() -> None:
    cut = beat({"findings": [disk("92 %")], "truncated": True})
    assert (cut.text, cut.truncated) == (f"[disk:/var] 92 %\n\n{CUT_NOTE}", True)
    assert ended(beat({"findings": [], "truncated": True})) == "failed bad_answer"


def test_findings_that_cannot_be_read_are_a_failure() -> None:
    found = beat({"findings": [None]})
    assert ended(found) == "failed bad_answer"
    assert found.error == "answered with findings that cannot be read: none of the findings has a key or a text"


def test_what_an_agent_finds_beside_its_failure_is_delivered_and_known() -> None:
    """It could not do all of its work, so an answer without a problem says nothing about its end."""
    failure = {"failed": "no access to the mail"}
    first, second, *others = run_hourly(
        {**failure, "findings": [disk("92 %")]}, {**failure, "findings": [disk("93 %")]}, *[{**failure, "findings": []}] * 3
    )
    assert (first.result, first.why, first.error, first.text) == (
        "failed", "reported_failure", "no access to the mail", "[disk:/var] 92 %",
    )  # fmt: skip
    assert (second.text, second.why, second.failures) == ("", "reported_failure", 2)
    assert [len(each.problems) for each in others] == [1, 1, 1]


def test_a_call_in_the_form_of_the_last_version_names_the_new_form() -> None:
    with pytest.raises(TypeError, match=r"beat\(Spec\(ask=ask, checklist="):
        heartbeat.beat(Agent("x"), now=NOW, checklist="- look")  # type: ignore[arg-type]


def test_a_prompt_that_is_too_large_is_not_sent() -> None:
    agent = Agent("x")
    found = run(agent, checklist="- look\n" * 30_000)
    assert (ended(found), agent.asked) == ("skipped prompt_too_large", [])


def test_a_fallback_gets_the_prompt_if_the_agent_fails() -> None:
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        raise ConnectionError("the model is down")

    def other(prompt: str) -> str:
        prompts.append(prompt)
        return "The disk is full"

    def broken(prompt: str) -> str:
        raise ConnectionError("this one too")

    run = heartbeat.beat(heartbeat.Spec(ask=ask, fallbacks=[broken, other], checklist="- look"), now=NOW)
    assert (run.result, run.text, run.fallback) == ("alert", "The disk is full", 2)
    assert prompts[0] == prompts[1]
    failed = heartbeat.beat(heartbeat.Spec(ask=ask, fallbacks=[broken], checklist="- look"), now=NOW)
    assert (failed.result, failed.fallback) == ("failed", 1)
    assert failed.error.count("ConnectionError") == 2


@pytest.mark.parametrize("broken", ["decide", "on_execute"])
def test_a_fallback_is_also_called_if_the_decision_or_its_execution_raises(broken: str) -> None:
    functions = {"decide": Agent({"action": "run", "tasks": "Look."}), "on_execute": Agent("done")}
    functions[broken] = Agent(ConnectionError("the model is down"))
    found = run(None, **functions, fallbacks=[Agent("The disk is full")])
    assert (found.result, found.text, found.fallback) == ("alert", "The disk is full", 1)


def test_a_result_that_was_pickled_continues_after_a_restart() -> None:
    first = beat("[disk:/var] 92 %")
    stored = pickle.loads(pickle.dumps(first))
    assert stored == first
    assert ended(beat("[disk:/var] 92 %", last=stored)) == "alert duplicate"
    assert ended(beat("[disk:/var] 92 %")) == "alert [disk:/var] 92 %"


@pytest.mark.parametrize("answer", ["The disk is full", "[disk:/var] 92 %"])
def test_a_message_from_before_the_clock_was_set_back_a_year_is_sent_again(answer: str) -> None:
    spec = heartbeat.Spec(ask=lambda prompt: answer, checklist="- Look at the disk")
    before = heartbeat.beat(spec, now=NOW + timedelta(days=365))
    again = heartbeat.beat(spec, now=NOW, last=before)
    assert again.text == before.text
    assert not heartbeat.beat(spec, now=NOW + timedelta(hours=1), last=again).text
