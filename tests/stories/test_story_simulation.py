"""`simulate`: a month that the engine plays in advance is the month that a daemon has with the same answers."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from month_simulation import texts_of
from servers.messages import message, tool
from simulation import size
from world import AgentCall, MakeWorld, World, utc

from heartbeat.runners import HttpReply
from heartbeat.spec import estimate_tokens
from scheduler.config.settings.load import load_config
from scheduler.engine.delivery import Delivery
from scheduler.foresight.assumptions import parse_fault
from scheduler.foresight.recording import Recording
from scheduler.foresight.shares import Shares, parse_shares
from scheduler.foresight.simulation import (
    ANSWER_TIME,
    CHECK_TIME,
    FORM_TOKENS,
    OUTPUT_TOKENS,
    PROBLEM_KEYS,
    Assumptions,
    FigureRange,
    Simulation,
    Tally,
    draw,
    play_seed,
    simulate,
)
from scheduler.model.entry import Claim
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import FAILURES, Kind
from scheduler.store import entries, recorded_runs

START, BERLIN = "2026-10-20 00:00", ZoneInfo("Europe/Berlin")  # the clocks of Berlin go back on 25 October
CONFIG = """
timezone: Europe/Berlin
channels:
  hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}
  phone: {kind: webhook, url: "http://127.0.0.1:9/y", allow_private: true}
providers: {anthropic: {api_key: k}}
prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}
history: {runs: 100000}
defaults:
  runner: {kind: anthropic}
  model: claude-haiku-5-5
  heartbeat: {checklist: "- look\\n", deliver: hook, budget: unlimited}
agents:
  ops: {heartbeat: {interval: 2h, active_hours: "08:00-22:00"}}
  mail: {heartbeat: {precheck: look, deliver: phone, schedule: "30 */4 * * *"}}
  small: {heartbeat: {interval: 1h, active_hours: "08:00-20:00", budget: {usd_per_day: 0.078}}}
cron:
  backup: {schedule: "0 3 * * *", command: backup, deliver: hook, wake_heartbeat: ops, wake_on: failure}
"""


def simulated(
    folder: Path, yaml: str = CONFIG, *, days: int = 30, seeds: int = 1, start: str = START, **assumed: Any
) -> Simulation:
    """What a simulation says about a config. `faults` are texts."""
    folder.mkdir(exist_ok=True)
    config = folder / "simulated.yaml"
    config.write_text(yaml, "utf-8")
    settings, begin = load_config(config, {}).settings, utc(start)
    faults = tuple(parse_fault(text, begin, settings.zone) for text in assumed.pop("faults", ()))
    told = Assumptions(faults=faults, **assumed)
    return simulate(settings, told, begin, begin + timedelta(days=days), range(1, seeds + 1), folder / "files")


def only(figure: FigureRange | None) -> float:
    """A figure of a simulation with one seed."""
    assert figure is not None and figure.low == figure.high == figure.mean
    return figure.mean


class DaemonWithAnswers(World):
    """A daemon on a real database, whose agents, commands and prechecks do what the simulation draws for the same seed."""

    assumed: Assumptions
    model_calls = 0
    sent_by_hour: dict[str, Counter[int]]

    def _execute(self, claim: Claim) -> tuple[Any, timedelta]:
        self.drawn, self.was_called = draw(self.assumed, 1, claim), False
        result, _ = super()._execute(claim)
        return result, ANSWER_TIME if self.was_called else CHECK_TIME

    def note_message(self, outgoing: Delivery) -> DeliveryResult:
        self.sent_by_hour[outgoing.message.channel][self.clock.now.astimezone(BERLIN).hour] += 1
        return DeliveryResult("delivered")

    def look(self, call: AgentCall) -> str:
        return f"something new at {call.at:%Y-%m-%d %H:%M}" if self.drawn.has_work else "NO_WORK"

    def back_up(self, _: AgentCall) -> Any:
        self.was_called = True
        return {"fail": 1, "problem": "the simulated command has an output", "quiet": ""}[self.drawn.kind]

    def __hash__(self) -> int:  # as a client of HTTP
        return id(self)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
        """The model behind the Messages API."""
        self.was_called = True
        self.model_calls += 1
        kind, number = self.drawn.kind, self.drawn.chance.randrange(PROBLEM_KEYS) + 1 if self.drawn.kind != "fail" else 0
        if kind == "fail":
            error = {"type": "error", "error": {"type": "api_error", "message": "failed"}}
            return HttpReply(500, {"content-type": "application/json"}, json.dumps(error).encode())
        found = {"key": f"simulated-{number}", "text": f"simulated problem {number}", "severity": "warning", "resolved": False}
        answer = tool("report_findings", {"findings": [found] if kind == "problem" else []})
        texts = texts_of(json.loads(body))
        usage = {"input_tokens": estimate_tokens(*texts) + FORM_TOKENS, "output_tokens": OUTPUT_TOKENS[kind]}
        given = json.dumps(message(answer, stop_reason="tool_use", usage=usage))
        return HttpReply(200, {"content-type": "application/json"}, given.encode())


@pytest.mark.simulation
def test_a_month_of_a_daemon_with_the_same_answers_has_the_same_figures(tmp_path: Path) -> None:
    """Thirty days in `make simulate`, and otherwise ten."""
    days = size(10, 30)
    assumed = Assumptions(parse_shares("quiet:0.85,problem:0.1,fail:0.05"), work=0.4)
    found = simulated(tmp_path / "simulation", days=days, shares=assumed.shares, work=0.4)
    DaemonWithAnswers.assumed = assumed
    world: DaemonWithAnswers = DaemonWithAnswers(tmp_path, CONFIG, START)
    world.http, world.send = world, world.note_message
    world.sent_by_hour = defaultdict(Counter)
    world.prechecks["mail"], world.scripts["backup"] = world.look, world.back_up
    world.run(days=days)
    records = world.records()
    skips: Counter[str] = Counter()
    for row in records:
        if row["result"] == "skipped":
            skips[row["why"]] += row["planned_runs"]
    usd_on: dict[date, float] = defaultdict(float)
    for row in records:
        if row["cost_usd"]:
            usd_on[utc(row["finished_at"][:16].replace("T", " ")).astimezone(BERLIN).date()] += row["cost_usd"]
    assert only(found.runs) == sum(row["result"] != "skipped" and row["state"] == "closed" for row in records) > 10 * days
    assert {each.why: only(each.planned_runs) for each in found.skips} == skips
    assert {"active_hours", "budget", "precheck"} <= skips.keys()
    assert only(found.failed) == sum(row["result"] in FAILURES for row in records) > 0
    assert only(found.calls) == world.model_calls
    # The next prompt quotes the error of a failed call, which a real provider words differently.
    assert {each.day: only(each.usd) for each in found.days if only(each.usd)} == pytest.approx(dict(usd_on), rel=0.005)
    shown = {each.recipient: {hour: n for hour, n in enumerate(each.by_hour) if n} for each in found.recipients}
    assert shown == world.sent_by_hour
    assert {"hook", "phone"} <= shown.keys()
    world.store.close()


def test_an_agent_with_a_small_budget_is_named_with_the_days_on_which_it_ends_early(tmp_path: Path) -> None:
    found = simulated(tmp_path, days=3)
    assert [(each.name, each.earliest[:2] < "20") for each in found.early_budget_ends] == [("small", True)]
    assert only(found.early_budget_ends[0].days) == 3


def test_an_account_without_room_is_no_budget_that_ends_early(tmp_path: Path) -> None:
    runner = "runner: {kind: command, argv: [claude], account: {name: team, max_runs: 3 per 5h}}"
    yaml = f'agents: {{ops: {{{runner}, heartbeat: {{interval: 30m, checklist: "- look\\n", deliver: log}}}}}}\n'
    found = simulated(tmp_path, yaml, days=1)
    assert [(each.why, only(each.planned_runs) > 30) for each in found.skips] == [("budget", True)]
    assert found.early_budget_ends == []


def test_a_budget_that_ends_at_two_times_of_day_is_named_with_the_earlier_one(tmp_path: Path) -> None:
    """New York's clocks go forward at 02:00 on the second day, so that its tenth run is an hour later. The config is in Berlin."""
    yaml = """
timezone: Europe/Berlin
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat:
      {interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log, budget: {runs_per_day: 10}, timezone: America/New_York}
"""
    found = simulated(tmp_path, yaml, days=2, start="2026-03-07 05:00")
    assert [(only(each.days), each.earliest) for each in found.early_budget_ends] == [(2, "10:00")]
    assert {each.usd for each in (found, *found.days, *found.entries)} == {None}  # no price is known


def test_only_the_agents_that_are_shown_are_counted(tmp_path: Path) -> None:
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: %s, stagger: 0s, checklist: "- look\\n", deliver: log}}'
    (config := tmp_path / "simulated.yaml").write_text(
        f"agents: {{ops: {beat % '1h'}, web: {beat % '10m'}}}\ncron: {{ops: {{every: 5m, command: x, deliver: log}}}}\n", "utf-8"
    )
    settings, begin = load_config(config, {}).settings, utc(START)
    end, told = begin + timedelta(days=1), Assumptions(Shares(quiet=0, problem=1, fail=0))
    found = simulate(settings, told, begin, end, (1,), tmp_path / "files", shown=("ops",))
    (entry,) = found.entries
    assert (entry.name, only(entry.calls) < 30) == ("ops", True)
    assert (found.runs, found.calls, found.messages) == (entry.runs, entry.calls, entry.messages)
    assert sum(only(each.calls) for each in found.days) == only(entry.calls)


def test_each_kind_of_answer_has_its_share() -> None:
    shares = parse_shares("quiet:0.5,problem:0.3,fail:0.2")
    assert Counter(shares.choose(tenth / 10) for tenth in range(10)) == {"quiet": 5, "problem": 3, "fail": 2}


def test_the_agent_that_is_not_looked_after_for_longest_is_named_with_the_reason(tmp_path: Path) -> None:
    found = simulated(tmp_path, CONFIG.replace("  backup:", "  ops:"), days=3, shares=parse_shares("quiet:1"))
    longest = {each.name: (each.because, (each.until - each.since) > timedelta(hours=9)) for each in found.longest_silences}
    assert longest == {"ops": ("active_hours", True), "small": ("active_hours", True), "mail": (None, False)}


def test_other_seeds_give_other_answers_and_the_same_seeds_the_same_ones(tmp_path: Path) -> None:
    shares = parse_shares("quiet:0.6,problem:0.4")
    found = simulated(tmp_path / "a", days=2, seeds=3, shares=shares, work=0.95)
    assert found.messages.low < found.messages.high
    assert [each.planned_runs.low for each in found.skips if each.why == "precheck"] == [0]  # with one of the seeds
    assert simulated(tmp_path / "b", days=2, seeds=3, shares=shares, work=0.95) == found
    alone = simulated(tmp_path / "c", days=2, shares=shares, work=0.95)
    earliest = [each.early_budget_ends[0].earliest for each in (found, alone)]
    silences = [[each.until - each.since for each in figures.longest_silences] for figures in (found, alone)]
    assert (earliest[0] < earliest[1], silences[0] > silences[1]) == (True, True)  # those of the most extreme seed


def test_a_precheck_that_finds_nothing_saves_the_calls(tmp_path: Path) -> None:
    calls = {
        work: next(only(each.calls) for each in simulated(tmp_path / str(work), days=2, work=work, shares=parse_shares("quiet:1")).entries if each.name == "mail")
        for work in (0.0, 1.0)
    }  # fmt: skip
    assert calls[0.0] == 0 < 12 <= calls[1.0]


def test_while_a_provider_is_down_runs_fail_and_are_reported(tmp_path: Path) -> None:
    quiet = parse_shares("quiet:1")
    found = simulated(tmp_path, days=4, shares=quiet, faults=["provider-down:8h@tue 09:00"])
    assert only(found.messages) > only(simulated(tmp_path / "b", days=4, shares=quiet).messages)
    assert "every provider is down for 8h from Tue 2026-10-20 09:00" in found.assumed


def test_while_a_provider_is_down_its_fallback_answers(tmp_path: Path) -> None:
    config = (
        CONFIG.replace("providers: {", "providers: {local: {kind: openai, base_url: 'http://127.0.0.1:9/v1'}, ")
        .replace("defaults:\n", "defaults:\n  fallbacks: [{provider: local, model: qwen3}]\n")
        .replace("prices: {", "prices: {qwen3: {input: 0, output: 0}, ")
    )
    faults = ["provider-down=anthropic:8h@tue 09:00"]
    found, without = (
        simulated(tmp_path / name, yaml, days=4, shares=parse_shares("quiet:1"), faults=faults)
        for name, yaml in (("with", config), ("without", CONFIG))
    )
    assert (only(found.failed), only(without.failed) > 3) == (0, True)


def test_a_fallback_fails_as_often_as_the_agent_and_not_whenever_the_agent_does(tmp_path: Path) -> None:
    yaml = """
runners: {spare: {kind: command, argv: [spare]}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    fallbacks: [{runner: spare}]
    heartbeat: {checklist: "- look\\n", deliver: log, interval: 30m, stagger: 0s, retries: 0}
"""
    found = simulated(tmp_path, yaml, days=4, shares=parse_shares("quiet:0.5,fail:0.5"))
    assert 0.15 < only(found.failed) / only(found.runs) < 0.35


def test_while_the_daemon_is_down_slots_are_missed(tmp_path: Path) -> None:
    found = simulated(tmp_path, days=4, faults=["daemon-down:1d@2026-10-21T12:00"])
    reasons = {each.why: only(each.planned_runs) for each in found.skips}
    assert reasons["missed"] == 7 + 6 + 12 + 1  # of ops, mail, small and backup


def test_a_second_time_without_a_daemon_may_begin_in_the_first_or_before_the_simulation(tmp_path: Path) -> None:
    faults = ["daemon-down:18h@2026-10-21T12:00", "daemon-down:20h@2026-10-21T16:00", "daemon-down:12h@2026-10-19T20:00"]
    faults.append("daemon-down:1h@2026-10-21T20:00")  # and end in it
    found = simulated(tmp_path, days=4, faults=faults)
    reasons = {each.why: only(each.planned_runs) for each in found.skips}
    assert reasons["missed"] == 7 + 6 + 12 + 1 + 2  # those of one day, and the first two of mail and backup


def test_a_time_without_a_daemon_may_end_after_the_simulation(tmp_path: Path) -> None:
    found = simulated(tmp_path, days=1, faults=["daemon-down:9d@2026-10-20T12:00"])
    assert (found.until, found.longest_silences[0].until) == (utc("2026-10-21 00:00"), utc("2026-10-21 00:00"))


def test_a_fault_begins_at_its_time_and_concerns_only_what_it_names() -> None:
    begin, end = utc("2026-03-02 10:00"), utc("2026-03-02 12:00")
    fault = parse_fault("channel-down=phone:2h@10:00", begin, ZoneInfo("UTC"))
    moment = timedelta(microseconds=1)
    assert [fault.holds("channel", "phone", at) for at in (begin - moment, begin, end - moment, end)] == [
        False,
        True,
        True,
        False,
    ]
    assert not fault.holds("channel", "mail", begin)
    assert not fault.holds("provider", "phone", begin)


def test_the_share_that_is_played_grows_over_all_seeds(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, "utf-8")
    settings, begin, shares = load_config(tmp_path / "config.yaml", {}).settings, utc(START), list[float]()
    simulate(settings, Assumptions(), begin, begin + timedelta(days=1), [1, 2], tmp_path / "files", note=shares.append)
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.2 < 0.8 < shares[-1] <= 1


def test_it_is_said_whose_costs_are_not_known(tmp_path: Path) -> None:
    config = CONFIG.replace("agents:", "agents:\n  own: {runner: {kind: command, argv: [x]}, heartbeat: {interval: 1h}}").replace(
        "  mail: {", "  mail: {model: unlisted, "
    )
    assert (
        "not in the costs, because no price is known: unlisted, programs" in simulated(tmp_path / "some", config, days=1).assumed
    )
    assert not any("costs" in line for line in simulated(tmp_path / "none", days=1).assumed)


@pytest.mark.parametrize("entry", ["command: backup", "interval: 2h"])
def test_it_is_said_that_the_work_of_an_agent_or_a_job_is_taken_as_done(tmp_path: Path, entry: str) -> None:
    says = "postchecks find that the work was done"
    checked = CONFIG.replace(entry, f"{entry}, postcheck: {{file: backup.tar}}")
    found = [simulated(tmp_path / str(len(yaml)), yaml, days=1, shares=parse_shares("quiet:1")) for yaml in (CONFIG, checked)]
    assert [(says in each.assumed, only(each.failed)) for each in found] == [(False, 0), (True, 0)]


def test_messages_to_a_channel_that_is_down_come_later(tmp_path: Path) -> None:
    problems = parse_shares("problem:1")
    found = simulated(tmp_path, days=1, shares=problems, faults=["provider-down:1m@01:00", "channel-down=phone:12h@02:00"])
    phone = next(each for each in found.recipients if each.recipient == "phone")
    assert sum(phone.by_hour[2:12]) == 0 < sum(phone.by_hour[14:])


def test_days_like_recorded_ones_have_their_messages_at_the_same_hours(tmp_path: Path) -> None:
    config = """
timezone: Europe/Berlin
channels: {hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {checklist: "- look\\n", deliver: hook, interval: 1h, stagger: 0s}
"""
    (tmp_path / "past").mkdir()
    world = World(tmp_path / "past", config, "2026-03-02 08:00")
    berlin_noon = 11
    world.scripts["ops"] = lambda call: f"[disk] full on {call.at:%A}" if call.at.hour in (berlin_noon, 12) else "HEARTBEAT_OK"
    world.run(days=4)
    recording = Recording(recorded_runs.read_runs(world.store.connection, utc("2026-03-01 00:00")), BERLIN)
    world.store.close()
    noons = [utc("2026-03-10 11:00") + timedelta(days=number) for number in range(30)]
    repeated = [recording.like_day((Kind.HEARTBEAT, "ops"), noon, 1) for noon in noons]
    assert {each.slot.day for each in repeated if each} == {3, 4, 5}  # the other days are not whole
    found = simulated(tmp_path, config, days=5, start="2026-03-10 00:00", recording=recording, shares=parse_shares("quiet:1"))
    assert found.recipients[0].by_hour[12] == 5  # it comes up at noon on each day
    assert sum(found.recipients[0].by_hour[:5]) == 0


@pytest.mark.parametrize(("interval", "first_start"), [("7h", "12:07"), ("5h", "10:07")])
def test_runs_begin_when_those_of_the_daemon_would_after_a_reload(
    tmp_path: Path, make_world: MakeWorld, interval: str, first_start: str
) -> None:
    """The daemon has last run the agent at 05:07. A changed interval counts from there."""
    config = """
agents:
  ops: {runner: {kind: command, argv: [agent]}, heartbeat: {checklist: "- look\\n", interval: 7h, stagger: 11m, deliver: log}}
"""
    world = make_world(config, start="2026-03-02 08:00")
    world.run(hours=22)
    assert [f"{call.at:%H:%M}" for call in world.calls] == ["08:07", "15:07", "22:07", "05:07"]
    world.write_config(config.replace("7h", interval))
    settings, now = load_config(world.config, {}).settings, world.clock.now
    known = entries.all_entries(world.store.connection)
    tally = Tally(settings, now)
    play_seed(settings, Assumptions(), now, now + timedelta(hours=8), 1, tmp_path / "files", tally, known)
    assert f"{min(tally.starts):%H:%M}" == first_start


def test_without_time_for_all_seeds_the_first_is_played_as_far_as_it_comes(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, "utf-8")
    settings, begin = load_config(tmp_path / "config.yaml", {}).settings, utc(START)
    after = lambda steps: partial(next, iter([*[False] * (steps - 1), *[True] * 99]))  # noqa: E731
    short, one, all_ = (
        simulate(
            settings, Assumptions(), begin, begin + timedelta(hours=10), [1, 2, 3], tmp_path / str(steps), is_over=after(steps)
        )
        for steps in (4, 15, 50)
    )
    assert (short.until - begin, short.seeds) == (timedelta(hours=4), [1])
    assert (one.until - begin, one.seeds) == (timedelta(hours=10), [1])
    assert (all_.until - begin, all_.seeds) == (timedelta(hours=10), [1, 2, 3])
    assert one.runs.mean == one.runs.high > short.runs.mean > 0


def test_nothing_is_written_beside_the_config(tmp_path: Path) -> None:
    config = CONFIG.replace('checklist: "- look\\n"', "checklist: HEARTBEAT.md, on_missing: create")
    found = simulated(tmp_path, config, days=1)
    assert any(each.why == "checklist_missing" for each in found.skips)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files", "simulated.yaml"]
