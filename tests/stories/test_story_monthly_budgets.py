"""A budget of a month: it is the sum of the local days, is never exceeded, and says until when it holds the runs."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from test_story_explain import explained_entry
from world import AgentCall, MakeWorld, World, utc

from scheduler.cli.main import main
from scheduler.cli.report_text import format_report
from scheduler.insight import explanation
from scheduler.insight.report_data import build_report
from scheduler.insight.status_data import read_status
from scheduler.telemetry import gauges
from scheduler.telemetry.catalog import Reading


def agents(budget: str, names: str = "ops", shared: str = "", **heartbeat: str) -> str:
    """Programs that cost 0.03 USD a run, twice a day."""
    words = {"interval": "12h", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log", "budget": budget} | heartbeat
    beat = ", ".join(f"{key}: {value}" for key, value in words.items())
    each = "".join(f"  {name}: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{{beat}}}}}\n" for name in names.split())
    return f"{shared}\ndefaults: {{heartbeat: {{problems: {{after: 1}}}}}}\nagents:\n{each}"


def cost_report(call: AgentCall) -> str:
    return json.dumps({"result": "HEARTBEAT_OK", "total_cost_usd": 0.03})


SCRIPTS: Any = dict.fromkeys(("ops", "mail"), cost_report)


def runs_by_month(world: World, name: str = "ops") -> dict[str, int]:
    """The calls of an agent by the month in UTC."""
    months = [f"{call.at:%m}" for call in world.calls if call.name == name]
    return {month: months.count(month) for month in dict.fromkeys(months)}


def limit_of(world: World, key: str = "usd_per_month") -> dict[str, float] | None:
    entry = read_status(world.store.connection, world.clock.now).as_data()["entries"][0]["budget"]
    return entry and entry[key]


def test_a_month_ends_by_the_clock_of_the_agent_and_is_reported_once(make_world: MakeWorld) -> None:
    """Berlin sets its clocks forward on 29 March 2026, so April begins there at 22:00 UTC."""
    yaml = agents("{usd_per_month: 0.30, usd_per_try: 0.03}", timezone="Europe/Berlin")
    world = make_world(yaml, start="2026-03-24 11:30", scripts=SCRIPTS)
    world.run(days=7, hours=10)
    reason = "usd_per_month: 0.3 of 0.3 USD are used, and one try may cost 0.03; until 2026-04-01 00:00 Europe/Berlin"
    assert runs_by_month(world) == {"03": 10}
    skipped = [row["error"] for row in world.records() if row["why"] == "budget"]
    assert len(skipped) > 1
    assert set(skipped) == {reason}
    (message,) = [text for _, _, text in world.delivered if "budget" in text]
    assert f"budget: the budget is used up: {reason}" in message
    told = explanation.explain_now(explained_entry(world)).as_data()["now"]
    assert (told["why"], told["detail"]) == ("budget", reason)
    assert limit_of(world) == {"used": pytest.approx(0.3), "of": 0.3}  # though nothing was counted today
    world.wake("ops", "look")
    world.run(hours=1)
    assert world.calls[-1].at == utc("2026-03-31 22:00")  # midnight in Berlin
    world.run(hours=13)
    assert runs_by_month(world) == {"03": 12, "04": 1}
    assert limit_of(world) == {"used": pytest.approx(0.09), "of": 0.3}


@pytest.mark.parametrize(
    ("own", "shared", "first"),
    [
        ("0.30", "0.33", "limits.budget.usd_per_month: 0.33 of 0.33 USD are used"),
        ("0.09", "0.33", "usd_per_month: 0.09 of 0.09 USD are used"),
    ],
)
def test_of_two_monthly_budgets_the_lower_one_holds_the_run(make_world: MakeWorld, own: str, shared: str, first: str) -> None:
    limits = f"limits: {{budget: {{usd_per_month: {shared}}}}}"
    yaml = agents(f"{{usd_per_month: {own}, usd_per_try: 0.03}}", "ops mail", limits)
    world = make_world(yaml, start="2026-03-02 08:00", scripts=SCRIPTS)
    world.run(days=8)
    spent = {name: 0.03 * runs_by_month(world, name)["03"] for name in ("ops", "mail")}
    assert max(spent.values()) <= float(own) + 1e-9
    assert sum(spent.values()) <= float(shared) + 1e-9
    error = world.records("ops")[-1]["error"]
    assert error.startswith(first)
    if "limits" in first:
        assert error.endswith(("; used by agent/mail 0.18, agent/ops 0.15", "; used by agent/ops 0.18, agent/mail 0.15"))


def test_a_day_and_a_month_limit_the_same_agent(make_world: MakeWorld) -> None:
    yaml = agents("{usd_per_day: 0.06, usd_per_month: 0.15, usd_per_try: 0.03}", interval="6h")
    world = make_world(yaml, start="2026-03-30 00:00", scripts=SCRIPTS)
    world.run(days=3, hours=1)
    ends = [row["error"].split(";")[1] if row["error"] else "ok" for row in world.records()]
    day, month = " until 2026-03-31 00:00 UTC", " until 2026-04-01 00:00 UTC"
    assert ends[:4] == ["ok", "ok", day, day]
    assert ends[4:8] == ["ok", "ok", month, month]
    assert runs_by_month(world) == {"03": 4, "04": 3}


def test_a_day_and_a_month_that_are_used_up_together_end_with_the_month(make_world: MakeWorld) -> None:
    yaml = agents("{usd_per_day: 0.06, usd_per_month: 0.06, usd_per_try: 0.03}", interval="6h")
    world = make_world(yaml, start="2026-03-02 00:00", scripts=SCRIPTS)
    world.run(hours=13)
    short = "usd_per_{}: 0.06 of 0.06 USD are used, and one try may cost 0.03"
    assert world.records()[-1]["error"] == f"{short.format('day')}, {short.format('month')}; until 2026-04-01 00:00 UTC"


def test_the_largest_shares_of_a_month_are_those_of_this_month(make_world: MakeWorld) -> None:
    """An agent whose runs cost nothing has no share."""
    yaml = agents("{usd_per_try: 0.03}", "ops free", "limits: {budget: {usd_per_month: 0.06}}")
    free: Any = lambda call: json.dumps({"result": "HEARTBEAT_OK", "total_cost_usd": 0})  # noqa: E731
    world = make_world(yaml, start="2026-03-31 00:00", scripts=SCRIPTS | {"free": free})
    world.run(days=2, hours=1)
    assert runs_by_month(world) == {"03": 2, "04": 2}
    assert "free" in {call.name for call in world.calls}
    assert world.records("ops")[-1]["error"].endswith("; used by agent/ops 0.06")


def test_days_before_a_monthly_budget_count_if_they_had_a_budget(make_world: MakeWorld) -> None:
    world = make_world(agents("{usd_per_day: 1, usd_per_try: 0.03}"), start="2026-03-02 08:00", scripts=SCRIPTS)
    world.run(days=2)
    assert len(world.calls) == 5
    limited = agents("{usd_per_day: 1, usd_per_month: 0.18, usd_per_try: 0.03}")
    world.reload(limited)
    world.run(days=3)
    assert len(world.calls) == 6
    world.kill()
    world.write_config(limited)
    world.boot()
    world.run(days=1)
    assert len(world.calls) == 6
    world.reload(limited.replace("0.18", "0.21"))
    world.run(days=1)
    assert len(world.calls) == 7


def test_neither_a_zone_nor_a_clock_opens_a_second_month(make_world: MakeWorld) -> None:
    def yaml(zone: str) -> str:
        return agents("{usd_per_month: 0.12, usd_per_try: 0.03}", interval="6h", timezone=zone)

    world = make_world(yaml("UTC"), start="2026-03-31 00:00", scripts=SCRIPTS)
    world.run(hours=10)
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago", "Pacific/Kiritimati"):
        world.reload(yaml(zone))
        world.run(hours=2)
    assert limit_of(world) is not None
    assert len(world.calls) <= 4
    world.reload(yaml("UTC"))
    world.run(days=1)
    april = len(world.calls)
    world.clock.now -= timedelta(days=2)
    world.run(hours=12)
    assert len(world.calls) == april  # March is used up already
    assert runs_by_month(world)["03"] <= 4


def test_a_wake_that_a_month_holds_expires_and_is_shown(make_world: MakeWorld) -> None:
    world = make_world(
        agents("{usd_per_month: 0.03, usd_per_try: 0.03}", interval="none"), start="2026-03-02 08:00", scripts=SCRIPTS
    )
    world.wake("ops", "one")
    world.run(hours=1)
    world.wake("ops", "two")
    world.run(days=2)
    assert [line[12:] for line in world.history()][:2] == ["api ok heartbeat_ok", "api skipped budget"]
    assert len(world.calls) == 1


def test_the_share_of_the_month_and_its_exhaustion_are_gauges(make_world: MakeWorld) -> None:
    limits = "limits: {budget: {usd_per_month: 1}}"
    world = make_world(
        agents("{usd_per_month: 0.06, usd_per_try: 0.03}", shared=limits), start="2026-03-02 08:00", scripts=SCRIPTS
    )
    skipped = {}
    world.run(days=1, hours=1)
    skipped[("heartbeat", "ops")] = world.clock.now
    world.run(days=2)
    reading = Reading()
    gauges.read_budgets(
        reading,
        world.store.connection,
        world.engine.plan.settings,
        [("heartbeat", "ops")],
        skipped,
        gauges.DayPlans(),
        world.clock.now,
    )
    found = {
        name.removeprefix("heartbeatd_budget_"): [
            float(line.split()[-1]) for line in reading[name].exposition_lines() if line[0] != "#"
        ]
        for name in ("heartbeatd_budget_used_ratio", "heartbeatd_budget_exhausted", "heartbeatd_budget_day_elapsed_ratio")
    }
    assert found["used_ratio"] == [pytest.approx(0.06), pytest.approx(1)]
    assert found["exhausted"] == [0, 1]
    assert found["day_elapsed_ratio"] == [pytest.approx(7 / 60)] * 2


def test_the_month_is_shown_before_the_first_run_of_a_day(make_world: MakeWorld) -> None:
    yaml = agents("{usd_per_month: 0.30, usd_per_try: 0.03}", active_hours='"09:00-10:00"', interval="30m")
    world = make_world(yaml, start="2026-03-02 09:00", scripts=SCRIPTS)
    world.run_until("2026-03-03 08:00")
    assert limit_of(world) == {"used": pytest.approx(0.06), "of": 0.3}
    assert [each.name for each in read_status(world.store.connection, world.clock.now).budgets] == ["ops"]


def test_in_a_zone_to_the_west_the_old_month_is_shown_until_it_ends_there(make_world: MakeWorld) -> None:
    yaml = agents("{usd_per_month: 0.30, usd_per_try: 0.03}", timezone="America/New_York")
    world = make_world(yaml, start="2026-03-31 06:00", scripts=SCRIPTS)
    for time in ("04-01 02:00", "04-01 03:59"):
        world.run_until(f"2026-{time}")
        assert limit_of(world) == {"used": pytest.approx(0.06), "of": 0.3}, time
    world.run_until("2026-04-01 06:01")
    assert limit_of(world) == {"used": pytest.approx(0.03), "of": 0.3}


def test_status_and_plan_show_the_month(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    limits = "limits: {budget: {usd_per_day: 0.50, usd_per_month: 2}}"
    yaml = agents("{usd_per_month: 0.30, usd_per_try: 0.03}", shared=limits)
    world = make_world(yaml, start="2026-03-02 08:00", scripts=SCRIPTS)
    world.run(days=2)
    budgets = read_status(world.store.connection, world.clock.now).as_data()["budgets"]
    assert [(each["name"], each["limits"]["usd_per_month"]) for each in budgets] == [
        (None, {"used": pytest.approx(0.15), "of": 2.0}), ("ops", {"used": pytest.approx(0.15), "of": 0.3})
    ]  # fmt: skip
    assert {each["month_ends_at"] for each in budgets} == {"2026-04-01T00:00:00Z"}
    report = build_report(world.store.connection, world.clock.now - timedelta(days=7), world.clock.now, running=True)
    assert "Used this month: agent/ops $0.15 of $0.30, all $0.15 of $2.00." in format_report(report, "entry").replace("\n", " ")
    of_agent = build_report(world.store.connection, report.since, report.until, running=True, agents=["mail"])
    assert of_agent.monthly == []
    world.kill()
    assert main(["plan", "--worst", "-c", str(world.folder / "config.yaml")]) == 0
    assert "a day, 0.3000 USD a month" in capsys.readouterr().out
    assert main(["status", "-c", str(world.folder / "config.yaml")]) == 0  # of the present month
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\$0\.50 today, resets \S+ \S+; \S+ of \$2\.00 this month, resets \d{4}-\d\d-01 ", said)
