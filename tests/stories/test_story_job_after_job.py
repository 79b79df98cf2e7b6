"""Jobs that run after other jobs (`after`), with their output, and jobs that get their own last output, end to end."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from config_file import complaints
from servers import gateway
from servers.scripted import Server
from test_story_explain import explained_entry, fact_of, records_of
from world import DatabaseOf, Delayed, MakeWorld, World, run_until_crash, utc

from heartbeat.runners import ProcessResult
from heartbeatd.verbs import Cancel, CancelWake, HoldLock, ReportResult
from scheduler.config.settings.load import load_config
from scheduler.engine.effects import VerbRequest
from scheduler.insight.daily_maximum import compute_daily_maximum
from scheduler.insight.explanation import explain_all, explain_now
from scheduler.insight.forecast import forecast_entries, forecast_runs
from scheduler.model.outcome import Kind
from scheduler.store import wakes
from scheduler.system import lanes

CHAIN = """
cron:
  backup: {schedule: "0 3 * * *", command: ./backup.sh}
  verify: {after: backup, command: ./verify.sh, deliver: log}
  report: {after: {job: verify, on: any}, command: ./report.sh}
  alarm: {after: {job: backup, on: failure}, command: ./alarm.sh}
"""
PAIR = "cron:\n  backup: {{every: 1h, command: ./backup.sh{first}}}\n  verify: {{after: backup, command: ./verify.sh{second}}}\n"


def pair(first: str = "", second: str = "") -> str:
    """Two jobs, the second after the first, with more keys for each."""
    return PAIR.format(first=f", {first}" if first else "", second=f", {second}" if second else "")


def calls(world: World) -> list[str]:
    return [f"{call.at:%H:%M} {call.name}" for call in world.calls]


def says(world: World, name: str) -> str:
    """The first line of what `explain` says about a job today."""
    return next(each.says for each in explain_all(records_of(world)).entries if each.name == name)


def test_a_job_whose_pause_ends_at_the_end_of_the_other_one_follows_it(make_world: MakeWorld) -> None:
    world = make_world(pair())
    world.scripts["backup"] = lambda call: Delayed("", timedelta(minutes=5))
    world.pause((Kind.CRON, "verify"), utc("2026-03-02 09:05"))
    world.run(minutes=100)
    assert calls(world) == ["09:00 backup", "09:05 verify"]


def test_a_job_that_waits_for_a_lock_gets_the_output_however_short_the_history_is(make_world: MakeWorld) -> None:
    agent = "agents: {ops: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none}}}\n"
    jobs = """cron:
  backup: {every: 5m, command: ./backup.sh}
  report: {after: backup, prompt: Write the report., agent: ops, deliver: log}
"""
    world = make_world("history: {runs: 2}\n" + agent + jobs)
    world.scripts["backup"] = lambda call: "12 GB" if call.at < utc("2026-03-02 08:10") else ProcessResult(1, b"full")
    world.request(VerbRequest(HoldLock(id="chat", for_=timedelta(hours=3)), (Kind.HEARTBEAT, "ops")))
    world.run(hours=4)
    assert ["12 GB" in call.stdin for call in world.calls if call.name == "report"] == [True]


def test_two_nights_of_a_backup_with_what_follows_it(make_world: MakeWorld) -> None:
    """In the first night all is well. In the second one the backup fails, so it is not verified, and the alarm runs."""
    world = make_world(CHAIN, start="2026-03-02 00:00")
    world.scripts |= {
        "backup": lambda call: Delayed("12 GB\n", timedelta(minutes=5)),
        "verify": lambda call: "all files are readable",
    }
    world.run(hours=23)
    assert calls(world) == ["03:00 backup", "03:05 verify", "03:05 report"]
    assert world.calls[1].env | {} == {
        "HEARTBEATD_INPUT": "12 GB\n",
        "HEARTBEATD_INPUT_JOB": "backup",
        "HEARTBEATD_INPUT_RESULT": "ok",
        "HEARTBEATD_INPUT_RUN": "1",
    }
    assert world.calls[2].env["HEARTBEATD_INPUT"] == "all files are readable"
    assert [text for _, name, text in world.delivered if name == "verify"] == ["all files are readable"]
    assert (
        says(world, "alarm")
        == "the planned run of 03:05: the job that it follows ended in another way: cron/backup ended ok (run 1)"
    )
    world.scripts["backup"] = lambda call: 1
    world.run(hours=24)
    assert calls(world)[3:] == ["03:00 backup", "03:00 alarm"]
    assert world.calls[-1].env["HEARTBEATD_INPUT_RESULT"] == "failed"
    overview = next(each for each in explain_all(records_of(world)).entries if each.name == "verify")
    assert (overview.result, overview.why) == ("silent", "predecessor")
    assert overview.says.startswith(
        "the planned run of 03:00: the job that it follows ended in another way: cron/backup ended failed"
    )
    assert world.history("verify") == ["03-02 03:05 cron ok", "03-03 03:00 cron skipped predecessor"]
    assert says(world, "report") == (
        "it runs after cron/verify (any), which has not ended in this time: the planned run of 03:00: the job that it follows ended in "
        "another way: cron/backup ended failed (run 5)"
    )


def test_each_end_of_the_first_job_starts_the_second_once_also_by_hand(make_world: MakeWorld) -> None:
    world = make_world(pair())
    world.run(minutes=61)
    world.run_job("backup")
    world.run(minutes=5)
    assert calls(world) == ["09:00 backup", "09:00 verify", "09:01 backup", "09:01 verify"]
    assert [row["woken_by"] for row in world.records("verify")] == ["backup", "backup"]


def test_a_run_by_hand_gets_the_last_output_of_the_first_job(make_world: MakeWorld) -> None:
    outputs = iter(["first", "second", 1])
    world = make_world(pair(), scripts={"backup": lambda call: next(outputs)})
    world.run_job("verify")
    world.run(hours=3, minutes=1)
    world.run_job("verify")
    world.run(minutes=1)
    assert [call.env.get("HEARTBEATD_INPUT") for call in world.calls if call.name == "verify"] == [
        None,
        "first",
        "second",
        "second",
    ]


def test_a_run_by_hand_of_a_job_after_any_result_gets_the_output_of_a_failure_too(make_world: MakeWorld) -> None:
    world = make_world(pair(second="after: {job: backup, on: any}").replace("after: backup, ", ""))
    world.scripts["backup"] = lambda call: ProcessResult(1, b"no space")
    world.run(minutes=61)
    world.run_job("verify")
    world.run(minutes=1)
    assert [call.env["HEARTBEATD_INPUT"] for call in world.calls if call.name == "verify"] == ["no space"] * 2


def test_a_run_by_hand_of_a_job_after_a_failure_gets_the_output_of_the_last_failure(make_world: MakeWorld) -> None:
    """A later success does not start it. The output of a command is passed on as it is."""
    world = make_world(pair(second="after: {job: backup, on: failure}").replace("after: backup, ", ""))
    outputs = iter([ProcessResult(1, b"<think>no</think> space"), "all is well"])
    world.scripts["backup"] = lambda call: next(outputs)
    world.run(hours=2, minutes=1)
    world.run_job("verify")
    world.run(minutes=1)
    found = [call.env["HEARTBEATD_INPUT"] for call in world.calls if call.name == "verify"]
    assert found == ["<think>no</think> space"] * 2


def test_retries_of_the_first_job_start_the_second_once(make_world: MakeWorld) -> None:
    results = iter([1, 1, "done"])
    world = make_world(pair("retries: 2"), scripts={"backup": lambda call: next(results)})
    world.run(minutes=62)
    assert Counter(call.name for call in world.calls) == {"backup": 3, "verify": 1}


def test_skipped_and_cancelled_runs_of_the_first_job_start_nothing(make_world: MakeWorld) -> None:
    world = make_world(pair(second="after: {job: backup, on: any}").replace("after: backup, ", ""))
    world.scripts["backup"] = lambda call: Delayed("", timedelta(minutes=150))
    world.run(minutes=61)
    world.request(VerbRequest(Cancel(), world.records("backup")[0]["id"]))
    world.run(minutes=30)
    world.pause(("cron", "backup"))
    world.run(hours=5)
    assert calls(world) == ["09:00 backup"]
    assert not world.records("verify")


@pytest.mark.parametrize("strips", [True, False])
def test_a_quiet_answer_of_the_first_job_is_a_success(make_world: MakeWorld, strips: bool) -> None:
    text = (
        "agents: {ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: none}}}\n"
        f"cron:\n  look: {{every: 1h, prompt: Look., agent: ops, ok_match: edges, strip_reasoning: {str(strips).lower()}}}\n"
        "  next: {after: look, prompt: Go on., agent: ops, previous: true}\n"
    )
    world = make_world(
        text, scripts={"look": lambda call: "<think>secret thoughts</think>HEARTBEAT_OK", "next": lambda call: "did it"}
    )
    world.run(hours=2)
    prompt = world.calls[-1].stdin
    assert "The cron job look, which this one follows, ended at 2026-03-02 10:00: ok. Its output follows." in prompt
    assert "HEARTBEAT_OK" in prompt
    assert ("secret thoughts" in prompt) is not strips
    assert "The last successful run of this job ended at 2026-03-02 09:00: ok." in prompt
    assert "did it" in prompt
    assert world.records("next")[1]["prompt_parts"][2]["name"] == "input"


def test_long_output_is_cut_at_its_beginning(make_world: MakeWorld) -> None:
    world = make_world(pair(second="previous: true"), scripts={"backup": lambda call: "é" * 9000 + "end"})
    world.run(minutes=61)
    given = str(world.calls[-1].env["HEARTBEATD_INPUT"])
    assert given.startswith("(the last 16,384 of 18,003 bytes)\n")
    assert given.endswith("éend")
    assert len(given.encode()) <= 16 * 1024 + 40
    assert "HEARTBEATD_PREVIOUS" not in world.calls[-1].env


def test_output_that_is_just_as_long_as_allowed_is_given_as_it_is(make_world: MakeWorld) -> None:
    world = make_world(pair(), scripts={"backup": lambda call: 16 * 1024 * "x"})
    world.run(minutes=61)
    assert world.calls[-1].env["HEARTBEATD_INPUT"] == 16 * 1024 * "x"


def test_a_job_gets_its_own_last_successful_output(make_world: MakeWorld) -> None:
    outputs = iter(["one", 1, "three", "four"])
    world = make_world(
        "cron: {count: {every: 1h, command: count, previous: true}}\n", scripts={"count": lambda call: next(outputs)}
    )
    world.run(hours=4)
    assert [call.env.get("HEARTBEATD_PREVIOUS") for call in world.calls] == [None, "one", "one", "three"]


def test_a_monthly_job_gets_its_last_output_although_older_records_are_deleted(make_world: MakeWorld) -> None:
    """Records are kept for 30 days, and only a few of each job."""
    yaml = (
        "history: {runs: 3}\n"
        "cron:\n"
        "  monthly: {schedule: '0 9 1 * *', command: ./monthly.sh, previous: [monthly, failing]}\n"
        "  failing: {every: 12h, command: ./failing.sh}\n"
    )
    results = iter(["good", *[1] * 100])
    world = make_world(yaml, start="2026-03-01 08:00", scripts={"failing": lambda _: next(results), "monthly": lambda _: "March"})
    world.run_until("2026-04-01 09:01")
    assert world.calls[-1].env["HEARTBEATD_PREVIOUS"] == "cron job monthly:\nMarch\ncron job failing:\ngood"
    assert len(world.records("failing")) < 10


DIGEST = (
    "agents: {ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: none}}}\n"
    "cron:\n"
    "  news: {schedule: '0 6 * * *', command: ./news.sh}\n"
    "  mail: {schedule: '30 6 * * *', prompt: Read the mail., agent: ops}\n"
    "  digest: {schedule: '0 7 * * *', prompt: Write the digest., agent: ops, previous: [news, mail, digest]}\n"
    "  copy: {schedule: '5 7 * * *', command: ./copy.sh, previous: [mail, news, copy]}\n"
)


@pytest.mark.parametrize("workers", [False, True])
def test_a_digest_gets_the_last_outputs_of_the_jobs_that_it_names(make_world: MakeWorld, workers: bool) -> None:
    """It waits for none of them. On the first day one has not run yet, and on the third day it fails."""
    news, mails, digests = iter(["heat", 1]), iter(["<think>hm</think>none", "two", "three"]), iter(["a", "b", "c"])
    world = make_world(DIGEST, start="2026-03-02 06:15", through_payloads=workers)
    world.scripts |= {"news": lambda call: next(news), "mail": lambda call: next(mails), "digest": lambda call: next(digests)}
    world.scripts["copy"] = lambda call: f"copied {call.at:%d}"
    world.run(hours=50)
    prompts = [call.stdin for call in world.calls if call.name == "digest"]
    said = [[line.partition(". ")[0] for line in prompt.splitlines() if " ended at " in line] for prompt in prompts]
    assert said == [
        ["The last successful run of the cron job mail ended at 2026-03-02 06:30: ok"],
        [
            "The last successful run of the cron job news ended at 2026-03-03 06:00: ok",
            "The last successful run of the cron job mail ended at 2026-03-03 06:30: ok",
            "The last successful run of this job ended at 2026-03-02 07:00: ok",
        ],
        [
            "The last successful run of the cron job news ended at 2026-03-03 06:00: ok",
            "The last successful run of the cron job mail ended at 2026-03-04 06:30: ok",
            "The last successful run of this job ended at 2026-03-03 07:00: ok",
        ],
    ]
    assert "hm" not in prompts[0]
    assert "heat" in prompts[2]
    parts = [part["name"] for part in world.records("digest")[1]["prompt_parts"]]
    assert parts[-3:] == ["previous:news", "previous:mail", "previous:digest"]
    copies = [call.env["HEARTBEATD_PREVIOUS"] for call in world.calls if call.name == "copy"]
    assert copies == [
        "cron job mail:\nnone",
        "cron job mail:\ntwo\ncron job news:\nheat\ncron job copy:\ncopied 02",
        "cron job mail:\nthree\ncron job news:\nheat\ncron job copy:\ncopied 03",
    ]


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("nwes", "'nwes' is not a declared job; did you mean news?"),
        ("[news, news]", "'news' is listed twice; remove one of them"),
        ("[a, b, c, d, e, f, g, h]", "this is a list of 8; write true, a job, or a list of 1 to 7 jobs"),
        ("3", "this is not read as text; put it in quotes"),
    ],
)
def test_the_named_jobs_must_be_in_the_config(tmp_path: Path, written: str, complaint: str) -> None:
    """So a job cannot be renamed or removed without the ones that name it."""
    found = complaints(tmp_path, DIGEST.replace("[news, mail, digest]", written))
    assert [each.partition("cron.digest.previous: ")[2] for each in found] == [complaint]


def test_a_second_job_that_still_runs_follows_the_latest_end_and_counts_the_others(make_world: MakeWorld) -> None:
    numbers = iter(range(1, 99))
    world = make_world(pair(second="timeout: 6h"), scripts={"backup": lambda call: str(next(numbers))})
    world.scripts["verify"] = lambda call: Delayed("", timedelta(minutes=150))
    world.run(hours=7)
    inputs = [call.env["HEARTBEATD_INPUT"] for call in world.calls if call.name == "verify"]
    assert inputs == ["1", "3", "5"]
    skipped = [row for row in world.records("verify") if row["result"] == "skipped"]
    assert [(row["why"], row["planned_runs"]) for row in skipped] == [("superseded", 1)] * 3
    assert skipped[0]["error"].startswith("run 3 of cron/backup, before run ")


def test_a_paused_or_excluded_second_job_records_what_it_left_out(make_world: MakeWorld) -> None:
    text = "calendars: {tuesday: {dates: [2026-03-03]}}\n" + pair(second="skip_on: tuesday")
    world = make_world(text, start="2026-03-02 20:30")
    world.pause(("cron", "verify"))
    world.run(hours=1, minutes=30)
    world.resume(("cron", "verify"))
    world.run(hours=3)
    assert world.history("verify") == [
        "03-02 21:30 cron skipped paused",
        "03-02 22:30 cron ok",
        "03-02 23:30 cron ok",
        "03-03 00:30 cron skipped calendar",
    ]
    assert world.records("verify")[0]["error"].startswith("paused by command; cron/backup ended ok (run ")


@pytest.mark.parametrize(
    ("keys", "by", "result"),
    [("problems: {pause_after: 1}", "after 1 failure", "failed exit"), ("retries: 0", "by command", "failed exit"),
     ("agent: ops, prompt: Verify it.", "by command", "ok")],
)  # fmt: skip
def test_a_second_job_that_is_paused_during_its_run_is_not_started_by_the_end_of_the_first_one_in_this_time(
    make_world: MakeWorld, keys: str, by: str, result: str
) -> None:
    text = (
        pair(second=f"timeout: 6h, {keys}")
        + "agents: {ops: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none}}}\n"
    )
    world = make_world(text.replace("command: ./verify.sh, ", "") if "prompt" in keys else text)
    world.scripts |= dict.fromkeys(
        ("verify", "ops"), lambda call: Delayed("done" if result == "ok" else 1, timedelta(minutes=90))
    )
    world.run(hours=2, minutes=5)
    if by == "by command":
        world.pause(("cron", "verify"))
    world.run(hours=5)
    assert world.history("verify")[:3] == [
        f"03-02 09:00 cron {result}", "03-02 10:30 cron skipped paused", "03-02 11:00 cron skipped paused"
    ]  # fmt: skip
    assert world.records("verify")[1]["error"] == f"paused {by}"
    assert len([call for call in world.calls if call.name in ("verify", "ops")]) == 1


def test_a_lost_run_of_the_first_job_counts_as_a_failure(make_world: MakeWorld) -> None:
    text = pair("timeout: 50m") + "  alarm: {after: {job: backup, on: failure}, command: ./alarm.sh}\n"
    world = make_world(text, scripts={"backup": lambda call: Delayed("", timedelta(minutes=30))})
    world.run(minutes=61)
    world.downtime(minutes=5)
    world.run(minutes=10)
    assert calls(world) == ["09:00 backup", "09:06 alarm"]
    assert world.calls[-1].env["HEARTBEATD_INPUT_RESULT"] == "abandoned"


def test_an_answer_that_comes_later_starts_the_second_job_then(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        text = (
            f"agents: {{ops: {{runner: {{kind: http, url: '{server.url}'}}, heartbeat: {{interval: none}}}}}}\n"
            "cron:\n  ask: {every: 6h, prompt: Ask., agent: ops}\n  use: {after: ask, command: ./use.sh}\n"
        )
        world = make_world(text)
        world.run(hours=6, minutes=1)
    assert not world.calls
    world.request(VerbRequest(ReportResult(text="42"), world.records("ask")[0]["id"]))
    world.run(minutes=1)
    assert [(call.name, call.env["HEARTBEATD_INPUT"]) for call in world.calls] == [("use", "42")]


def test_a_started_chain_survives_a_reload_that_removes_the_first_job(make_world: MakeWorld) -> None:
    """The second job still runs when the first one ends. It runs once more, with its output."""
    outputs = iter(["one", "two"])
    world = make_world(pair(second="timeout: 6h"), scripts={"backup": lambda call: next(outputs)})
    world.scripts["verify"] = lambda call: Delayed("", timedelta(minutes=90))
    world.run(hours=2, minutes=5)
    world.reload('cron:\n  verify: {schedule: "0 5 * * *", command: ./verify.sh}\n')
    world.run(hours=3)
    assert [(call.name, call.env.get("HEARTBEATD_INPUT")) for call in world.calls[2:]] == [("backup", None), ("verify", "two")]


def test_a_run_that_ends_after_its_job_was_removed_starts_nothing(make_world: MakeWorld) -> None:
    world = make_world(pair(), scripts={"backup": lambda call: Delayed("done", timedelta(minutes=5))})
    world.run(minutes=62)
    world.reload('cron:\n  verify: {schedule: "0 5 * * *", command: ./verify.sh}\n')
    world.run(hours=1)
    assert calls(world) == ["09:00 backup"]


@pytest.mark.parametrize("step", range(2))
def test_a_crash_at_any_statement_neither_loses_nor_doubles_the_second_job(
    tmp_path: Path, database_of: DatabaseOf, step: int
) -> None:
    """The end of the first run and the start of the second are one transaction."""
    again = "rerun_after_crash: true"
    text, server, codes = pair(again, again).replace("every: 1h", 'schedule: "0 9 * * *"'), database_of(tmp_path), set()
    for statement in range(14 + 4 * step, 110, 12):
        first = partial(World, tmp_path, text, start="2026-03-02 08:59", server=server)
        codes.add(run_until_crash(first, lambda world: world.run(minutes=2), statement))
        world = World(tmp_path, text, start="2026-03-02 09:02", server=server)
        world.run(minutes=2)
        ends = Counter((row["name"], row["result"]) for row in world.records())
        assert ends == {("backup", "ok"): 1, ("verify", "ok"): 1}, statement
        world.store.close()
        world.delete_database()
    assert 9 in codes


def test_a_model_is_not_called_more_often_through_a_chain(tmp_path: Path) -> None:
    text = (
        "agents: {ops: {model: claude-haiku-5-5, heartbeat: {interval: none}}}\n"
        "cron:\n  tick: {every: 1m, command: date}\n  think: {after: tick, prompt: Think., agent: ops}\n"
    )
    [complaint] = complaints(tmp_path, text)
    assert "cron.think.after: 1m is below limits.min_interval, which is 5m" in complaint


@pytest.mark.parametrize(
    ("jobs", "complaint"),
    [
        (
            {"a": "after: b", "b": "after: c", "c": "after: a"},
            "cron.a.after: a -> b -> c -> a is a circle; give one of these jobs times of its own",
        ),
        ({"a": "after: a"}, "cron.a.after: a -> a is a circle"),
        ({"a": "after: bakcup", "backup": "every: 1h"}, "cron.a.after: 'bakcup' is not a declared job; did you mean backup"),
        ({"a": "after: ops", "b": "every: 1h"}, "'ops' is not a declared job; write b, or declare it under cron:"),
        ({"a": "after: b, every: 1h", "b": "every: 1h"}, "every and after exclude each other; keep one of them"),
        ({"a": "after: b, stagger: 5m", "b": "every: 1h"}, "the job starts when the other one has ended, and cannot be delayed"),
        ({"a": "after: b, misfire: {policy: skip}", "b": "every: 1h"}, "cron.a.misfire: a job after another one has no times"),
        ({"a": "after: {job: b, on: sucess}", "b": "every: 1h"}, "cron.a.after.on"),
    ],
)
def test_a_chain_that_cannot_run_is_an_error(tmp_path: Path, jobs: dict[str, str], complaint: str) -> None:
    text = "cron:\n" + "".join(f"  {name}: {{{keys}, command: x}}\n" for name, keys in jobs.items())
    [found] = complaints(tmp_path, text)  # also of a circle of three
    assert complaint in found


def test_each_of_two_circles_is_an_error(tmp_path: Path) -> None:
    pairs = {"a": "b", "b": "a", "c": "d", "d": "c"}
    text = "cron:\n" + "".join(f"  {name}: {{after: {other}, command: x}}\n" for name, other in pairs.items())
    found = complaints(tmp_path, text)
    assert [line.partition("after: ")[2][:11] for line in found] == ["a -> b -> a", "c -> d -> c"]


def test_a_disabled_first_job_is_a_warning(tmp_path: Path) -> None:
    for keys, is_warned in (("", True), ("enabled: false", False)):
        (tmp_path / "config.yaml").write_text(pair("enabled: false", keys), "utf-8")
        warnings = [str(each) for each in load_config(tmp_path / "config.yaml", {}).warnings]
        assert any("backup is disabled, so this job does not run" in each for each in warnings) is is_warned


def test_explain_knows_a_job_after_another_one_before_it_has_run(make_world: MakeWorld) -> None:
    """It has no slots, but the daemon knows it. So does it know an agent without a schedule."""
    agents = "agents: {ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: none}}}"
    world = make_world(agents + CHAIN, start="2026-03-02 00:00")
    world.run(hours=1)
    for name in ("verify", "backup", "ops"):
        facts: dict[str, Any] = explain_now(explained_entry(world, name)).as_data()
        assert fact_of(facts, "planned")["says"] == "none"


def test_explain_names_the_job_that_keeps_a_chain_from_running(make_world: MakeWorld) -> None:
    world = make_world(CHAIN.replace("./backup.sh", "./backup.sh, problems: {pause_after: 2}"), start="2026-03-02 00:00")
    world.scripts["backup"] = lambda call: 1
    world.run(hours=30)
    why = explain_now(explained_entry(world, "verify")).overview
    paused = "it runs after cron/backup (success), which is paused after 2 failures since 03:00 until someone resumes it"
    assert (why.result, why.why, why.says) == ("silent", "predecessor", paused)
    assert why.command == "heartbeatd resume cron/backup"
    assert says(world, "report") == f"it runs after cron/verify (any), which {paused.removeprefix('it ')}"
    world.resume(("cron", "backup"))
    world.reload(CHAIN.replace("./backup.sh", "./backup.sh, enabled: false"))
    world.run(minutes=1)
    assert "it runs after cron/backup (success), which is disabled in the config" in says(world, "verify")


def test_plan_status_and_explain_know_the_chain(make_world: MakeWorld) -> None:
    world = make_world(CHAIN, start="2026-03-02 00:00")
    world.run(minutes=1)
    facts: dict[str, Any] = explain_now(explained_entry(world, "verify")).as_data()
    assert fact_of(facts, "next")["says"] == "after cron/backup (success)"
    begin, plan = utc("2026-03-02 00:00"), world.plan()
    planned = forecast_runs(forecast_entries(world.store.connection, plan, begin), begin, begin + timedelta(days=2))
    wakes = {each.name: each.wakes for each in planned.entries if each.wakes}
    assert {name: (each.at_most, each.by) for name, each in wakes.items()} == {
        "verify": (2, ["backup"]), "report": (2, ["backup"]), "alarm": (2, ["backup"]),
    }  # fmt: skip


def test_plan_counts_the_wakes_by_a_chain_unless_a_job_of_it_is_paused(make_world: MakeWorld) -> None:
    agents = "agents: {ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: none}}}"
    world = make_world(agents + CHAIN.replace("report.sh", "report.sh, wake_heartbeat: ops"), start="2026-03-02 00:00")
    world.run(minutes=1)

    def planned() -> dict[str, tuple[int, list[str]]]:
        begin = utc("2026-03-02 00:00")
        found = forecast_runs(forecast_entries(world.store.connection, world.plan(), begin), begin, begin + timedelta(days=2))
        return {each.name: (each.wakes.at_most, each.wakes.by) for each in found.entries if each.wakes}

    assert planned()["ops"] == (2, ["report"])
    world.pause(("cron", "verify"))
    assert planned() == {"alarm": (2, ["backup"])}


def test_the_daily_maximum_counts_the_runs_of_a_chain(make_world: MakeWorld) -> None:
    text = (
        "prices: {claude-haiku-5-5: {input: 1, output: 5}}\n"
        "agents: {ops: {model: claude-haiku-5-5, heartbeat: {interval: none}}}\n"
        "cron:\n  tick: {every: 1h, command: date}\n  think: {after: tick, prompt: Think., agent: ops}\n"
    )
    world = make_world(text)
    found = compute_daily_maximum(world.plan().settings, world.clock.now)
    assert next(each.runs for each in found.entries if each.name == "think") >= 24


def test_a_run_that_follows_is_carried_out_by_workers_too(make_world: MakeWorld) -> None:
    world = make_world(pair(second="previous: true"), scripts={"backup": lambda call: "12 GB é"}, through_payloads=True)
    world.run(hours=2, minutes=1)
    assert world.calls[-1].env["HEARTBEATD_INPUT"] == "12 GB é"


def test_a_second_job_that_waits_for_its_agent_gets_the_latest_output_and_counts_the_others(make_world: MakeWorld) -> None:
    text = (
        "agents: {ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: none}}}\n"
        "cron:\n  tick: {every: 10m, command: date}\n  think: {after: tick, prompt: Think., agent: ops}\n"
    )
    numbers = iter(range(1, 99))
    world = make_world(text, scripts={"tick": lambda call: f"tick {next(numbers)}"})
    with lanes.lanes_beside(world.state).lock_if_free("ops"):
        world.run(minutes=21)
    world.run(minutes=2)
    [prompt] = [call.stdin for call in world.calls if call.name == "think"]
    assert "tick 2" in prompt
    assert [row["why"] for row in world.records("think")] == [None, "superseded"]


def test_once_runs_a_chain_once(make_world: MakeWorld) -> None:
    world = make_world("cron: {}\nagents: {x: {heartbeat: {interval: 0m}}}\n")
    world.stop()
    world.write_config(pair())
    world.boot(at_once=True)
    world.run(minutes=1)
    assert [call.name for call in world.calls] == ["backup", "verify"]


def test_a_precheck_of_the_second_job_decides_as_for_a_planned_run(make_world: MakeWorld) -> None:
    text = (
        "agents: {ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: none}}}\n"
        "cron:\n  tick: {every: 1h, command: date}\n  think: {after: tick, prompt: Think., agent: ops, precheck: ./any-news.sh}\n"
    )
    world = make_world(text)
    world.prechecks["think"] = lambda call: "NO_WORK"
    world.run(minutes=61)
    assert world.history("think") == ["03-02 09:00 cron skipped precheck"]


def test_a_wait_of_more_than_a_day_is_recorded_and_is_no_news_of_an_agent_with_the_name_of_the_job(make_world: MakeWorld) -> None:
    agent = "agents: {verify: {runner: {kind: command, argv: [a]}, heartbeat: {interval: none, deliver: log}}}\n"
    world = make_world(agent + pair(second="timeout: 60h").replace("every: 1h", "every: 30d"))
    world.scripts["verify"] = lambda call: Delayed("", timedelta(hours=59))
    for _ in range(2):
        world.run_job("backup")
        world.run(minutes=1)
    for _ in range(30):
        world.run(hours=2)
    assert [row["why"] for row in world.records("verify")] == [None, "missed"]
    assert world.records("verify")[1]["error"] == "run 3 of cron/backup"
    assert not [text for _, _, text in world.delivered if "expired" in text]


@pytest.mark.parametrize("change", ["disabled", "removed"])
def test_a_start_that_waits_when_its_job_is_taken_away_is_recorded(make_world: MakeWorld, change: str) -> None:
    world = make_world(pair(second="timeout: 3h"))
    world.scripts["verify"] = lambda call: Delayed("", timedelta(hours=2))
    world.run(hours=2, minutes=30)  # the second end of `backup` waits for the run of `verify`
    world.reload(pair(second="timeout: 3h, enabled: false") if change == "disabled" else pair().split("  verify")[0])
    world.run(hours=3)
    assert [(row["why"], row["error"]) for row in world.records("verify")] == [(None, None), (change, "run 3 of cron/backup")]


def test_a_start_that_is_cancelled_while_it_waits_is_recorded(make_world: MakeWorld) -> None:
    world = make_world(pair(second="timeout: 3h"))
    world.scripts["verify"] = lambda call: Delayed("", timedelta(hours=2))
    world.run(hours=2, minutes=30)  # the second end of `backup` waits for the run of `verify`
    [waiting] = wakes.list_waiting_wakes(world.store.connection, Kind.CRON, "verify", 9)
    world.request(VerbRequest(CancelWake(), waiting.id))
    world.run(minutes=20)
    assert [(row["why"], row["error"]) for row in world.records("verify")] == [
        (None, None),
        ("cancelled", "run 3 of cron/backup"),
    ]
