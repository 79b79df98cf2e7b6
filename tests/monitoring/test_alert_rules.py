"""Tests with promtool that each alert rule fires in its situation, not before, and that no rule fires in normal situations."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import required_programs
import shipped_dashboard
from loops import loop_over
from patience import PATIENCE

from scheduler.cli.main import main

QUIET = shipped_dashboard.GRAFANA / "prometheus" / "tests" / "quiet.yml"
RUNBOOKS = shipped_dashboard.GRAFANA.parent / "docs" / "runbooks.md"
NAMES = [rule["alert"] for rule in shipped_dashboard.rules()]

DAEMON = {"job": "heartbeatd", "env": "prod"}  # `env` is a label of the scrape config, as many have one
OPS = {"kind": "heartbeat", "name": "ops"}
HOOK = {"channel": "hook"}
MODEL = {"provider": "anthropic"}
BUDGET = {"scope": "entry", **OPS, "budget": "usd_per_day"}
ACTIVE = {"heartbeatd_entry_state{kind,name,state=active}": "1x200"}

FIRING = 'ALERTS{{alertstate="firing",alertname!="Watchdog",instance=~"{}|"}}'  # of a daemon, or without a daemon

Promtool = Callable[..., subprocess.CompletedProcess[str]]


@dataclass
class Situation:
    """Series by the minute, the minutes at which nothing fires, and the minutes at which exactly this alert does.

    Label names without a value in a series have the value of `labels`. `also` are labels that only the alert has.
    """

    alert: str
    series: dict[str, str]
    quiet: tuple[int, ...]
    firing: tuple[int, ...]
    labels: dict[str, str] = field(default_factory=dict)
    also: dict[str, str] = field(default_factory=dict)

    def as_test(self, instance: str = "a") -> dict[str, Any]:
        """The test of a daemon with this label `instance`, as promtool reads it."""
        every = {"up": "1x200", "process_start_time_seconds": "0x200"} | self.series
        daemon = {"instance": instance} | DAEMON
        series = [{"series": self._selector(name, daemon), "values": values} for name, values in every.items()]
        checks = [self._check(minute, [], instance) for minute in self.quiet]
        severity = {"severity": next(rule["labels"]["severity"] for rule in shipped_dashboard.rules(self.alert))}
        known = {"__name__": "ALERTS", "alertname": self.alert, "alertstate": "firing"}
        labels = known | severity | daemon | self.labels | self.also
        if self.alert == "ServiceLevelBurns":
            labels = {name: value for name, value in labels.items() if name not in ("instance", "env")}
        shown = "{" + ",".join(f"{key}={json.dumps(value)}" for key, value in labels.items()) + "}"
        checks += [self._check(minute, [{"labels": shown, "value": 1}], instance) for minute in self.firing]
        return {"interval": "1m", "input_series": series, "promql_expr_test": checks}

    def _selector(self, series: str, daemon: dict[str, str]) -> str:
        name, _, inside = series.rstrip("}").partition("{")
        pairs = [part.partition("=") for part in inside.split(",") if part]
        labels = daemon | {key: value or self.labels[key] for key, _, value in pairs}
        return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"

    @staticmethod
    def _check(minute: int, samples: list[Any], instance: str) -> dict[str, Any]:
        return {"expr": FIRING.format(instance), "eval_time": f"{minute}m", "exp_samples": samples}


SITUATIONS = {
    "the daemon does not answer": Situation("HeartbeatdDown", {"up": "1x10 0x20"}, (13,), (14,)),
    "the main loop hangs": Situation(
        "HeartbeatdStuck", {"heartbeatd_last_tick_timestamp_seconds": "0+60x10 600x20"}, (12, 14), (15,)
    ),
    "the daemon starts four times more within the hour": Situation(
        "HeartbeatdCrashLooping", {"process_start_time_seconds": "0x5 300x5 600x5 900x5 1200x100"}, (20, 90), (27,)
    ),
    "the daemon is killed, and starts again or is replaced by a standby": Situation(
        "HeartbeatdCrashed", {"heartbeatd_last_crash_timestamp_seconds": "_x10 600x100"}, (9, 45), (12, 39)
    ),
    "a config is rejected": Situation(
        "ConfigReloadFailed",
        {"heartbeatd_config_last_reload_successful": "1x5 0x20", "heartbeatd_config_file_present": "1x40"},
        (10,),
        (12,),
    ),
    "the config file is gone, which also counts as a rejected config": Situation(
        "ConfigFileMissing",
        {"heartbeatd_config_last_reload_successful": "1x5 0x20", "heartbeatd_config_file_present": "1x5 0x20"},
        (10,),
        (12,),
    ),
    "the database is locked for minutes": Situation(
        "DatabaseBusy", {"heartbeatd_db_busy_total": "0x10 30+30x10 330x40"}, (11, 30), (15,)
    ),
    "a part of the main loop raises": Situation(
        "InternalErrors", {"heartbeatd_internal_errors_total{part}": "0x10 1x40"}, (9, 30), (12,), {"part": "messages"}
    ),
    "the queue of the workers is down": Situation(
        "QueueUnavailable", {"heartbeatd_queue_available": "1x10 0x10 1x30", "heartbeatd_workers": "2x10 _x10 2x30"}, (11, 25), (13,)
    ),
    "all workers are gone": Situation(
        "WorkersMissing",
        {
            "heartbeatd_queue_available": "1x60",
            "heartbeatd_workers": "2x10 0x20 1x30",
            "heartbeatd_queue_oldest_timestamp_seconds": "_x10 600x20",
        },
        (12, 33),
        (15, 25),
    ),
    "all workers are busy": Situation(
        "WorkersBusy",
        {"heartbeatd_workers": "2x60", "heartbeatd_queue_oldest_timestamp_seconds": "_x10 600x20 _x30"},
        (15, 35),
        (18,),
    ),
    "the disk is full": Situation("NoReserve", {"heartbeatd_reserve_bytes": "1048576x5 0x10 1048576x20"}, (10, 20), (13,)),
    "the clock is set": Situation(
        "ClockJumped", {"heartbeatd_clock_jumps_total{direction}": "0x10 1x40"}, (9, 30), (12,), {"direction": "forward"}
    ),
    "the dead man's switch is not reached": Situation(
        "DeadmanUnreachable",
        {"heartbeatd_deadman_reachable": "1x10 0x100 1x20"},
        (24, 112),
        (27, 60, 109),
    ),
    "a program has an old token": Situation(
        "TokensRefused", {"heartbeatd_http_tokens_refused_total": "0x5 0+5x5 25x40"}, (5, 35), (12,)
    ),
    "a scanner asks for many paths": Situation(
        "UnknownPaths", {"heartbeatd_http_requests_total{route=unknown,code=404}": "_x5 30x45"}, (4, 35), (12,)
    ),
    "there are more entries than series": Situation(
        "EntriesWithoutSeries", {"heartbeatd_entries_without_series": "3x40"}, (14,), (16,)
    ),
    "more is due than may run": Situation(
        "DispatchLate", {"heartbeatd_oldest_due_timestamp_seconds": "_x10 600x40"}, (24,), (28,)
    ),
    "an agent fails for the third time": Situation(
        "HeartbeatFailing",
        {"heartbeatd_consecutive_failures{kind,name}": "0x5 1x5 2x5 3x20 0x20", **ACTIVE},
        (18, 45),
        (20,),
        OPS,
    ),
    "a job fails once": Situation(
        "HeartbeatFailing",
        {"heartbeatd_consecutive_failures{kind,name}": "0x5 1x20", **ACTIVE},
        (6,),
        (8,),
        {"kind": "cron", "name": "backup"},
    ),
    "an agent with one run a day fails once": Situation(
        "HeartbeatFailing",
        {
            "heartbeatd_consecutive_failures{kind,name}": "0x5 1x100",
            "heartbeatd_last_success_timestamp_seconds{kind,name}": "-86400+0x100",
            "heartbeatd_next_due_timestamp_seconds{kind,name}": "0x5 86400x100",
            **ACTIVE,
        },
        (5,),
        (10,),
        OPS,
    ),
    "a checklist cannot be read": Situation(
        "HeartbeatBlocked",
        {"heartbeatd_skips_total{kind,name,reason}": "0x10 1x100"},
        (10, 80),
        (17,),
        {**OPS, "reason": "checklist_unreadable"},
    ),
    "an agent with one run a day fails before it has ever succeeded": Situation(
        "HeartbeatFailing",
        {
            "heartbeatd_consecutive_failures{kind,name}": "0x5 1x100",
            "heartbeatd_next_due_timestamp_seconds{kind,name}": "0x5 86400x100",
            **ACTIVE,
        },
        (5,),
        (10,),
        OPS,
    ),
    "a checklist of an agent with an interval of 20 minutes cannot be read until it is repaired": Situation(
        "HeartbeatBlocked",
        {
            "heartbeatd_skips_total{kind,name,reason}": "0x20 1x20 2x200",
            "heartbeatd_last_success_timestamp_seconds{kind,name}": "0x59 3600x20 4800x20 6000x20 7200x100",
            "heartbeatd_expected_by_timestamp_seconds{kind,name}": "2400x59 6000x20 7200x20 8400x20 9600x100",
        },
        (39, 61, 66, 75, 90),
        (46, 59),
        {**OPS, "reason": "checklist_unreadable"},
    ),
    "a precheck fails, and the agent is called all the same": Situation(
        "PrecheckFailing", {"heartbeatd_precheck_failures_total{kind,name}": "0x10 1x10 2x10 3x10 4x40"}, (25,), (50,), OPS
    ),
    "a model is slower than its interval": Situation(
        "SlotsLost",
        {
            "heartbeatd_skips_total{kind,name,reason=already_running}": "0+1x60",
            "heartbeatd_runs_total{kind,name,outcome=ok}": "0x60",
            "heartbeatd_expected_by_timestamp_seconds{kind,name}": "300x60",
        },
        (4,),
        (12,),
        OPS,
    ),
    "an agent should have run": Situation(
        "HeartbeatSilent",
        {"heartbeatd_expected_by_timestamp_seconds{kind,name}": "600x20 7200x40"},
        (11, 24),
        (13,),
        OPS,
    ),
    "an agent has been paused for three days": Situation(
        "PausedForLong", {"heartbeatd_paused_since_timestamp_seconds{kind,name}": "-259000+0x20"}, (3,), (5,), OPS
    ),
    "an agent sends an alert each minute": Situation(
        "AlertStorm", {"heartbeatd_runs_total{kind,name,outcome=alert}": "0x10 0+1x20 20x100"}, (15, 120), (35,), OPS
    ),
    "a wake is rejected, and its series is new": Situation(
        "WakesRejected",
        {"heartbeatd_wakes_total{name,source,result=rejected}": "_x80 1x100"},
        (79, 150),
        (82,),
        {"name": "ops", "source": "api"},
    ),
    "a program sends a wake each minute": Situation(
        "WakeFlood",
        {"heartbeatd_wakes_total{name,source,result=joined}": "_x10 1+1x40 41x100"},
        (20, 120),
        (45,),
        {"name": "ops", "source": "api"},
    ),
    "a wake expires": Situation(
        "WakesExpired",
        {"heartbeatd_wakes_total{name,source,result=expired}": "0x10 1x100"},
        (9, 80),
        (12,),
        {"name": "ops", "source": "api"},
    ),
    "an agent reports a critical problem": Situation(
        "ProblemCritical",
        {
            "heartbeatd_problems_open{subject=agent/ops,severity=critical,acknowledged=false}": "1x90 0x20",
            "heartbeatd_problems_open{subject=agent/ops,severity=critical,acknowledged=true}": "1x110",
        },
        (59, 95),
        (61,),
        {"subject": "agent/ops"},
    ),
    "a problem is old": Situation(
        "ProblemOld",
        {"heartbeatd_problem_oldest_timestamp_seconds{subject=agent/ops}": "-172800+0x120"},
        (50,),
        (120,),
        {"subject": "agent/ops"},
    ),
    "a channel is down": Situation(
        "OutboxStuck", {"heartbeatd_outbox_oldest_timestamp_seconds{channel}": "0x80"}, (62,), (67,), HOOK
    ),
    "a message is a dead letter until it is dropped": Situation(
        "OutboxDead", {"heartbeatd_outbox_dead{channel}": "0x5 1x5 0x20"}, (4, 15), (7,), HOOK
    ),
    "a provider refuses the key": Situation(
        "BreakerOpen", {"heartbeatd_breaker_open{provider}": "0x5 1x20 0x20"}, (14, 30), (17,), MODEL
    ),
    "a provider refuses a model": Situation(
        "ModelBreakerOpen",
        {"heartbeatd_breaker_model_open{provider,model}": "0x5 1x20"},
        (14,),
        (17,),
        {**MODEL, "model": "claude-opus-9"},
    ),
    "a provider is down": Situation(
        "ProviderFailing",
        {
            "heartbeatd_provider_requests_total{provider,model=x,result=ok}": "0x90",
            "heartbeatd_provider_requests_total{provider,model=x,result=overloaded}": "0x10 0+3x20 60x60",
        },
        (9, 80),
        (20,),
        MODEL,
    ),
    "another model answers": Situation(
        "ModelMismatch", {"heartbeatd_model_mismatches_total{kind,name}": "0x10 1x20"}, (9,), (12,), OPS
    ),
    "a model has no price": Situation(
        "UnpricedTokens", {"heartbeatd_unpriced_tokens_total{model}": "0x10 500x80"}, (9, 80), (12,), {"model": "claude-opus-9"}
    ),
    "a budget is used up until the next day": Situation(
        "BudgetExhausted",
        {
            "heartbeatd_budget_exhausted{scope,kind,name,budget}": "0x5 1x20 0x20",
            "heartbeatd_budget_used_ratio{scope,kind,name,budget}": "0.95x25 0x20",
            "heartbeatd_budget_day_elapsed_ratio{scope,kind,name,budget}": "0.9x50",
        },
        (6, 30),
        (8,),
        BUDGET,
    ),
    "a budget will not last": Situation(
        "BudgetNearlyUsed",
        {
            "heartbeatd_budget_exhausted{scope,kind,name,budget}": "0x60",
            "heartbeatd_budget_used_ratio{scope,kind,name,budget}": "0.85x60",
            "heartbeatd_budget_day_elapsed_ratio{scope,kind,name,budget}": "0.8x10 0.5x10 0.8x40",
        },
        (14, 30),
        (18,),
        BUDGET,
    ),
    "half of the slots end badly": Situation(
        "ServiceLevelBurns",
        {
            "heartbeatd_slots_total{kind=heartbeat,name=ops,result=good}": "0+1x60",
            "heartbeatd_slots_total{kind=heartbeat,name=ops,result=bad}": "0+1x60",
        },
        (4,),
        (12,),
        {},
        {"slo": "ended_well", "burn": "fast"},
    ),
}  # fmt: skip
# Situations in which an alert about the cause makes another alert superfluous, and others without any alert.
EXPLAINED = {
    "a failing agent is not also silent": (
        Situation("HeartbeatFailing", {
            "heartbeatd_consecutive_failures{kind,name}": "0x5 3x60",
            "heartbeatd_expected_by_timestamp_seconds{kind,name}": "600x60", **ACTIVE,
        }, (), (20,), OPS)
    ),
    "an agent that cannot run is not also silent": (
        Situation("HeartbeatBlocked", {
            "heartbeatd_skips_total{kind,name,reason=precheck_failed}": "0x5 1x60",
            "heartbeatd_precheck_failures_total{kind,name}": "0x5 0+1x60",
            "heartbeatd_expected_by_timestamp_seconds{kind,name}": "600x60",
        }, (), (20,), OPS, {"reason": "precheck_failed"})
    ),
    "a run that takes longer than its interval is not also silent": (
        Situation("SlotsLost", {
            "heartbeatd_expected_by_timestamp_seconds{kind,name}": "600x60",
            "heartbeatd_skips_total{kind,name,reason=already_running}": "0x5 1x60",
        }, (11,), (14,), OPS)
    ),
    "an agent whose runs time out loses slots because it fails": (
        Situation("HeartbeatFailing", {
            "heartbeatd_consecutive_failures{kind,name}": "3x60", **ACTIVE,
            "heartbeatd_expected_by_timestamp_seconds{kind,name}": "600x60",
            "heartbeatd_skips_total{kind,name,reason=already_running}": "0+1x60",
            "heartbeatd_runs_total{kind,name,outcome=timeout}": "0+1x60",
        }, (), (14, 30), OPS)
    ),
    "entries that wait for a place are not also silent": (
        Situation("DispatchLate", {
            "heartbeatd_oldest_due_timestamp_seconds": "600x60",
            "heartbeatd_expected_by_timestamp_seconds{kind=heartbeat,name=ops}": "900x60",
            "heartbeatd_expected_by_timestamp_seconds{kind=heartbeat,name=slow}": "900x60",
            "heartbeatd_skips_total{kind=heartbeat,name=slow,reason=already_running}": "0+1x60",
        }, (24,), (40,))
    ),
    "runs that do not start because of an internal error are neither late nor silent": (
        Situation("InternalErrors", {
            "heartbeatd_internal_errors_total{part}": "0x5 1x5 2x5 3x5 4x5 5x5 6x30",
            "heartbeatd_oldest_due_timestamp_seconds": "300x60",
            "heartbeatd_expected_by_timestamp_seconds{kind=heartbeat,name=ops}": "600x60",
        }, (4,), (8, 25, 35), {"part": "due runs"})
    ),
    "messages that are not sent because of an internal error are not also stuck": (
        Situation("InternalErrors", {
            "heartbeatd_internal_errors_total{part}": "0x60 1x5 2x5 3x30",
            "heartbeatd_outbox_oldest_timestamp_seconds{channel=hook}": "300x90",
        }, (59,), (62, 75, 80), {"part": "messages"})
    ),
    "slots that were lost while entries waited for a place fire no alert afterwards": (
        Situation("DispatchLate", {
            "heartbeatd_oldest_due_timestamp_seconds": "600x40 9000x40",
            "heartbeatd_skips_total{kind=heartbeat,name=slow,reason=already_running}": "0x20 0+1x20 20x40",
            "heartbeatd_runs_total{kind=heartbeat,name=slow,outcome=ok}": "0x80",
        }, (24, 60, 75), (40,))
    ),
    "alerts that were suppressed are no storm": (
        Situation("AlertStorm", {
            "heartbeatd_runs_total{kind=heartbeat,name=ops,outcome=alert}": "0+2x60",
            "heartbeatd_suppressions_total{kind=heartbeat,name=ops,reason=duplicate}": "0+1x60",
            "heartbeatd_suppressions_total{kind=heartbeat,name=ops,reason=no_findings}": "0+1x60",
        }, (30, 60), ())
    ),
    "wakes that expire during a pause were meant": (
        Situation("WakesExpired", {
            "heartbeatd_wakes_total{name=ops,source=api,result=expired}": "0x10 1x60",
            "heartbeatd_entry_state{kind=heartbeat,name=ops,state=paused}": "1x60",
        }, (20, 60), ())
    ),
    "an upgrade of two minutes": (
        Situation("HeartbeatdDown", {"up": "1x10 0x1 1x60", "process_start_time_seconds": "0x10 _x1 720x60"}, (12, 14, 30), ())
    ),
    "one missed scrape does not resolve an alert": (
        Situation("BreakerOpen", {"heartbeatd_breaker_open{provider}": "1x20 _ 1x10"}, (), (20, 21, 22), MODEL)
    ),
    "a new Prometheus does not report what an old daemon has counted": (
        Situation("WakesRejected", {
            "up": "_x90 1x100",
            "heartbeatd_wakes_total{name=ops,source=api,result=rejected}": "_x90 3x100",
        }, (92, 140), ())
    ),
}  # fmt: skip

# Its service level would burn until 5 and 30 minutes after the repair.
REPAIRED_AGENT = Situation(
    "HeartbeatFailing",
    {
        "heartbeatd_consecutive_failures{kind,name}": "3x30 0x90",
        "heartbeatd_slots_total{kind,name,result=good}": "0x30 0+1x90",
        "heartbeatd_slots_total{kind,name,result=bad}": "0+1x30 30x90",
        **ACTIVE,
    },
    (34, 50, 100),
    (10, 30),
    OPS,
)


@pytest.fixture
def promtool() -> Promtool:
    found = required_programs.need("promtool")

    environ = os.environ | {"GOGC": "400"}  # a fourth less CPU than with the usual garbage collection

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [found, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=PATIENCE, env=environ
        )

    return run


def promtool_test(folder: Path, tests: list[Any], rules: str) -> Path:
    (folder / "rules.yml").write_text(rules)
    path = folder / "tests.yml"
    path.write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}))
    return path


def rules_text(*, levels: bool = False) -> str:
    """The rule file, with or without the slow rules of service levels."""
    rules = shipped_dashboard.yaml(shipped_dashboard.RULES)
    slow = {"heartbeatd-service-levels", "heartbeatd-service-levels-long", "heartbeatd-burn-rates"}
    rules["groups"] = [group for group in rules["groups"] if levels or group["name"] not in slow]
    return json.dumps(rules)


def test_prometheus_accepts_the_scrape_config_and_the_rules(promtool: Promtool) -> None:
    checked = promtool("check", "config", shipped_dashboard.GRAFANA / "prometheus" / "prometheus.yml")
    assert checked.returncode == 0, checked.stderr


def test_the_rules_pass_the_linter(promtool: Promtool) -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", shipped_dashboard.RULES)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout


def in_one_test(tests: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The daemons of all tests in one test. promtool evaluates every rule at each minute of each test, so one takes a tenth of the CPU."""
    merged: dict[str, Any] = {"interval": "1m", "input_series": [], "promql_expr_test": []}
    for each in tests:
        assert each["interval"] == merged["interval"]
        for part in ("input_series", "promql_expr_test"):
            merged[part] += each[part]
    return merged


def test_each_situation_fires_exactly_its_rule(promtool: Promtool, tmp_path: Path) -> None:
    every = {what: each for what, each in (SITUATIONS | EXPLAINED).items() if each.alert != "ServiceLevelBurns"}
    merged = in_one_test(situation.as_test(what) for what, situation in every.items())
    result = promtool("test", "rules", promtool_test(tmp_path, [merged], rules_text()))
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_missing_scrape_target_is_a_daemon_that_is_down(promtool: Promtool, tmp_path: Path) -> None:
    labels = '{__name__="ALERTS",alertname="HeartbeatdDown",alertstate="firing",severity="critical",job="heartbeatd"}'
    checks = [Situation._check(13, [], ""), Situation._check(14, [{"labels": labels, "value": 1}], "")]
    series = [{"series": 'up{job="heartbeatd",instance="a"}', "values": "1x10 stale"}]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": checks}
    result = promtool("test", "rules", promtool_test(tmp_path, [test], rules_text()))
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_service_level_burns_unless_an_alert_about_the_cause_fired_meanwhile(promtool: Promtool, tmp_path: Path) -> None:
    burning = SITUATIONS["half of the slots end badly"]
    path = promtool_test(tmp_path, [burning.as_test(), REPAIRED_AGENT.as_test()], rules_text(levels=True))
    result = promtool("test", "rules", path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_there_is_a_situation_for_every_rule() -> None:
    assert {situation.alert for situation in SITUATIONS.values()} == set(NAMES) - {"Watchdog"}


def test_normal_situations_fire_nothing(promtool: Promtool, tmp_path: Path) -> None:
    tests = shipped_dashboard.yaml(QUIET)["tests"]
    for test in tests:
        for series in test["input_series"]:
            series["series"] = series["series"].replace('instance="', f'instance="{test["name"]} ')
        for check in test["promql_expr_test"]:
            check["expr"] = check["expr"].replace("ALERTS{", f'ALERTS{{instance=~"({test["name"]} .*)?",')
    result = promtool("test", "rules", promtool_test(tmp_path, [in_one_test(tests)], rules_text()))
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_rule_selects_the_job_in_each_of_its_metrics() -> None:
    for expr in shipped_dashboard.rule_expressions():
        names = re.findall(
            r"(?<![\w\"])((?:job:)?heartbeatd_[\w:]+|\bup|process_\w+|ALERTS)\b(?!\")(\{job=\"heartbeatd\")?", expr
        )
        assert names or expr == "vector(1)"
        assert [name for name, selector in names if not selector] == [], expr


@loop_over("rule", shipped_dashboard.rules())
def test_every_alert_has_a_severity_and_says_what_to_type(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info", "none"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert re.search(r"[Tt]ype `(?:heartbeatd |journalctl |timedatectl|amtool |curl )|then type `heartbeatd reload`",
                     rule["annotations"]["description"])  # fmt: skip
    assert rule["annotations"]["dashboard_url"].startswith("http://localhost:3000/d/heartbeatd-")


@loop_over("name", sorted(set(NAMES)))
def test_every_alert_has_a_runbook(name: str) -> None:
    text = RUNBOOKS.read_text("utf-8")
    assert re.search(rf"^### {name}$", text, re.MULTILINE)
    assert shipped_dashboard.rules(name)[0]["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"


# --- the command ----------------------------------------------------------------------------------------------------------------


def test_the_documented_commands_replace_the_job_and_the_links_in_every_file(tmp_path: Path, promtool: Promtool) -> None:
    assert main(["files", "grafana", "--out", str(tmp_path)]) == 0
    page = (shipped_dashboard.GRAFANA.parent / "docs" / "monitoring.md").read_text("utf-8")
    for line in re.findall(r"^sed -i .*$", page, re.MULTILINE):
        subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True, timeout=PATIENCE)
    texts = {path: path.read_text() for path in tmp_path.glob("*/*.*")}
    assert [path for path, text in texts.items() if '"heartbeatd"' in text or "docs/runbooks.md" in text] == []
    rules = shipped_dashboard.yaml(tmp_path / "prometheus/rules.yml")["groups"][0]["rules"]
    assert rules[0]["expr"] == 'up{job="agents"} == 0 or absent(up{job="agents"})'
    assert rules[0]["annotations"]["runbook_url"] == "https://wiki.example.org/runbooks#heartbeatddown"
    assert rules[0]["annotations"]["dashboard_url"].startswith("https://grafana.example.org/d/heartbeatd-operations?var-job={{")
    assert shipped_dashboard.yaml(tmp_path / "prometheus/prometheus.yml")["scrape_configs"][0]["job_name"] == "agents"
    for name in shipped_dashboard.BOARDS:
        variables = json.loads(texts[tmp_path / f"dashboards/{name}.json"])["templating"]["list"]
        assert [each["current"]["value"] for each in variables if each["name"] == "job"] == ["agents"]
    checked = promtool("check", "config", tmp_path / "prometheus" / "prometheus.yml")
    assert checked.returncode == 0, checked.stderr


def test_the_rules_for_kubernetes_are_the_same(tmp_path: Path) -> None:
    assert main(["files", "grafana", "--out", str(tmp_path)]) == 0
    folder = tmp_path / "kubernetes"
    operator = shipped_dashboard.yaml(folder / "prometheusrule.yaml")
    assert (operator["apiVersion"], operator["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert operator["spec"]["groups"] == shipped_dashboard.yaml(shipped_dashboard.RULES)["groups"]
    monitor = shipped_dashboard.yaml(folder / "servicemonitor.yaml")
    assert (monitor["kind"], monitor["spec"]["endpoints"][0]["path"]) == ("ServiceMonitor", "/metrics")


def test_amtool_accepts_the_config_for_alertmanager_and_its_routes() -> None:
    amtool = required_programs.need("amtool")
    config = shipped_dashboard.GRAFANA / "alertmanager" / "alertmanager.yml"
    subprocess.run([amtool, "check-config", config], check=True, capture_output=True, timeout=PATIENCE)

    def route(*labels: str) -> str:
        asked = [amtool, "config", "routes", "test", f"--config.file={config}", *labels]
        return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout.strip()

    assert route("alertname=Watchdog", "severity=none") == "dead-mans-switch"
    receivers = {"critical": "on-call", "warning": "team", "info": "nobody"}
    rules = [rule for group in shipped_dashboard.yaml(shipped_dashboard.RULES)["groups"] for rule in group["rules"]]
    for rule in (each for each in rules if each.get("labels", {}).get("severity") in receivers):
        severity = rule["labels"]["severity"]
        assert route(f"alertname={rule['alert']}", f"severity={severity}", "job=heartbeatd") == receivers[severity]
    assert route("alertname=DiskFull", "severity=critical", "job=node") == "agent"
