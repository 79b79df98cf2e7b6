"""`plan`: the scheduled runs in local time and UTC, with the daemon up or down, and with a valid or an invalid config."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_story_slots import agent, job
from world import MakeWorld, World, utc

from scheduler.cli.main import main
from scheduler.config.settings.config_snapshot import store_config
from scheduler.config.settings.load import load_config
from scheduler.store.config_history import record_config_in_force
from scheduler.store.transaction import Transaction

BERLIN = """
timezone: Europe/Berlin
agents:
  ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, active_hours: "08:00-22:00", stagger: 0s, deliver: log}}
  hanoi: {runner: {kind: command, argv: [a]}, heartbeat: {schedule: "0 8 * * *", timezone: Asia/Ho_Chi_Minh, deliver: log}}
  off: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 0m, deliver: log}}
cron:
  nightly: {schedule: "30 2 * * *", command: x}
  often: {schedule: "*/5 * * * *", command: x}
  start: {schedule: "@reboot", command: x}
"""
SPRING = ("--from", "2027-03-27T12:00:00Z", "--for", "48h")
AUTUMN = ("--from", "2027-10-30T12:00:00Z", "--for", "48h")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(BERLIN, "utf-8")
    return path


def lines(capsys: pytest.CaptureFixture[str], config: Path, *arguments: str) -> list[str]:
    assert main(["plan", "-c", str(config), *arguments]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def data(capsys: pytest.CaptureFixture[str], config: Path, *arguments: str) -> Any:
    assert main(["plan", "-c", str(config), *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def entry(plan: Any, name: str) -> Any:
    return next(each for each in plan["entries"] if each["name"] == name)


def test_a_plan_across_the_spring_clock_change_shows_local_time_zone_utc_and_the_change(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Berlin's clocks go forward on 28 March 2027 at 02:00, which is 01:00 UTC."""
    output = lines(capsys, config, *SPRING)
    assert output[0] == "DAY LOCAL UTC TIMES NAME ZONE"
    assert "Sun 03-28 00:00-23:55 03-27 23:00 276 cron/often Europe/Berlin" in output
    mark = output.index("--- clock of Europe/Berlin: 02:00 CET is 03:00 CEST ---")
    assert output[mark + 1 : mark + 3] == [
        "08:00 03-28 01:00 1 agent/hanoi Asia/Ho_Chi_Minh",
        "03:00 CEST 03-28 01:00 1 cron/nightly Europe/Berlin",
    ]
    assert "cron/often 132 276 168 576" in output
    assert "all jobs 132 277 169 578" in output
    assert "disabled: agent/off" in output
    assert "no run in this time: cron/start" in output
    assert output[-1] == "daemon: down; nothing runs until it is started"


def test_a_day_of_25_hours_in_autumn_names_the_clock_of_each_repeated_hour(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = data(capsys, config, *AUTUMN)
    assert [day["count"] for day in entry(plan, "often")["days"]] == [120, 300, 156]
    assert entry(plan, "nightly")["days"][0]["firings"] == ["2027-10-31T00:30:00Z"]
    assert plan["clock_changes"] == [
        {"zone": "Europe/Berlin", "at": "2027-10-31T01:00:00Z", "before": "03:00 CEST", "after": "02:00 CET"}
    ]
    each = [line for line in lines(capsys, config, "cron/often", *AUTUMN) if line.startswith("02:55 ")]
    assert each == ["02:55 CEST 10-31 00:55 1 cron/often", "02:55 CET 10-31 01:55 1 cron/often", "02:55 11-01 01:55 1 cron/often"]


def test_frequent_runs_share_one_line_a_day_unless_all_are_requested(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folded = lines(capsys, config, *SPRING)
    assert len([line for line in folded if "cron/often" in line and "Europe/Berlin" in line]) == 3
    assert len(lines(capsys, config, "--all", *SPRING)) > 576
    assert entry(data(capsys, config, *SPRING), "often")["days"][0]["firings"] is None
    assert sum(len(day["firings"]) for day in entry(data(capsys, config, "--all", *SPRING), "often")["days"]) == 576


def test_days_without_a_column_are_summed_in_one_column(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = lines(capsys, config, "--from", "2027-05-01T00:00+02:00", "--for", "30d")
    assert "cron/often 288 288 288 288 7488 8640" in output


def test_the_plan_fits_into_eighty_columns(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    config.write_text(BERLIN.replace("nightly", "a-very-long-name-" * 3), "utf-8")
    assert main(["plan", "-c", str(config), *SPRING]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_the_plan_uses_the_schedule_in_the_database(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(agent(interval="7h") + job(every="5h"), start="2026-03-02 08:11")
    world.run(minutes=5)
    plan = data(capsys, world.config, "--from", "2026-03-02T08:12:00Z", "--for", "12h")
    assert entry(plan, "ops")["source"] == "database"
    assert entry(plan, "ops")["days"][0]["firings"] == ["2026-03-02T15:11:00Z"]
    assert [day["firings"] for day in entry(plan, "measure")["days"]] == [["2026-03-02T13:11:00Z", "2026-03-02T18:11:00Z"]]


def test_without_a_database_the_plan_assumes_a_start_now(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = data(capsys, config, "--for", "24h")
    assert {each["source"] for each in plan["entries"] if each["total"]} == {"fresh start"}
    assert lines(capsys, config)[-4] == "schedule of a first start now: agent/hanoi, agent/ops, cron/nightly, cron/often"


def test_a_changed_interval_is_planned_as_after_a_reload(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(agent(interval="30m"))
    world.run(minutes=5)
    world.config.write_text(agent(interval="3h"), "utf-8")
    plan = entry(data(capsys, world.config, "--for", "24h"), "ops")
    assert plan["source"] == "reload"
    assert {firing[14:] for day in plan["days"] for firing in day["firings"] or [day["first"], day["last"]]} == {"00:00Z"}
    assert plan["total"] == 8


def test_a_paused_entry_is_planned_from_the_end_of_its_pause(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(agent(interval="2h") + job(every="2h"))
    world.run(minutes=5)
    world.pause(("heartbeat", "ops"), utc("2036-02-20 13:30"))  # the command takes the time of the machine
    world.pause(("cron", "measure"))
    plan = data(capsys, world.config, "--from", "2036-02-20T08:12:00Z", "--for", "10h")
    assert entry(plan, "ops")["state"] == entry(plan, "measure")["state"] == "paused"
    assert entry(plan, "ops")["days"][0]["firings"] == ["2036-02-20T14:00:00Z", "2036-02-20T16:00:00Z", "2036-02-20T18:00:00Z"]
    assert entry(plan, "measure")["total"] == 0


def test_slots_that_an_agent_skips_while_it_backs_off_are_not_planned(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(agent(interval="1h", backoff_on_failure="true", retries="0"), scripts={"ops": lambda call: 1})
    world.run(minutes=5)
    for _ in range(2):
        plan = entry(data(capsys, world.config, "--from", "2026-03-02T08:12:00Z", "--for", "4h"), "ops")
        assert plan["days"][0]["firings"] == ["2026-03-02T10:00:00Z", "2026-03-02T11:00:00Z", "2026-03-02T12:00:00Z"]
        world.pause(("heartbeat", "ops"), utc("2026-03-02 08:30"))  # a pause that ends before the back-off changes nothing


def test_with_an_invalid_config_the_plan_uses_only_the_database(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(agent(interval="3h", timezone="Asia/Tokyo", active_hours='"08:00-22:00"'))
    world.run(minutes=5)
    world.config.write_text("agents: [", "utf-8")
    assert main(["plan", "-c", str(world.config), "--from", "2026-03-02T08:12:00Z", "--format", "json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"{world.config} has errors (`heartbeatd check` lists them); only the database is used\n"
    (ops,) = json.loads(printed.out)["entries"]
    assert (ops["source"], ops["zone"], ops["total"]) == ("database", "Asia/Tokyo", 5)
    assert main(["plan", "--state", str(world.state), "--from", "2026-03-02T08:12:00Z", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == [ops]


def test_without_a_config_the_plan_reports_wakes_by_jobs_as_unknown(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(agent() + "cron: {look: {every: 1h, command: look, wake_heartbeat: ops}}\n")
    world.run(minutes=5)
    note = "the number of runs started by wakes is unknown: only the config contains the agents that jobs wake"
    assert note not in lines(capsys, world.config)
    world.config.write_text("agents: [", "utf-8")
    for arguments in ([], ["ops"]):
        assert note in lines(capsys, world.config, *arguments)
    assert note not in lines(capsys, world.config, "look")
    assert data(capsys, world.config)["wakes_known"] is False


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--for", "500d"], "--for: write a time of at most 400d"),
        (["--from", "9999-12-31"], "--from: write a time in the years 1900 to 9899"),
        (["--from", "9950-01-01T00:00Z", "nightly"], "--from: write a time in the years 1900 to 9899"),
        (["--from", "0001-01-03T00:00Z"], "--from: write a time in the years 1900 to 9899"),
        (["nightli"], "no agent or cron job 'nightli'; did you mean nightly?"),
        (["nobody"], "no agent or cron job 'nobody'; `heartbeatd status` lists them"),
    ],
)
def test_invalid_options_are_reported_in_one_line(
    config: Path, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-c", str(config), *arguments]) == 2
    assert capsys.readouterr().err == f"heartbeatd: {error}\n"


def test_an_invalid_config_without_a_database_prints_the_errors_of_the_config(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("agents: [", "utf-8")
    assert main(["plan", "-c", str(config)]) == 2
    assert capsys.readouterr().err.startswith(f"{config}:2:1: agents: ")


CEILINGS = """
prices: {big: {input: 2.0, output: 10.0, cache_write: 2.0}}
providers: {local: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
limits: {wake_flood: 1 per 24h, budget: {usd_per_day: 1.50}}
defaults: {heartbeat: {interval: 24h, deliver: log}}
agents:
  ops: {runner: {kind: openai, provider: local}, model: big, heartbeat: {budget: {usd_per_day: 1.20}}}
  far: {runner: {kind: openai, provider: local}, model: big, heartbeat: {retries: 0}}
cron: {measure: {every: 1h, command: x}}
"""


def test_the_worst_day_is_shown_for_each_entry_with_a_model_and_in_total(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CEILINGS, "utf-8")
    assert lines(capsys, config, "--worst") == [
        "NAME RUNS TRIES USD EACH USD A DAY BY",
        "agent/ops 4 24 0.1200 1.20 budget",
        "agent/far 4 16 0.1200 1.92 runs",
        "RUNS: planned ones, a late one, and as many by wakes as limits.wake_flood allows",
        "all: at most 1.50 USD a day by limits.budget",
        "by runs: if nobody changes the clock, restarts the daemon, or runs agents or jobs by hand",
    ]
    plan = data(capsys, config, "--worst")
    assert (plan["usd_per_day"], plan["by"]) == (1.5, "limits.budget")
    assert plan["entries"][1] == {
        "kind": "heartbeat", "name": "far", "zone": "UTC", "runs": 4, "tries": 16, "usd_per_try": 0.12,
        "usd_per_day": 1.92, "usd_per_month": pytest.approx(59.52), "by": "runs",
    }  # fmt: skip


def test_the_runs_that_all_together_may_start_limit_the_worst_day(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The agent whose day is that of another zone may run on two days of the shared budget."""
    shared = CEILINGS.replace("budget: {usd_per_day: 1.50}", "budget: {runs_per_day: 2}")
    config.write_text(shared.replace("retries: 0}", "retries: 0, timezone: Asia/Tokyo}"), "utf-8")
    assert lines(capsys, config, "--worst") == [
        "NAME RUNS TRIES USD EACH USD A DAY BY",
        "agent/ops 2 12 0.1200 1.20 budget",
        "agent/far 4 16 0.1200 1.92 runs",
        "RUNS: planned ones, a late one, and as many by wakes as limits.wake_flood allows",
        "all: at most 1.44 USD a day by limits.budget",  # two runs of ops, with six tries each
        "by runs: if nobody changes the clock, restarts the daemon, or runs agents or jobs by hand",
    ]


def test_printed_limits_are_rounded_up(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CEILINGS.replace("usd_per_day: 1.20", "usd_per_day: 1.204"), "utf-8")
    assert lines(capsys, config, "--worst")[1] == "agent/ops 4 24 0.1200 1.21 budget"


def test_a_day_without_a_cost_limit_is_shown_as_such(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, config, "--worst")[1] == "agent/ops 787 4722 not known no limit runs"  # 30 + 1 late + 756 by wakes


def test_the_worst_day_of_one_agent_cannot_be_asked_for(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "opps", "--worst", "-c", str(config)]) == 2
    assert capsys.readouterr().err == "heartbeatd: --worst lists all agents and jobs; leave out 'opps'\n"


def test_a_config_without_agents_has_no_worst_day(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("cron: {measure: {every: 1h, command: x}}\n", "utf-8")
    assert lines(capsys, config, "--worst") == ["no entry calls an agent"]


def test_the_start_of_a_plan_is_a_time_in_the_configs_zone(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert data(capsys, config, "--from", "2027-03-27T12:00")["from"] == "2027-03-27T11:00:00Z"
    assert data(capsys, config, "--from", "2027-03-27T12:00+09:00")["from"] == "2027-03-27T03:00:00Z"


def test_an_empty_plan_is_reported_in_the_zone_of_the_request(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = lines(capsys, config, "nightly", "--from", "2027-02-27T12:00", "--for", "1h")
    assert output[0] == "nothing fires from 2027-02-27 12:00:00 to 2027-02-27 13:00:00 Europe/Berlin"


WOKEN = """
limits: {wake_flood: 20 per 10m}
agents:
  ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 5m, deliver: log}}
  quiet: {runner: {kind: command, argv: [a]}, heartbeat: {interval: none, deliver: log}}
  off: {runner: {kind: command, argv: [a]}, heartbeat: {enabled: false, interval: 5m, deliver: log}}
cron:
  measure: {schedule: "* * * * *", command: x, wake_heartbeat: [ops, off]}
  hourly: {schedule: "0 * * * *", command: x, wake_heartbeat: [ops, quiet]}
  later: {schedule: "0 * * * *", command: x, wake_heartbeat: ops, wake_mode: next}
  idle: {schedule: "0 * * * *", command: x, wake_heartbeat: ops, enabled: false}
"""


def test_a_plan_shows_how_many_runs_the_wakes_of_jobs_may_add(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(WOKEN, "utf-8")
    plan = data(capsys, config, "--from", "2027-03-27T12:00", "--for", "24h")
    assert entry(plan, "ops")["wakes"] == {"at_most": 1464, "by": ["hourly", "measure"]}
    assert entry(plan, "quiet")["wakes"] == {"at_most": 24, "by": ["hourly"]}
    assert entry(plan, "off")["wakes"] is entry(plan, "measure")["wakes"] is None
    assert entry(plan, "ops")["total"] == 288
    shown = lines(capsys, config, "--from", "2027-03-27T12:00")
    assert "agent/ops: up to 1,464 more runs by wakes of cron/hourly, cron/measure" in shown
    assert "agent/quiet: up to 24 more runs by wakes of cron/hourly" in lines(
        capsys, config, "quiet", "--from", "2027-03-27T12:00"
    )


@pytest.mark.parametrize(("enabled", "wakes"), [("true", {"at_most": 24, "by": ["third"]}), ("false", None)])
def test_the_last_job_of_a_chain_wakes_an_agent_unless_one_before_it_is_disabled(
    enabled: str, wakes: object, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"""
agents: {{ops: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{interval: 1d, deliver: log}}}}}}
cron:
  first: {{every: 1h, command: look}}
  second: {{after: first, command: look, enabled: {enabled}}}
  third: {{after: second, command: look, wake_heartbeat: ops}}
"""
    config.write_text(text, "utf-8")
    assert entry(data(capsys, config, "--from", "2027-03-27T12:00", "--for", "24h"), "ops")["wakes"] == wakes


@pytest.mark.parametrize(("limits", "at_most"), [("wake_flood: 5 per 10m", 725), ("wake_flood: 20 per 10m, wake_gap: 1h", 25)])
def test_the_number_of_wakes_respects_wake_flood_and_wake_gap(
    limits: str, at_most: int, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(WOKEN.replace("wake_flood: 20 per 10m", limits), "utf-8")
    assert entry(data(capsys, config, "--from", "2027-03-27T12:00"), "ops")["wakes"]["at_most"] == at_most


@pytest.mark.parametrize("command", ["check", "reload --dry-run", "plan --worst"])
def test_files_that_nearly_fill_a_prompt_are_reported_before_a_run_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A day's budget makes a token of each byte, so that a prompt may fit without a budget and not with it."""
    monkeypatch.chdir(tmp_path)
    config = """
state: state/heartbeatd.db
providers: {anthropic: {api_key: k}}
prices: {m: {input: 1.0, output: 5.0}}
defaults: {runner: {kind: anthropic}, model: m, heartbeat: {max_input_tokens: 9k}}
agents:
  free: {context: [SOUL.md], heartbeat: {interval: 1h, checklist: "- look\\n", budget: unlimited}}
  near: {context: [SOUL.md], heartbeat: {interval: 1h, checklist: "- look\\n", budget: {usd_per_day: 1}}}
  over: {context: [SOUL.md], heartbeat: {interval: 1h, checklist: HEARTBEAT.md, budget: {usd_per_day: 1}}}
cron:
  digest: {schedule: "0 8 * * *", prompt: "Write a digest.", agent: free, budget: {usd_per_day: 1, usd_per_try: 0.02}}
"""
    for name in ("free", "near", "over"):
        folder = tmp_path / "agents" / name
        folder.mkdir(parents=True)
        (folder / "SOUL.md").write_text("x" * 7000)
        (folder / "HEARTBEAT.md").write_text("- look " + "x" * 5000)
    (tmp_path / "config.yaml").write_text(config)
    world = World(tmp_path, config)
    loaded = load_config(tmp_path / "config.yaml", {})
    with world.store.transaction() as db:  # the config in force, for the comparison of `reload --dry-run`
        record_config_in_force(Transaction(db, world.clock.now, ""), store_config(loaded))
    world.stop()
    assert main(command.split()) == 0
    found = [line for line in capsys.readouterr().err.splitlines() if "the prompt with its files has" in line]
    counted = "bytes, counted as tokens because a budget applies, and"
    expected = [
        rf"agents.near.heartbeat.checklist: .* [78],\d+ {counted} max_input_tokens is 9,000, so a wake or the output of a precheck",
        rf"agents.over.heartbeat.checklist: .* 1[2-4],\d+ {counted} max_input_tokens is 9,000, so its runs are skipped",
        rf"cron.digest.prompt: .* 7,\d+ {counted} its budget allows 8,\d+, so a wake or the output of a precheck",
    ]
    assert [bool(re.search(*pair)) for pair in zip(expected, found, strict=True)] == [True] * 3, found


def test_a_plan_lists_a_job_after_another_one_by_that_alone(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("cron:\n  backup: {every: 1h, command: x}\n  verify: {after: backup, command: x}\n", "utf-8")
    shown = lines(capsys, config, "--from", "2027-03-27T12:00", "--for", "24h")
    assert [line for line in shown if "verify" in line] == ["cron/verify: up to 24 more runs after cron/backup"]


def test_the_jobs_that_wake_an_agent_are_named_though_one_has_the_name_of_the_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "agents: {ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: none, deliver: log}}}\n"
        "cron:\n"
        "  first: {every: 6h, command: x, wake_heartbeat: ops}\n"
        "  ops: {after: first, command: x, wake_heartbeat: ops}\n",
        "utf-8",
    )
    wakes = next(each["wakes"] for each in data(capsys, config)["entries"] if each["kind"] == "heartbeat")
    assert (wakes["by"], wakes["at_most"]) == (["first", "ops"], 6)
