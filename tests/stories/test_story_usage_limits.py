"""Usage limits of subscriptions: a day on which Claude Code, Codex and Gemini CLI say that they work again later."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from metrics_page import Page
from servers.scripted import Server
from test_story_explain import explained_entry
from test_story_models import decides
from world import QUIET, AgentCall, Delayed, MakeWorld, World, utc

from heartbeat.runners import ProcessResult
from heartbeat.runners.command import limited_until
from heartbeatd.verbs import Cancel, HoldLock, ReleaseLock
from scheduler.engine.effects import VerbRequest
from scheduler.insight import explanation
from scheduler.model.outcome import Kind
from scheduler.store import breakers

RIGA = ZoneInfo("Europe/Riga")  # UTC+2 in March
SESSION = "You've hit your session limit · resets 7pm (Europe/Riga)"
CODE = "exit code 1: the agent failed: "
SINCE = " (since 2026-03-02 10:00 UTC)   p1"
BEAT = 'interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 2'
CONFIG = f"""
agents:
  ops: {{runner: {{kind: command, argv: [claude, -p]}}, heartbeat: {{{BEAT}}}}}
  web: {{runner: {{kind: command, argv: [/opt/bin/claude, -p]}}, heartbeat: {{{BEAT}}}}}
  own: {{runner: {{kind: command, argv: [sh, -c, 'codex exec "$(cat)"']}}, heartbeat: {{{BEAT}}}}}
"""


def failed(printed: str, errors: str = "", code: int = 1) -> ProcessResult:
    return ProcessResult(code, printed.encode(), errors.encode())


def claude_report(text: str) -> str:
    return f'{{"type": "result", "subtype": "success", "is_error": true, "result": "{text}", "total_cost_usd": 0}}'


def told(world: World) -> list[str]:
    return [f"{at:%H:%M} {text.splitlines()[0]}" for at, _, text in world.delivered]


def test_a_day_on_which_the_subscription_is_used_up_from_ten_to_five(make_world: MakeWorld) -> None:
    limited = utc("2026-03-02 10:00"), utc("2026-03-02 17:00")

    def claude(call: AgentCall) -> Any:
        is_limited = limited[0] <= call.at < limited[1]
        return failed(claude_report(SESSION)) if is_limited else "HEARTBEAT_OK"

    world = make_world(CONFIG, scripts={"ops": claude, "web": claude})
    world.run(minutes=121)
    began = len([call for call in world.calls if call.at >= limited[0] and call.name != "own"])
    assert began == 2, "both were due in the same second; nothing is tried again"
    world.wake("ops", "a mail has come")
    world.downtime(minutes=1)  # a new start tries nothing before
    world.run(minutes=6 * 60 - 1)
    assert len([call for call in world.calls if limited[0] < call.at < limited[1] and call.name != "own"]) == 0
    says = explanation.explain_now(explained_entry(world, "web")).overview.says
    assert "account claude: until 2026-03-02 17:00: " in says
    assert SESSION in says
    assert [row["result"] for row in world.records("own")] == ["ok"] * 17, "another account"
    until = {"account_limited_until_timestamp_seconds{claude}": utc("2026-03-02 17:00").timestamp()}
    assert Page(world).series("account_limited_until_timestamp_seconds") == until
    world.run(minutes=2 * 60)
    again = [call for call in world.calls if call.at >= limited[1] and call.name != "own"]
    first = {name: next(call for call in again if call.name == name) for name in ("ops", "web")}
    assert first["ops"].at != first["web"].at, "they do not begin in the same second"
    assert all(call.at < limited[1] + timedelta(minutes=31) for call in first.values())
    assert "a mail has come" in first["ops"].stdin
    assert [line for line in told(world) if "limit" in line] == [
        f"10:00 info     account claude limited: has reached its usage limit: until 2026-03-02 17:00: {CODE}{SESSION}{SINCE}"
    ]


def test_the_metrics_count_the_problem_of_an_account_until_it_works_again(make_world: MakeWorld) -> None:
    def claude(call: AgentCall) -> Any:
        return failed(claude_report(SESSION)) if call.at < utc("2026-03-02 17:00") else "HEARTBEAT_OK"

    world = make_world(CONFIG, start="2026-03-02 10:00", scripts={"ops": claude, "web": claude})
    page = Page(world)
    world.run(minutes=1)
    assert page.series("problems_open") == {"problems_open{false,info,provider/account claude}": 1}
    world.run(hours=8)
    assert page.series("problems_open") == {}


@pytest.mark.parametrize(
    ("error", "until"),
    [
        ("You've hit your session limit · resets 7:10pm (America/Los_Angeles)", "2026-03-03 03:10"),
        ("You've hit your limit · resets Mar 4 at 4pm (America/Recife)", "2026-03-04 19:00"),
        ("You've hit your weekly limit · resets Mar 5, 8am (Europe/Paris)", "2026-03-05 07:00"),
        ("You've hit your session limit · resets 3:45pm", "2026-03-02 13:45"),
        ("You've hit your limit · resets 7am", "2026-03-03 05:00"),
        ("You've hit your limit · resets 10am", "2026-03-02 08:30"),  # it is 10:00: the end was rounded down
        ("You've hit your limit · resets 9:55am", "2026-03-02 08:30"),
        ("Claude AI usage limit reached|1772460000", "2026-03-02 14:00"),
        ("Claude usage limit reached. Your limit will reset at 3pm (America/Santiago).", "2026-03-02 18:00"),
        ("5-hour limit reached ∙ resets 9pm", "2026-03-02 19:00"),
        ("You've hit your org's monthly usage limit", "2026-03-02 08:30"),
        ("You're out of extra usage · resets 1pm (America/Los_Angeles)", "2026-03-02 21:00"),
        ("You've hit your usage limit. Upgrade to Pro or try again in 5 days 22 hours 11 minutes.", "2026-03-08 06:11"),
        ("ERROR: You've hit your usage limit. Upgrade to Pro or try again at 3:52 PM.", "2026-03-02 13:52"),
        ("ERROR: You've hit your usage limit. To get more access now, try again at Mar 6th, 2026 9:01 AM.", "2026-03-06 07:01"),
        ('{"error":{"type":"usage_limit_reached","plan_type":"plus","resets_at":1772470800,"resets_in_seconds":9}}', "2026-03-02 17:00"),
        ('{"error":{"type":"usage_limit_reached","resets_in_seconds":3600}}', "2026-03-02 09:00"),
        ("TerminalQuotaError: You have exhausted your capacity on this model. Your quota will reset after 1h49m8s.", "2026-03-02 09:49"),
        ("You've hit your session limit", "2026-03-02 08:30"),
        ("You've hit your session limit · resets 7pm (Europe/Atlantis)", "2026-03-02 08:30"),
        ("You've hit your session limit · resets 7pm (Europe)", "2026-03-02 08:30"),
        (f"You've hit your session limit · resets 7pm ({300 * 'x'})", "2026-03-02 08:30"),
    ],
)  # fmt: skip
def test_the_time_in_the_text_of_a_limit(error: str, until: str) -> None:
    found = limited_until(error, utc("2026-03-02 08:00").astimezone(RIGA))
    assert found is not None
    assert f"{found.astimezone(ZoneInfo('UTC')):%Y-%m-%d %H:%M}" == until


@pytest.mark.parametrize(
    ("error", "now", "until"),
    [
        ("You've hit your limit · resets 9am", "2026-03-28 22:30", "2026-03-29 06:00"),  # the clocks go forward at 03:00
        ("You've hit your limit · resets 3:30am", "2026-03-28 22:30", "2026-03-29 01:30"),  # no clock shows this time
        ("You've hit your limit · resets 9am", "2026-10-24 21:30", "2026-10-25 07:00"),  # the clocks go back at 04:00
        ("You've hit your limit · resets 3:30am", "2026-10-25 00:10", "2026-10-25 00:30"),  # 03:10, before they go back
        ("You've hit your limit · resets 3:30am", "2026-10-25 00:45", "2026-10-25 01:30"),  # 03:45, and 03:30 comes again
        ("You've hit your limit · resets Oct 25 at 3am", "2026-10-25 00:45", "2026-10-25 01:00"),
        ("You've hit your limit · resets 3:30am", "2026-10-25 01:10", "2026-10-25 01:30"),  # 03:10, after they went back
        ("You've hit your limit · resets 3:30am", "2026-10-25 01:45", "2026-10-26 01:30"),  # 03:45 for the second time
        ("You've hit your usage limit. try again in 10 hours", "2026-10-24 21:30", "2026-10-25 07:30"),
        ("You've hit your limit · resets 11:59pm", "2026-03-02 22:02", "2026-03-02 22:32"),  # it was yesterday
        (f"You've hit your usage limit. try again in {'9999d ' * 400}", "2026-10-24 21:30", "2026-10-24 22:00"),
    ],
)
def test_the_wait_for_the_end_of_a_limit_is_right_while_the_clocks_are_changed(error: str, now: str, until: str) -> None:
    local = utc(now).astimezone(RIGA)
    found = limited_until(error, local)
    assert found is not None
    assert found - local == utc(until) - utc(now)


@pytest.mark.parametrize("error", ["exit code 1: no such file", "HTTP 529: Overloaded", "the rate limit of the router is 40", ""])
def test_other_errors_are_no_limit(error: str) -> None:
    assert limited_until(error, datetime(2026, 3, 2, 8, tzinfo=RIGA)) is None


@pytest.mark.parametrize("answer", [SESSION, f'{{"result": "The log says: {SESSION}"}}'])
def test_an_answer_that_mentions_a_limit_is_an_answer(make_world: MakeWorld, answer: str) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda call: answer})
    world.run(minutes=31)
    assert [row["result"] for row in world.records("ops")] == ["alert", "alert"]
    assert {row["result"] for row in world.records("web")} == {"ok"}


def test_a_fallback_answers_until_the_limit_is_over(make_world: MakeWorld) -> None:
    def script(call: AgentCall) -> Any:
        return "HEARTBEAT_OK" if call.argv[0] == "backup" else failed("", "You've hit your usage limit. try again in 2 hours")

    yaml = f"""
runners: {{backup: {{kind: command, argv: [backup]}}}}
agents:
  ops: {{runner: {{kind: command, argv: [codex, exec]}}, fallbacks: [{{runner: backup}}], heartbeat: {{{BEAT}}}}}
"""
    world = make_world(yaml, scripts={"ops": script})
    world.run(minutes=91)
    assert [call.argv[0] for call in world.calls] == ["codex", "backup", "backup", "backup", "backup"]
    assert {(row["result"], row["fallback"]) for row in world.records()} == {("ok", "backup")}


def test_another_program_has_its_own_pattern_and_account(make_world: MakeWorld) -> None:
    yaml = CONFIG.replace("argv: [claude, -p]", "argv: [mine], account: team, limit_pattern: 'no credits until (?:.*)'")
    world = make_world(yaml, scripts={"ops": lambda call: failed("", "no credits until resets 12:30pm (UTC)")})
    world.run(minutes=121)
    assert [(row["result"], row["why"]) for row in world.records("ops")] == [
        ("failed", "limited"),
        *[("skipped", "breaker_open")] * 4,
    ]
    assert "account team: until 2026-03-02 12:30" in explanation.explain_now(explained_entry(world)).overview.says


def test_a_usage_limit_costs_nothing_and_counts_as_no_failure_of_the_agent(make_world: MakeWorld) -> None:
    budget = "budget: {usd_per_day: 1, usd_per_try: 0.5}, problems: {pause_after: 1}"
    yaml = CONFIG.replace("argv: [claude, -p]}, heartbeat: {", f"argv: [claude, -p]}}, heartbeat: {{{budget}, ")
    world = make_world(yaml, scripts={"ops": lambda call: failed(SESSION)})
    world.run(minutes=1)
    assert world.records("ops")[0]["charged"]["usd"] == 0


SPREAD = "argv: [claude, -p], account: {name: team, max_runs: 3 per 2h}"


def test_the_runs_of_an_account_are_spread_before_its_limit(make_world: MakeWorld) -> None:
    world = make_world(CONFIG.replace("argv: [claude, -p]", SPREAD).replace("argv: [/opt/bin/claude, -p]", SPREAD))
    world.run(minutes=24 * 60 - 1)
    began = sorted(call.at for call in world.calls if call.name != "own")
    assert all(later - earlier >= timedelta(hours=2) for earlier, later in zip(began, began[3:], strict=False))
    assert len(began) == 36
    skipped = [row for row in world.records() if row["result"] == "skipped"]
    assert {row["why"] for row in skipped} == {"budget"}
    assert skipped[0]["error"] == "account team: 3 of 3 runs in 2h have begun; until 2026-03-02 10:00 UTC"


def test_the_limit_of_an_account_counts_runs_whose_records_would_be_deleted_otherwise(make_world: MakeWorld) -> None:
    spread = SPREAD.replace("per 2h", "per 20h")
    other = spread.replace("3 per 20h", "9 per 1h")
    yaml = CONFIG.replace("argv: [claude, -p]", spread).replace("argv: [/opt/bin/claude, -p]", other)
    world = make_world("history: {runs: 4}\n" + yaml)
    world.run(hours=19)
    assert len([call for call in world.calls if call.name != "own"]) == 3
    assert len(world.records("ops")) < 12


def test_an_answer_to_a_call_that_began_before_the_limit_does_not_end_it(make_world: MakeWorld) -> None:
    """Two agents begin in the same second. One is refused, and the other one answers a minute later."""
    world = make_world(CONFIG, scripts={"ops": lambda _: failed("You've hit your usage limit. try again in 2 hours")})
    world.durations["web"] = timedelta(minutes=1)
    world.run(minutes=119)
    assert [row["result"] for row in world.records("web")] == ["ok", "skipped", "skipped", "skipped"]
    assert len([call for call in world.calls if call.name == "ops"]) == 1
    world.run(minutes=60)
    assert "ok" in [row["result"] for row in world.records("web")][4:]


def test_the_answer_to_a_trial_call_does_not_end_a_limit_that_was_reached_after_it_began(make_world: MakeWorld) -> None:
    """The trial call of web takes 50 minutes. Meanwhile, the one of ops is refused for two more hours."""
    long = BEAT.replace("retries: 2", "retries: 0, timeout: 2h")
    yaml = CONFIG.replace(BEAT, long).replace("interval: 30m", "interval: 100m", 1)
    world = make_world(yaml, scripts={"ops": lambda _: failed("You've hit your usage limit. try again in 1 hour")})
    world.run(minutes=59)
    world.scripts["web"] = lambda _: Delayed("HEARTBEAT_OK", timedelta(minutes=50))
    world.scripts["ops"] = lambda _: failed("You've hit your usage limit. try again in 2 hours")
    world.run_until("2026-03-02 11:39")
    assert [f"{call.at:%H:%M} {call.name}" for call in world.calls if call.name != "own"] == [
        "08:00 ops",
        "08:00 web",
        "09:00 web",
        "09:40 ops",
    ]


def test_a_trial_call_that_takes_too_long_does_not_end_the_limit(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda _: failed("You've hit your usage limit. try again in 50 minutes")})
    page = Page(world)
    world.run(minutes=10)
    for answer, is_limited in ((ProcessResult(None, ended_by="timeout"), True), (QUIET, False)):
        world.scripts = dict.fromkeys(("ops", "web"), lambda _, answer=answer: answer)
        world.run(hours=1)
        assert bool(page.series("account_limited_until_timestamp_seconds")) is is_limited, answer


def test_explain_names_the_time_at_which_each_agent_may_be_called_after_a_limit(make_world: MakeWorld) -> None:
    """The agents of an account begin up to two minutes after the end of its limit, each at a time of its own."""
    world = make_world(CONFIG, scripts={"ops": lambda _: failed(claude_report(SESSION))})
    for time in ("2026-03-02 12:00", "2026-03-02 17:00"):
        world.run_until(time)
        details = [explanation.explain_now(explained_entry(world, name)).now.detail or "" for name in ("ops", "web")]
        assert [text.rpartition("; ")[2] for text in details] == [
            f"next trial call at 2026-03-02 17:{at} UTC" for at in ("01:20", "00:36")
        ]


def test_agents_of_an_account_also_begin_one_after_another_if_a_model_is_their_fallback(make_world: MakeWorld) -> None:
    server = (
        "providers: {local: {kind: openai, base_url: 'http://127.0.0.1:9'}}\nrunners: {lab: {kind: openai, provider: local}}\n"
    )
    yaml = server + CONFIG.replace("heartbeat: {", "fallbacks: [{runner: lab, model: small}], heartbeat: {")
    planned = make_world(yaml).plan().entries
    waits = [breakers.account_stagger(planned[Kind.HEARTBEAT, name]).total_seconds() for name in ("ops", "web")]
    assert waits == [80, 36]


def test_a_run_without_room_in_its_limits_does_not_start_after_a_crash_either(make_world: MakeWorld) -> None:
    """The daemon is killed after it has claimed the run, and before it has recorded that there was no room."""
    yaml = CONFIG.replace("argv: [claude, -p]", SPREAD.replace("3 per", "1 per"))
    world = make_world(yaml.replace("$(cat)\"']}, heartbeat: {", "$(cat)\"']}, heartbeat: {budget: {runs_per_day: 1}, "))
    world.run(minutes=29.9)
    world.clock.advance(timedelta(seconds=6))
    world.engine.tick(world.clock.read())
    world.kill()
    world.boot()
    world.run(minutes=40)
    assert [(row["result"], row["why"]) for row in world.records("ops")][1:] == [("skipped", "budget")] * 2
    assert [(row["result"], row["why"]) for row in world.records("own")][1:] == [("skipped", "budget")] * 2


def test_a_retry_is_no_further_run_of_an_account(make_world: MakeWorld) -> None:
    answers = iter([failed("", "out of memory")])
    world = make_world(CONFIG.replace("argv: [claude, -p]", SPREAD.replace("3 per", "1 per")))
    world.scripts["ops"] = lambda _: next(answers, QUIET)
    world.run(minutes=31)
    assert [(row["result"], row["tries"]) for row in world.records("ops")] == [("ok", 2), ("skipped", 1)]


def test_a_cancelled_run_counts_for_the_account(make_world: MakeWorld) -> None:
    world = make_world(CONFIG.replace("argv: [claude, -p]", SPREAD.replace("3 per", "1 per")))
    world.scripts["ops"] = lambda _: Delayed("HEARTBEAT_OK", timedelta(minutes=5))
    world.run(minutes=1)
    world.request(VerbRequest(Cancel(), world.records("ops")[0]["id"]))
    world.run(minutes=128)
    assert [call.at for call in world.calls if call.name == "ops"] == [utc("2026-03-02 08:00"), utc("2026-03-02 10:00")]


def test_a_run_that_has_waited_for_a_lock_counts_for_the_account_while_it_is_in_progress(make_world: MakeWorld) -> None:
    spread = SPREAD.replace("3 per 2h", "2 per 2h")
    yaml = CONFIG.replace("argv: [claude, -p]", spread).replace("argv: [/opt/bin/claude, -p]", spread)
    world, ops = make_world(yaml.replace("retries: 2", "timeout: 30m")), (Kind.HEARTBEAT, "ops")
    world.request(VerbRequest(HoldLock(id="desk", for_=timedelta(minutes=20)), ops))
    world.run(minutes=10)
    world.durations["ops"] = timedelta(minutes=25)
    world.request(VerbRequest(ReleaseLock(id="desk"), ops))
    world.run(minutes=24)
    assert [f"{call.at:%H:%M} {call.name}" for call in world.calls if call.name != "own"] == ["08:00 web", "08:10 ops"]


def test_a_fallback_answers_while_an_account_has_no_room(make_world: MakeWorld) -> None:
    yaml = f"""
runners: {{backup: {{kind: command, argv: [backup]}}}}
agents: {{ops: {{runner: {{kind: command, {SPREAD}}}, fallbacks: [{{runner: backup}}], heartbeat: {{{BEAT}}}}}}}
"""
    world = make_world(yaml)
    world.run(minutes=121)
    assert [call.argv[0] for call in world.calls] == ["claude", "claude", "claude", "backup", "claude"]
    world.run(minutes=40)
    world.scripts["ops"] = lambda _: failed("", "down")
    world.wake("ops", "a mail has come")
    world.run(minutes=2)
    assert [call.argv[0] for call in world.calls][6:] == ["backup"] * 6, "the wake is tried again after a minute"


def test_a_fallback_gets_its_trial_call_while_an_account_has_no_room(make_world: MakeWorld) -> None:
    yaml = f"""
runners: {{backup: {{kind: command, argv: [backup]}}}}
agents: {{ops: {{runner: {{kind: command, {SPREAD}}}, fallbacks: [{{runner: backup}}], heartbeat: {{{BEAT}}}}}}}
"""
    limit = failed("You've hit your usage limit. try again in 1 hour")
    world = make_world(yaml.replace("3 per 2h", "1 per 12h"))
    world.scripts["ops"] = lambda call: (
        limit if call.argv[0] == "backup" and call.at < utc("2026-03-02 09:00") else "HEARTBEAT_OK"
    )
    world.run(minutes=181)
    assert [f"{call.at:%H:%M} {call.argv[0]}" for call in world.calls] == [
        "08:00 claude", "08:30 backup", "10:00 backup", "10:30 backup", "11:00 backup",
    ]  # fmt: skip
    assert [row["why"] for row in world.records() if row["result"] == "skipped"] == ["budget", "budget"]


def test_an_agent_that_fails_beside_the_limit_of_its_account_is_not_paused(make_world: MakeWorld) -> None:
    """Its fallback fails by itself, until the limit is over."""
    yaml = f"""
runners: {{backup: {{kind: command, argv: [backup]}}}}
agents: {{ops: {{runner: {{kind: command, argv: [claude]}}, fallbacks: [{{runner: backup}}], heartbeat: {{{BEAT}, problems: {{pause_after: 2}}}}}}}}
"""
    world = make_world(yaml)
    world.scripts["ops"] = lambda call: (
        failed("", "no such model")
        if call.argv[0] == "backup"
        else failed("You've hit your usage limit. try again in 5 hours")
        if call.at < utc("2026-03-02 13:00")
        else "HEARTBEAT_OK"
    )
    world.run(hours=6)
    assert world.records()[-1]["result"] == "ok"
    assert [line.partition(": ")[0] for line in told(world)] == [
        "08:00 info     account claude limited",
        "08:30 warning  ops failed",
        "13:30 over     ops failed",
    ]


def test_a_run_that_a_model_decides_to_skip_is_none_of_the_account(make_world: MakeWorld) -> None:
    yaml = f"""
providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{{url}}"}}}}
agents: {{ops: {{runner: {{kind: command, {SPREAD}}}, heartbeat: {{{BEAT}, decide: {{provider: anthropic, model: haiku}}}}}}}}
"""
    with Server([decides("skip"), decides("skip"), decides("run", "look"), decides("run", "look")]) as server:
        world = make_world(yaml.replace("3 per 2h", "1 per 12h").replace("{url}", server.url), environ={"KEY": "k"})
        world.run(minutes=119)
    assert [(row["result"], row["why"]) for row in world.records()] == [
        ("ok", "decided_skip"), ("ok", "decided_skip"), ("ok", "heartbeat_ok"), ("skipped", "budget"),
    ]  # fmt: skip


def test_a_fallback_with_the_same_account_is_not_called_while_it_has_no_room(make_world: MakeWorld) -> None:
    yaml = f"""
runners: {{other: {{kind: command, argv: [claude, --small], account: team}}}}
agents: {{ops: {{runner: {{kind: command, {SPREAD}}}, fallbacks: [{{runner: other}}], heartbeat: {{{BEAT}}}}}}}
"""
    world = make_world(yaml)
    world.run(minutes=121)
    assert [call.argv[1] for call in world.calls] == ["-p"] * 4
    assert [(row["result"], row["why"]) for row in world.records()][3] == ("skipped", "budget")


def test_a_run_whose_program_fails_and_whose_fallback_answers_counts_for_the_account(make_world: MakeWorld) -> None:
    yaml = f"""
runners: {{backup: {{kind: command, argv: [backup]}}}}
agents: {{ops: {{runner: {{kind: command, {SPREAD}}}, fallbacks: [{{runner: backup}}], heartbeat: {{{BEAT}}}}}}}
"""
    world = make_world(
        yaml, scripts={"ops": lambda call: failed("", "out of memory") if call.argv[0] == "claude" else "HEARTBEAT_OK"}
    )
    world.run(minutes=119)
    assert [call.argv[0] for call in world.calls] == ["claude", "backup"] * 3 + ["backup"]


def test_each_account_has_its_own_limit(make_world: MakeWorld) -> None:
    """The fallback uses another account, with room for one run. Then that account is at its usage limit."""
    other = "argv: [backup], account: {name: other, max_runs: 1 per 2h}"
    yaml = f"""
runners: {{backup: {{kind: command, {other}}}}}
agents: {{ops: {{runner: {{kind: command, {SPREAD}}}, fallbacks: [{{runner: backup}}], heartbeat: {{{BEAT}}}}}}}
"""
    world = make_world(yaml)
    world.run(minutes=179)
    own, third = ["claude"] * 3, ["claude", "claude"]
    assert [call.argv[0] for call in world.calls] == [*own, "backup", *third]
    world.scripts["ops"] = lambda call: failed("usage limit reached, try again in 9 hours") if call.argv[0] == "backup" else QUIET
    world.run(minutes=6 * 60)
    assert [call.argv[0] for call in world.calls].count("backup") == 2, "its breaker is open"


def test_of_two_limits_of_an_account_the_one_that_lasts_longer_counts(make_world: MakeWorld) -> None:
    shorter, longer = (SPREAD.replace("3 per 2h", rate) for rate in ("2 per 2h", "2 per 4h"))
    yaml = CONFIG.replace("argv: [claude, -p]", shorter).replace("argv: [/opt/bin/claude, -p]", longer)
    world = make_world(yaml)
    world.run(minutes=31)
    says = "account team: 2 of 2 runs in 4h have begun; until 2026-03-02 12:00 UTC"
    assert [row["error"] for row in world.records() if row["result"] == "skipped"] == [says] * 2


def test_a_lower_limit_counts_from_the_last_run_that_it_allows(make_world: MakeWorld) -> None:
    yaml = CONFIG.replace("argv: [claude, -p]", SPREAD)
    world = make_world(yaml)
    world.run(minutes=65)
    world.reload(yaml.replace("3 per 2h", "1 per 2h"))
    world.run(minutes=30)
    assert world.records("ops")[-1]["error"] == "account team: 1 of 1 runs in 2h have begun; until 2026-03-02 11:00 UTC"


def test_a_wake_waits_for_the_first_of_two_accounts_that_works_again(make_world: MakeWorld) -> None:
    yaml = f"""
runners: {{backup: {{kind: command, argv: [backup]}}}}
agents: {{ops: {{runner: {{kind: command, argv: [claude]}}, fallbacks: [{{runner: backup}}], heartbeat: {{{BEAT}}}}}}}
""".replace("interval: 30m", "interval: 1d")
    hours = {"claude": 6, "backup": 2}
    world = make_world(yaml)
    world.scripts["ops"] = lambda call: (
        failed(f"usage limit reached, try again in {hours[call.argv[0]]} hours") if call.at.hour < 10 else QUIET
    )
    world.run(minutes=10)
    world.wake("ops", "a mail has come")
    world.run(minutes=115)
    assert [(f"{call.at:%H}", call.argv[0]) for call in world.calls][-1] == ("10", "backup")


def test_a_wake_waits_for_the_first_of_two_accounts_that_has_room_again(make_world: MakeWorld) -> None:
    own, other = ("account: {name: team, max_runs: 1 per 2h}", "account: {name: other, max_runs: 1 per 4h}")
    yaml = f"""
runners: {{backup: {{kind: command, argv: [backup], {other}}}}}
agents: {{ops: {{runner: {{kind: command, argv: [claude], {own}}}, fallbacks: [{{runner: backup}}], heartbeat: {{{BEAT}}}}}}}
""".replace("interval: 30m", "interval: 1d")
    world = make_world(yaml, scripts={"ops": lambda call: failed("", "down") if call.argv[0] == "claude" else QUIET})
    world.run(minutes=10)
    world.wake("ops", "a mail has come")
    world.run(minutes=119)
    assert [f"{call.at:%H} {call.argv[0]}" for call in world.calls][:3] == ["08 claude", "08 backup", "10 claude"]


def test_a_wake_waits_for_the_end_of_a_limit_or_for_room_whichever_comes_first(make_world: MakeWorld) -> None:
    yaml = f"""
runners: {{backup: {{kind: command, argv: [backup]}}}}
agents: {{ops: {{runner: {{kind: command, {SPREAD}}}, fallbacks: [{{runner: backup}}], heartbeat: {{{BEAT}}}}}}}
""".replace("interval: 30m", "interval: none").replace("3 per 2h", "1 per 12h")

    def agent(call: AgentCall) -> Any:
        if call.argv[0] == "claude":
            return failed("", "down")
        return failed("You've hit your usage limit. try again in 2 hours") if call.at.hour < 10 else QUIET

    world = make_world(yaml, scripts={"ops": agent})
    world.wake("ops", "a mail has come")
    world.run(minutes=30)
    assert explanation.explain_now(explained_entry(world, "ops")).now.why == "budget"
    world.run(minutes=100)
    assert [row["why"] for row in world.records("ops")] == ["exit", "heartbeat_ok"]


def test_a_wake_waits_for_its_budget_although_an_account_has_room_earlier(make_world: MakeWorld) -> None:
    yaml = CONFIG.replace("argv: [claude, -p]", SPREAD.replace("3 per", "1 per"))
    world = make_world(yaml.replace("interval: 30m", "interval: 1d, budget: {runs_per_day: 1}"))
    world.run(minutes=10)
    world.wake("ops", "a mail has come")
    world.run(hours=17)
    assert [(f"{call.at:%d %H:%M}") for call in world.calls if call.name == "ops"] == ["02 08:00", "03 00:00"]
    assert world.history("ops")[1:] == ["03-02 08:10 api skipped budget", "03-03 00:00 api ok heartbeat_ok"]


@pytest.mark.parametrize(
    "limits", [(SPREAD, "argv: [/opt/bin/claude, -p], account: team"), ("argv: [claude, -p], account: team", SPREAD)]
)
def test_the_limit_of_an_account_counts_for_all_its_programs(make_world: MakeWorld, limits: tuple[str, str]) -> None:
    ops, web = limits
    world = make_world(CONFIG.replace("argv: [claude, -p]", ops).replace("argv: [/opt/bin/claude, -p]", web))
    world.run(minutes=119)
    assert len([call for call in world.calls if call.name != "own"]) == 3


def test_the_program_of_a_fallback_has_the_limit_of_its_account_too(make_world: MakeWorld) -> None:
    yaml = f"""
runners: {{team: {{kind: command, {SPREAD}}}, last: {{kind: command, argv: [last]}}}}
agents:
  ops: {{runner: {{kind: command, argv: [own]}}, fallbacks: [{{runner: team}}, {{runner: last}}], heartbeat: {{{BEAT}}}}}
"""
    world = make_world(yaml, scripts={"ops": lambda call: failed("", "down") if call.argv[0] == "own" else "HEARTBEAT_OK"})
    world.run(minutes=119)
    assert [call.argv[0] for call in world.calls] == ["own", "claude"] * 3 + ["own", "last"]


def test_a_fallback_in_the_middle_that_fails_counts_for_its_account(make_world: MakeWorld) -> None:
    yaml = f"""
runners: {{team: {{kind: command, {SPREAD}}}, last: {{kind: command, argv: [last]}}}}
agents:
  ops: {{runner: {{kind: command, argv: [own]}}, fallbacks: [{{runner: team}}, {{runner: last}}], heartbeat: {{{BEAT}}}}}
"""
    world = make_world(yaml, scripts={"ops": lambda call: QUIET if call.argv[0] == "last" else failed("", "down")})
    world.run(minutes=119)
    assert [call.argv[0] for call in world.calls] == ["own", "claude", "last"] * 3 + ["own", "last"]


def test_a_program_that_needs_no_fallback_leaves_the_account_of_the_fallback_alone(make_world: MakeWorld) -> None:
    yaml = f"""
runners: {{team: {{kind: command, {SPREAD.replace("3 per", "1 per")}}}}}
agents:
  ops: {{runner: {{kind: command, argv: [own]}}, fallbacks: [{{runner: team}}], heartbeat: {{{BEAT}}}}}
"""
    world = make_world(yaml)
    world.run(minutes=65)
    world.scripts["ops"] = lambda call: failed("", "down") if call.argv[0] == "own" else QUIET
    world.run(minutes=30)
    assert [call.argv[0] for call in world.calls] == ["own"] * 4 + ["claude"]


@pytest.mark.parametrize("edit", ["removed", "disabled", "another program"])
def test_the_runs_of_an_agent_that_no_longer_uses_an_account_still_count_for_it(make_world: MakeWorld, edit: str) -> None:
    yaml = CONFIG.replace("argv: [/opt/bin/claude, -p]", SPREAD)
    world = make_world(CONFIG.replace("argv: [claude, -p]", SPREAD).replace("argv: [/opt/bin/claude, -p]", SPREAD))
    world.run(minutes=5)
    (ops,) = re.findall("  ops:.*\n", yaml)
    disabled = ops.replace("heartbeat: {", "heartbeat: {enabled: false, ")
    world.reload(yaml.replace(ops, {"removed": "", "disabled": disabled}.get(edit, ops)))
    world.run(minutes=114)
    assert [row["result"] for row in world.records("web")] == ["ok", "ok", "skipped", "skipped"]
    assert world.records("web")[-1]["error"] == "account team: 3 of 3 runs in 2h have begun; until 2026-03-02 10:00 UTC"


def test_the_time_of_a_precheck_counts_for_the_end_of_a_limit(make_world: MakeWorld) -> None:
    world = make_world(CONFIG.replace("interval: 30m", "precheck: look, interval: 30m"))
    world.prechecks = {name: lambda _: Delayed("new", timedelta(minutes=4)) for name in ("ops", "web", "own")}
    world.scripts["ops"] = lambda _: failed("You've hit your usage limit. try again in 2 hours")
    world.run(minutes=1)
    assert world.records("ops")[0]["error"].startswith("until 2026-03-02 10:04: ")


def test_after_its_fallbacks_were_removed_none_is_in_use(make_world: MakeWorld) -> None:
    yaml = f"""
runners: {{backup: {{kind: command, argv: [backup]}}}}
agents: {{ops: {{runner: {{kind: command, argv: [codex, exec]}}, fallbacks: [{{runner: backup}}], heartbeat: {{{BEAT}}}}}}}
"""
    limited = failed("", "You've hit your usage limit. try again in 5 hours")
    world = make_world(yaml, scripts={"ops": lambda call: "HEARTBEAT_OK" if call.argv[0] == "backup" else limited})
    world.run(minutes=61)
    assert world.problem("fallback").over_at is None
    world.reload(yaml.replace("fallbacks: [{runner: backup}], ", ""))
    world.run(minutes=30)
    assert world.problem("fallback").over_at == utc("2026-03-02 09:30")
