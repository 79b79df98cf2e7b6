"""Wakes end to end: how they are stored, merged, rate-limited and put into the prompt of the next run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta

import pytest
from test_story_slots import agent
from world import Delayed, MakeWorld, World, utc

from heartbeat.runners import ProcessResult
from heartbeatd.verbs import Cancel, HoldLock, Wake
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.tick import MAX_REQUESTS_PER_TICK
from scheduler.engine.tick_items import Refused
from scheduler.insight.wake_waits import WakeWait, explain_waiting, wait_of_wake
from scheduler.model.events import WakeMoved
from scheduler.model.outcome import Kind, Trigger
from scheduler.store import run_history, wakes

LAZY = agent(interval="1d")
BACKUP = 'cron:\n  backup: {schedule: "0 3 * * *", command: ./backup.sh, wake_heartbeat: ops}\n'


def wake_results(world: World) -> list[str]:
    return [str(event.result) for event in world.events_of(WakeMoved)]


def test_cron_wakes_a_heartbeat_and_the_prompt_has_the_reason(make_world: MakeWorld) -> None:
    world = make_world(
        agent(interval="7h") + 'cron:\n  backup: {schedule: "0 3 * * *", command: ./backup.sh, wake_heartbeat: ops}\n'
    )
    world.scripts["backup"] = lambda call: "copied 12 files"
    world.run_until("2026-03-03 03:01")
    woken = world.calls[-1]
    assert world.history("ops")[-1] == "03-03 03:00 cron ok heartbeat_ok"
    assert "By cron backup, result ok" in woken.stdin
    assert "copied 12 files" in woken.stdin


def test_a_job_failure_at_night_is_in_the_prompt_of_the_first_morning_run(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"08:00-22:00"') + BACKUP, start="2026-03-02 12:00")
    world.scripts["backup"] = lambda call: 1
    world.run_until("2026-03-03 08:01")
    assert world.history("ops")[-3:] == [
        "03-03 03:00 cron skipped active_hours",
        "03-03 04:00 interval skipped active_hours x4",
        "03-03 08:00 interval ok heartbeat_ok",
    ]
    assert "By cron backup, result failed" in world.calls[-1].stdin


def test_a_wake_outside_active_hours_is_recorded_once(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"08:00-22:00"'), start="2026-03-02 23:00")
    world.wake("ops", "look")
    world.run(hours=8)
    assert [line for line in world.history() if "api" in line] == ["03-02 23:00 api skipped active_hours"]


def test_a_wake_that_is_refused_for_another_reason_than_before_is_recorded_again(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", active_hours='"08:00-22:00"'), start="2026-03-02 23:00")
    for _ in range(2):
        world.wake("ops", "look")
        world.run(seconds=5)
    world.pause((Kind.HEARTBEAT, "ops"))
    for _ in range(2):
        world.wake("ops", "look")
        world.run(seconds=5)
    assert [line.partition(" api ")[2] for line in world.history()] == ["skipped active_hours", "skipped paused"]


@pytest.mark.parametrize(
    ("wake_on", "code", "woken"), [("failure", 0, 0), ("failure", 1, 1), ("success", 0, 1), ("success", 1, 0)]
)
def test_wake_on_selects_the_outcomes_that_wake(make_world: MakeWorld, wake_on: str, code: int, woken: int) -> None:
    world = make_world(LAZY + BACKUP.replace("ops}", f"ops, wake_on: {wake_on}}}"))
    world.scripts["backup"] = lambda call: code or "done"
    world.run_until("2026-03-03 03:01")
    assert len([line for line in world.history("ops") if "cron" in line]) == woken


def test_a_wake_during_a_run_starts_another_run_after_the_gap(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(seconds=20))
    world.run(seconds=5)
    world.wake("ops", "look")
    world.run(minutes=2)
    assert [(call.at.minute, call.at.second) for call in world.calls] == [(0, 0), (0, 50)]


@pytest.mark.parametrize(("second", "starts"), [(0, ["08:00:00", "08:29:00", "08:30:00"]), (1, ["08:00:00", "08:29:01"])])
def test_a_woken_run_replaces_the_slot_that_comes_within_the_gap(make_world: MakeWorld, second: int, starts: list[str]) -> None:
    world = make_world("limits: {wake_gap: 1m}\n" + agent(interval="30m"))
    world.run(minutes=29, seconds=second)
    world.wake("ops", "look")
    world.run(minutes=10)
    assert [f"{call.at:%H:%M:%S}" for call in world.calls] == starts


def test_a_wake_during_a_woken_run_starts_another_run(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(seconds=5)
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(seconds=20))
    world.wake("ops", "the disk is full")
    world.run(seconds=10)
    begun = len(world.calls)
    assert world.runs.inflight()
    world.wake("ops", "the mail stands still")
    world.run(minutes=2)
    assert [line.split()[2] for line in world.history("ops")] == ["interval", "api", "api"]
    assert (begun, len(world.calls)) == (2, 3)
    assert "the disk is full" in world.calls[1].stdin
    assert "the mail stands still" in world.calls[2].stdin


def test_a_wake_after_a_woken_run_waits_for_the_gap_from_its_end(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(seconds=5)
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(seconds=20))
    world.wake("ops", "the disk is full")
    world.run(seconds=25)
    world.wake("ops", "the mail stands still")
    world.run(minutes=2)
    assert [(call.at.minute, call.at.second) for call in world.calls] == [(0, 0), (0, 5), (0, 55)]


def test_a_long_text_of_a_wake_is_cut_and_says_so(make_world: MakeWorld) -> None:
    """Also if it replaces the text of a wake that waits."""
    world = make_world(LAZY)
    world.run(seconds=5)
    for text in ("look", "é" * 3000):
        world.inbox.submit(_wake(text))
    world.run(minutes=2)
    assert "é(cut: 6000 bytes were sent)" in world.calls[-1].stdin.replace("\n", "")
    assert world.calls[-1].stdin.count("é") < 2048


@pytest.mark.long_on_server("20,000 statements")
def test_two_thousand_wakes_start_one_run(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(minutes=5)
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(seconds=10))
    answers = [world.inbox.submit(_wake(f"message {number}")) for number in range(2_000)]
    world.engine.tick(world.clock.read())
    assert sum(answer.done() for answer in answers) == MAX_REQUESTS_PER_TICK
    world.run(minutes=10)
    assert all(answer.done() for answer in answers)
    assert world.history()[1:] == ["03-02 08:05 api ok heartbeat_ok"]
    assert "2000 times, the last one" in world.calls[-1].stdin
    assert "message 1999" in world.calls[-1].stdin


def _wake(text: str, sender: str = "bot") -> VerbRequest[Wake]:
    return VerbRequest(Wake(text=text), (Kind.HEARTBEAT, "ops"), Sender(sender, source="api"))


def test_wakes_of_sixty_senders_overnight_are_all_in_the_first_morning_prompt(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"08:00-22:00"'), start="2026-03-02 22:30")
    for number in range(60):
        world.wake("ops", f"message {number}.", sender=f"sender{number}")
        world.run(minutes=9)
    assert world.calls == []
    rows = world.store.connection.execute("select sender, text from wake where state = 'waiting' order by id").fetchall()
    assert [tuple(row) for row in rows] == [(f"sender{number}", f"message {number}.") for number in range(60)]
    world.run_until("2026-03-03 08:01")
    (call,) = world.calls
    assert f"{call.at:%H:%M}" == "08:00"
    for number in range(60):
        assert f"By api sender{number}:\n" in call.stdin
        assert f"\nmessage {number}.\n" in call.stdin
    assert wake_results(world).count("deferred") == 120  # each wake twice: when it was refused and when it was delivered


def test_long_wake_texts_are_in_the_prompt_in_full_while_they_fit_and_are_shortened_otherwise(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"09:00-22:00"'))
    texts = [f"begin{number} " + "x" * 3900 + f" end{number}" for number in range(60)]
    for number, text in enumerate(texts):
        world.wake("ops", text, sender=f"sender{number}")
    world.run(hours=2)
    prompt = world.calls[0].stdin
    whole = [number for number, text in enumerate(texts) if text in prompt]
    assert whole == list(range(len(whole)))
    assert 15 <= len(whole) <= 25
    lines = prompt.splitlines()
    for number in range(len(whole), 60):
        assert [line for line in lines if line.startswith(f"By api sender{number}: begin{number} xxx")]
    assert f"`heartbeatd show {world.records()[-2]['id']}` shows them in full" in prompt
    shown = run_history.get_run_with_wakes(world.store.connection, world.records()[-2]["id"])
    assert shown is not None
    assert [wake.text for wake in shown.wakes] == texts


def test_a_thousand_wakes_do_not_exceed_the_prompt_limit(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"09:00-22:00"', max_input_tokens="5k"))
    for number in range(1000):
        world.inbox.submit(_wake(f"message {number} " + "x" * 2000, sender=f"sender{number}"))
    world.run(hours=2)
    (call, *_) = world.calls
    assert "By api sender0" in call.stdin
    assert "more wakes that do not fit here" in call.stdin
    assert len(str(call.env["HEARTBEATD_META"]).encode()) < 131_000
    assert json.loads(str(call.env["HEARTBEATD_META"]))["wakes_left_out"] > 800
    assert wake_results(world).count("deferred") == 2000


def test_the_1001st_sender_is_refused_and_no_other_wake_is_lost(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"09:00-22:00"'))
    answers = [world.inbox.submit(_wake("look", sender=f"sender{number}")) for number in range(1002)]
    world.settle()
    assert [number for number, answer in enumerate(answers) if answer.exception(timeout=0)] == [1000, 1001]
    with pytest.raises(Refused, match="wakes wait for agent 'ops'") as refused:
        world.wake("ops", "look", sender="one more")
    assert refused.value.code == "too_many_wakes"
    assert wake_results(world)[-1] == "rejected"
    world.wake("ops", "look again", sender="sender7")  # merged with the waiting wake of this sender
    world.wake("ops", "a person", source=Trigger.MANUAL, sender="command")
    world.run(hours=2)
    assert "a person" in world.calls[0].stdin
    assert "By api sender7, 2 times" in world.calls[0].stdin
    world.wake("ops", "look", sender="one more")


def test_wake_texts_are_kept_as_long_as_their_run_record(make_world: MakeWorld) -> None:
    world = make_world("history: {runs: 50}\n" + agent(interval="1h"))
    world.run(minutes=1)
    world.wake("ops", "the disk is full")
    world.run(minutes=1)
    run = world.records()[-1]["id"]
    world.run(hours=40)  # longer than wake_keep
    shown = run_history.get_run_with_wakes(world.store.connection, run)
    assert shown is not None
    assert [(wake.sender, wake.text, wake.state) for wake in shown.wakes] == [("bot", "the disk is full", "ended")]
    world.run(hours=40)
    assert run_history.get_run_with_wakes(world.store.connection, run) is None
    assert world.store.connection.execute("select count(*) from wake").fetchone()[0] == 0


GROUPS = """
server: {tokens: {
  greedy: {value: "greedy-token-with-enough-bits-in-it", may: [wake]},
  modest: {value: "modest-token-with-enough-bits-in-it", may: [wake]}}}
"""


def test_one_token_cannot_crowd_out_other_tokens_or_people(make_world: MakeWorld) -> None:
    world = make_world(GROUPS + agent(interval="1h", active_hours='"09:00-22:00"'))
    assert _wakes_of_groups(world, "greedy", range(1010)) == ["kept"] * 1000 + ["too_many_wakes"] * 10
    assert _wakes_of_groups(world, "modest", range(11)) == ["kept"] * 10 + ["too_many_wakes"]
    assert _wakes_of_groups(world, "greedy", [2000]) == ["too_many_wakes"]
    world.wake("ops", "a person asks", source=Trigger.MANUAL, sender="command")
    world.run(hours=2)
    prompt = world.calls[0].stdin
    assert prompt.index("a person asks") < prompt.index("group 0 of greedy") < prompt.index("group 1 of greedy")
    for number in range(10):  # in full, between the wakes of the other token
        assert f"\ngroup {number} of modest {'x' * 1000}" in prompt


def test_wakes_of_the_same_group_from_two_tokens_are_kept_apart(make_world: MakeWorld) -> None:
    world = make_world(GROUPS + agent(interval="1h", active_hours='"09:00-22:00"'))
    for token in ("greedy", "modest"):
        _wakes_of_groups(world, token, [1])
    world.run(hours=2)
    assert "group 1 of greedy" in world.calls[0].stdin
    assert "group 1 of modest" in world.calls[0].stdin


def _wakes_of_groups(world: World, token: str, numbers: Iterable[int]) -> list[str]:
    """Send a wake for each group at once, and return whether it is kept, or the code of the refusal."""
    futures = [
        world.inbox.submit(
            VerbRequest(
                Wake(text=f"group {number} of {token} {'x' * 1000}"),
                (Kind.HEARTBEAT, "ops"),
                Sender(f"am {number}", source="webhook", token=token),
            )
        )
        for number in numbers
    ]
    world.settle()
    refusals = [future.exception(timeout=0) for future in futures]
    return [refused.code if isinstance(refused, Refused) else "kept" for refused in refusals]


def test_a_wake_whose_run_failed_is_retried_after_1_5_and_30_minutes_and_then_in_the_next_slot(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", retries="0"))
    world.run(minutes=1)
    world.scripts["ops"] = lambda call: 1
    world.wake("ops", "look at the backup")
    world.run(days=1)
    assert world.history()[1:] == [
        *(f"03-02 {slot} api failed exit" for slot in ("08:01", "08:02", "08:07", "08:37")),
        "03-03 08:00 interval failed exit",
    ]
    assert all("look at the backup" in call.stdin for call in world.calls[1:])


@pytest.mark.parametrize(
    ("interval", "expected"),
    [("6m", ["08:01 api", "08:02 api", "08:06 interval"]), ("40m", ["08:01 api", "08:02 api", "08:07 api", "08:37 api"])],
)
def test_a_wake_whose_run_failed_waits_for_the_next_slot_if_that_comes_first(
    make_world: MakeWorld, interval: str, expected: list[str]
) -> None:
    world = make_world("limits: {min_interval: 1m}\n" + agent(interval=interval, retries="0"))
    world.run(minutes=1)
    world.scripts["ops"] = lambda call: "HEARTBEAT_OK" if len(world.calls) == 1 + len(expected) else 1
    world.wake("ops", "look")
    world.run(minutes=38)
    assert [" ".join(line.split()[1:3]) for line in world.history()[1 : 1 + len(expected)]] == expected
    assert "look" in world.calls[len(expected)].stdin


def test_a_wake_is_retried_even_if_its_failed_run_superseded_the_slot(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", retries="0"))
    world.run(minutes=1)
    world.scripts["ops"] = lambda call: 1 if len(world.calls) == 2 else "HEARTBEAT_OK"
    world.run_until("2026-03-03 07:59:50")
    world.wake("ops", "look")
    world.run(minutes=3)
    assert world.history()[1:] == [
        "03-03 07:59 api failed exit",
        "03-03 08:00 interval skipped superseded",
        "03-03 08:00 api ok heartbeat_ok",
    ]


@pytest.mark.parametrize("interval", ["none", "1d"])
@pytest.mark.parametrize(
    ("zone", "starts"),
    [
        ("Asia/Tokyo", "03-02 23:01"),  # it is 08:01 there
        ("Asia/Dubai", "03-03 04:00"),  # it is 03:01 there
        ("Atlantic/Azores", "03-03 09:00"),  # it is 22:01 there
    ],
)
def test_a_wake_outside_active_hours_follows_a_change_of_the_time_zone(
    make_world: MakeWorld, zone: str, starts: str, interval: str
) -> None:
    config = agent(interval=interval, active_hours='"08:00-22:00"')
    world = make_world(config, start="2026-03-02 23:00")
    world.wake("ops", "look")
    world.run(minutes=1)
    world.reload(f"timezone: {zone}\n{config}")
    world.run(hours=12)
    assert next(line for line in world.history() if " ok " in line).startswith(starts)
    assert "look" in world.calls[0].stdin


def test_a_wake_outside_active_hours_follows_a_change_of_the_hours_during_a_pause(make_world: MakeWorld) -> None:
    config = agent(interval="none", active_hours='"08:00-22:00"')
    world = make_world(config, start="2026-03-02 23:00")
    world.wake("ops", "look")
    world.pause((Kind.HEARTBEAT, "ops"))
    world.run(minutes=1)
    world.reload(config.replace('"08:00-22:00"', "always"))
    world.run(minutes=1)
    world.resume((Kind.HEARTBEAT, "ops"))
    world.run(minutes=1)
    assert world.history() == ["03-02 23:00 api skipped active_hours", "03-02 23:02 api ok heartbeat_ok"]


def test_a_wake_outside_active_hours_starts_a_run_at_opening_if_there_is_no_slot(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", active_hours='"08:00-22:00"'), start="2026-03-02 14:00")
    world.run_until("2026-03-03 03:00")
    world.wake("ops", "look")
    world.run_until("2026-03-03 08:01")
    assert world.history()[1:] == ["03-03 03:00 api skipped active_hours", "03-03 08:00 api ok heartbeat_ok"]


def test_expired_wakes_cause_a_notification_with_their_texts(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"))
    world.run(minutes=1)
    world.pause((Kind.HEARTBEAT, "ops"))
    world.wake("ops", "the disk\nis full", sender="disks")
    world.wake("ops", "no mail", sender="mail")
    world.run(hours=25)
    notices = [text for _, _, text in world.delivered if "expired" in text]
    assert [text.splitlines() for text in notices] == [
        [
            "2 wakes of agent ops expired: not delivered to the agent within 1d (limits.wake_keep).",
            "- by api disks (waited for: paused): the disk is full",
            "- by api mail (waited for: paused): no mail",
            "Why it did not run: heartbeatd explain ops",
        ]
    ]


def test_wakes_that_expire_at_different_times_cause_one_notification_each(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"))
    world.run(minutes=1)
    world.pause((Kind.HEARTBEAT, "ops"))
    world.wake("ops", "one", sender="a")
    world.run(hours=2)
    world.wake("ops", "two", sender="b")
    world.run(hours=25)
    assert [text.splitlines()[1] for _, _, text in world.delivered if "expired" in text] == [
        f"- by api {sender} (waited for: paused): {text}" for sender, text in (("a", "one"), ("b", "two"))
    ]


def test_wakes_of_two_agents_that_expire_together_cause_one_notification_for_each(make_world: MakeWorld) -> None:
    yaml = agent(interval="1h")
    world = make_world(yaml + yaml.partition("agents:\n")[2].replace("ops:", "web:"))
    world.run(minutes=1)
    world.pause(None)
    for name in ("ops", "web", "ops", "web"):
        world.wake(name, "look", sender=f"sender{len(wake_results(world))}")
    world.run(hours=25)
    notices = [text.splitlines()[0].partition(":")[0] for _, _, text in world.delivered if "expired" in text]
    assert notices == ["2 wakes of agent ops expired", "2 wakes of agent web expired"]


def test_wakes_expire_without_a_notification_if_failures_of_their_agent_are_not_reported(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", problems="{after: none}"))
    world.run(minutes=1)
    world.pause((Kind.HEARTBEAT, "ops"))
    world.wake("ops", "the disk is full")
    world.run(hours=25)
    assert world.delivered == []


def test_a_wake_that_waits_for_a_slot_that_never_comes_causes_a_notification(make_world: MakeWorld) -> None:
    job = BACKUP.replace("ops}", "ops, wake_mode: next}").replace('schedule: "0 3 * * *"', 'at: "2026-03-03T03:00"')
    world = make_world(agent(interval="none") + job)
    world.run(days=3)
    assert [text.splitlines()[0] for _, name, text in world.delivered if name == "ops"] == [
        "1 wake of agent ops expired: not delivered to the agent within 1d (limits.wake_keep)."
    ]


@pytest.mark.parametrize(
    ("limits", "until"), [("wake_flood: 1 per 2h, wake_gap: 1s", "2026-03-02 08:30"), ("wake_gap: 2h", "2026-03-02 10:05")]
)
def test_a_wake_is_said_to_wait_until_the_run_that_has_it_in_its_prompt(make_world: MakeWorld, limits: str, until: str) -> None:
    """A run planned after a flood comes first, and one planned within wake_gap is skipped."""
    world = make_world(f"limits: {{{limits}}}\n" + agent(interval="30m"))
    for text in ("first", "second"):
        world.run(minutes=5)
        world.wake("ops", text)
    world.run(minutes=1)
    found = explain_waiting(world.store.connection, (Kind.HEARTBEAT, "ops"), 1, world.clock.now, str)
    assert found.until == utc(until)
    world.run(hours=2)
    assert next(call.at for call in world.calls if "second" in call.stdin) == utc(until)


def test_manual_wakes_neither_count_against_nor_obey_the_rate_limit(make_world: MakeWorld) -> None:
    world = make_world("limits: {wake_flood: 1 per 1h, wake_gap: 1s}\n" + agent(interval="1d"))
    world.run(minutes=1)
    for _ in range(3):
        world.wake("ops", "look", source=Trigger.MANUAL, sender="command")
        world.run(minutes=1)
    world.wake("ops", "by a program")
    world.run(minutes=1)
    world.wake("ops", "by a program again")
    world.run(minutes=1)
    world.wake("ops", "by a person", source=Trigger.MANUAL, sender="command")
    world.run(minutes=1)
    assert [line.split()[1:3] for line in world.history()[1:]] == [
        *([f"08:0{minute}", "manual"] for minute in (1, 2, 3)),
        ["08:04", "api"],
        ["08:06", "manual"],
    ]
    assert "by a program again" in world.calls[-1].stdin


def test_skipped_wakes_do_not_count_against_the_rate_limit(make_world: MakeWorld) -> None:
    world = make_world(
        "limits: {wake_flood: 2 per 1h, wake_gap: 1s}\n" + agent(interval="1d", precheck="{command: x, on_error: skip}")
    )
    world.prechecks["ops"] = lambda call: 3 if call.at < utc("2026-03-02 08:10") else "mail"
    world.run(minutes=1)
    for number in range(5):
        world.wake("ops", "look", sender=f"sender{number}")
        world.run(minutes=1)
    world.run_until("2026-03-02 08:10")
    world.wake("ops", "look")
    world.run(minutes=1)
    assert world.history()[-1] == "03-02 08:10 api ok heartbeat_ok"
    assert len([line for line in world.history() if "precheck_failed" in line]) == 6


def test_the_rate_limit_also_limits_prechecks_that_fail(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", precheck="{command: x, on_error: skip}"))
    world.prechecks["ops"] = lambda call: 3
    world.run(minutes=1)
    for number in range(120):
        world.wake("ops", "look", sender=f"sender{number}")
        world.run(seconds=1)
    assert len(world.precheck_calls) <= 1 + 5


def test_wakes_over_budget_are_recorded_once_and_not_once_per_sender(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", budget="{runs_per_day: 1}"))
    world.wake("ops", "one")
    world.run(minutes=5)
    for number in range(100):
        world.wake("ops", f"message {number}", sender=f"sender{number}")
        world.run(seconds=10)
    assert world.history() == ["03-02 08:00 api ok heartbeat_ok", "03-02 08:05 api skipped budget"]
    world.run_until("2026-03-03 00:01")
    assert world.history()[2:] == ["03-03 00:00 api ok heartbeat_ok"]
    assert "message 99" in world.calls[-1].stdin


def test_a_reload_does_not_delay_the_wake_of_a_person_until_the_end_of_a_usage_limit(make_world: MakeWorld) -> None:
    text = "limits: {wake_gap: 10m}\n" + agent(interval="none", retries="0")
    limit = ProcessResult(1, b"You've hit your usage limit, try again in 2 hours")
    world = make_world(text, scripts={"ops": lambda _: limit})
    world.wake("ops", "one")
    world.run(minutes=5)
    world.wake("ops", "two", source=Trigger.MANUAL, sender="mary")
    world.reload(text)
    world.run(minutes=30)
    assert world.history() == ["03-02 08:00 api failed limited", "03-02 08:10 manual skipped breaker_open"]


def test_a_wake_over_budget_waits_for_the_slot_that_comes_soon_after_the_budget_has_room(make_world: MakeWorld) -> None:
    world = make_world(
        agent(schedule='"30 0 * * *"', interval="unset", budget="{runs_per_day: 1}").replace("interval: unset, ", "")
    )
    for hour in (9, 10):
        world.run_until(f"2026-03-02 {hour:02}:00")
        world.wake("ops", "look")
    world.run_until("2026-03-03 02:00")
    assert [f"{call.at:%d %H:%M}" for call in world.calls] == ["02 09:00", "03 00:30"]


def test_a_wake_over_budget_is_not_said_to_wait_until_a_slot_that_is_over_budget_too(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m", budget="{runs_per_day: 1}"))
    world.run(minutes=5)
    world.wake("ops", "look")
    world.run(minutes=1)
    found = explain_waiting(world.store.connection, (Kind.HEARTBEAT, "ops"), 1, world.clock.now, str)
    assert (found.until, found.says) == (None, "1 wake waits: the budget is used up")
    world.run(minutes=25)
    assert world.history()[-1] == "03-02 08:30 interval skipped budget"


def test_wakes_over_the_rate_limit_wait_until_it_allows_a_run(make_world: MakeWorld) -> None:
    world = make_world("limits: {wake_flood: 3 per 10m, wake_gap: 1s}\n" + agent(interval="1h"))
    world.run(minutes=1)
    for _ in range(6):
        world.wake("ops", "look")
        world.run(seconds=30)
    world.run(hours=1)
    assert [line for line in world.history() if "api" in line] == [
        f"03-02 08:{minute} api ok heartbeat_ok" for minute in ("01", "01", "02", "11")
    ]
    assert "By api bot, 3 times" in next(call for call in world.calls if call.at.minute == 11).stdin


def test_the_rate_limit_also_limits_runs_that_fail(make_world: MakeWorld) -> None:
    world = make_world("limits: {wake_flood: 5 per 10m}\n" + agent(interval="none", retries="0"))
    world.scripts["ops"] = lambda call: ProcessResult(1, b"broken")
    for _ in range(60):
        world.wake("ops", "look")
        world.run(minutes=1)
    begun = [call.at for call in world.calls]
    assert max(sum(at - timedelta(minutes=10) < other <= at for other in begun) for at in begun) == 5


@pytest.mark.parametrize("history", ["runs: 3", "keep: 5m"])
def test_a_short_history_does_not_weaken_the_rate_limit(make_world: MakeWorld, history: str) -> None:
    """Clock changes may be corrected within an hour of a start, so old records are deleted only after it."""
    limits = f"limits: {{wake_flood: 5 per 1h, wake_gap: 1s}}\nhistory: {{{history}}}\n"
    world = make_world(limits + agent(interval="none"))
    world.run(minutes=70)
    for _ in range(20):
        world.wake("ops", "look")
        world.run(minutes=2)
    assert len(world.calls) == 5
    world.run(hours=3)
    assert len(world.records()) <= 3


def test_a_wake_that_arrives_with_a_slot_joins_its_run(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"))
    world.run(minutes=59, seconds=59)
    world.clock.advance(timedelta(seconds=1))
    world.wake("ops", "look")
    world.run(minutes=1)
    assert world.history()[1:] == ["03-02 09:00 interval ok heartbeat_ok"]
    assert "By api bot" in world.calls[-1].stdin
    assert wake_results(world) == ["joined"]


def test_a_slot_right_after_a_woken_run_is_superseded(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"))
    world.run(minutes=59, seconds=50)
    world.wake("ops", "look")
    world.run(minutes=5)
    assert world.history()[1:] == ["03-02 08:59 api ok heartbeat_ok", "03-02 09:00 interval skipped superseded"]


def test_a_wake_during_a_pause_is_delivered_after_the_pause(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"))
    world.run(minutes=1)
    world.pause((Kind.HEARTBEAT, "ops"))
    world.wake("ops", "look")
    world.run(hours=1)
    world.resume((Kind.HEARTBEAT, "ops"))
    world.run(hours=1)
    assert world.history()[1:] == [
        "03-02 08:01 api skipped paused",
        "03-02 09:00 interval skipped paused",
        "03-02 10:00 interval ok heartbeat_ok",
    ]
    assert "By api bot" in world.calls[-1].stdin


def test_a_wake_of_a_disabled_agent_is_refused_and_not_kept(make_world: MakeWorld) -> None:
    world = make_world(agent(enabled="false"))
    with pytest.raises(Refused, match=r"is disabled in config\.yaml"):
        world.wake("ops", "look")
    world.run(hours=1)
    world.reload(agent())
    world.run(hours=1)
    assert world.history()[0] == "03-02 08:00 api skipped disabled"
    assert "By api bot" not in world.calls[-1].stdin


def test_a_wake_survives_a_failed_run_and_a_crash(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", retries="0"))
    world.run(minutes=1)
    world.scripts["ops"] = lambda call: 1
    world.wake("ops", "look at the backup")
    world.run(seconds=30)
    world.downtime(minutes=5)
    world.scripts.clear()
    world.run(minutes=1)
    assert "look at the backup" in world.calls[-1].stdin
    assert "By api bot" in world.calls[-1].stdin
    world.run(hours=1)
    assert "By api bot" not in world.calls[-1].stdin


@pytest.mark.parametrize("interval", ["none", "3d"])
def test_a_wake_whose_runs_failed_starts_one_at_the_time_of_the_slot_that_a_reload_has_taken_away(
    make_world: MakeWorld, interval: str
) -> None:
    world = make_world(agent(interval="6h", retries="0"), scripts={"ops": lambda _: 1})
    world.wake("ops", "Look at the mail queue.")
    world.run(hours=2)
    assert len(world.calls) == 4, "after three more tries it waits for the slot"
    world.scripts["ops"] = lambda _: "HEARTBEAT_OK"
    world.reload(world.yaml.replace("interval: 6h", f"interval: {interval}"))
    world.run_until("2026-03-02 13:59")
    assert len(world.calls) == 4
    world.run_until("2026-03-02 14:01")
    assert "Look at the mail queue." in world.calls[4].stdin


def test_an_expired_wake_is_counted(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"))
    world.run(minutes=1)
    world.pause((Kind.HEARTBEAT, "ops"))
    world.wake("ops", "look")
    world.run(hours=25)
    assert wake_results(world)[-1] == "expired"


def test_an_agent_cannot_wake_itself_from_within_its_own_run(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=1))
    world.run(seconds=5)
    run_id = world.records()[-1]["id"]
    with pytest.raises(Refused, match="cannot wake itself"):
        world.wake("ops", "again", cause=f"boot1/{run_id}")
    world.run(minutes=10)
    assert len(world.calls) == 1
    assert wake_results(world) == ["rejected"]


def test_a_run_of_another_agent_wakes_an_agent_during_its_run(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=1))
    world.run(seconds=5)
    world.wake("ops", "look", cause=f"boot1/{world.records()[-1]['id'] + 1}")
    world.run(minutes=10)
    assert len(world.calls) == 2


def test_a_wake_with_mode_next_starts_no_run_of_its_own(make_world: MakeWorld) -> None:
    """It comes during a run, and waits for the next slot."""
    world = make_world(agent(interval="1h") + BACKUP.replace("0 3", "2 8").replace("ops}", "ops, wake_mode: next}"))
    world.durations["ops"] = timedelta(minutes=4)
    world.run(minutes=3)
    db = world.store.connection
    assert wait_of_wake(db, wakes.find_wake(db, 1), world.clock.now) == WakeWait("next_run", utc("2026-03-02 09:00"))
    world.run(minutes=67)
    assert world.history("ops") == ["03-02 08:00 interval ok heartbeat_ok", "03-02 09:00 interval ok heartbeat_ok"]
    assert "By cron backup" in world.calls[-1].stdin


def test_an_agent_without_an_interval_runs_only_when_woken(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none"))
    world.run(days=2)
    world.wake("ops", "look")
    world.run(hours=1)
    assert world.history() == ["03-04 08:00 api ok heartbeat_ok"]


@pytest.mark.parametrize(
    ("keys", "consumed_at"),
    [
        ({"active_hours": '"08:00-22:00"'}, "03-07 08:00 cron ok heartbeat_ok"),  # a Saturday
        ({"skip_on": "weekend"}, "03-09 00:00 cron ok heartbeat_ok"),
        ({"skip_on": "weekend", "active_hours": '"08:00-22:00"'}, "03-09 08:00 cron ok heartbeat_ok"),
    ],
)
def test_an_agent_without_an_interval_runs_a_deferred_wake_when_its_hours_open(
    make_world: MakeWorld, keys: dict[str, str], consumed_at: str
) -> None:
    days = "calendars: {weekend: {days: sat-sun}}\nlimits: {wake_keep: 3d}\n"
    world = make_world(days + agent(interval="none", **keys) + BACKUP.replace("0 3 * * *", "0 3 * * 6"), start="2026-03-07 02:00")
    world.run(days=3)
    assert [line for line in world.history("ops") if "skipped" not in line] == [consumed_at]
    assert len(world.history("ops")) == 2
    assert "By cron backup" in world.calls[-1].stdin


@pytest.mark.long_on_server("a thousand retries")
def test_an_agent_without_an_interval_runs_at_opening_after_its_lane_was_locked_until_closing(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", active_hours='"08:00-12:00"'))
    world.run(seconds=5)
    world.request(VerbRequest(HoldLock(id="chat", for_=utc("2026-03-02 12:30") - world.clock.now), (Kind.HEARTBEAT, "ops")))
    world.wake("ops", "look")
    world.run(days=1, hours=1)
    assert world.history() == ["03-02 08:00 api skipped busy", "03-03 08:00 api ok heartbeat_ok"]


def test_an_agent_without_an_interval_runs_a_deferred_wake_after_its_pause(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none"))
    for until, resumed in ((utc("2026-03-02 09:00"), "09:00"), (None, "14:00")):
        world.pause(("heartbeat", "ops"), until)
        world.wake("ops", "look")
        world.run(hours=2)
        world.resume((Kind.HEARTBEAT, "ops"))
        world.run(hours=2)
        assert world.history()[-1] == f"03-02 {resumed} api ok heartbeat_ok"
    assert len(world.history()) == 4


def test_an_agent_without_an_interval_retries_a_wake_with_growing_delays(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", retries="0"))
    world.scripts["ops"] = lambda call: "HEARTBEAT_OK" if len(world.calls) == 6 else 1
    world.wake("ops", "look")
    world.run(hours=12)
    assert world.history() == [
        *(f"03-02 {slot} api failed exit" for slot in ("08:00", "08:01", "08:06", "08:36", "10:36")),
        "03-02 12:36 api ok heartbeat_ok",
    ]
    assert "look" in world.calls[-1].stdin
    world.scripts["ops"] = lambda call: "HEARTBEAT_OK" if len(world.calls) == 8 else 1
    world.wake("ops", "look again")
    world.run(hours=1)
    assert world.history()[-2:] == ["03-02 20:00 api failed exit", "03-02 20:01 api ok heartbeat_ok"]


def test_a_newer_wake_of_the_same_sender_does_not_begin_the_delays_again(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", retries="0"), scripts={"ops": lambda _: Delayed(1, timedelta(seconds=10))})
    world.wake("ops", "first")
    world.run(seconds=5)
    world.wake("ops", "second")
    world.run(minutes=40)
    assert [f"{call.at:%H:%M:%S}" for call in world.calls] == ["08:00:00", "08:00:40", "08:05:50", "08:36:00"]


def test_a_repeated_wake_of_one_sender_does_not_begin_the_delays_of_another_one_again(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", retries="0"), scripts={"ops": lambda _: 1})
    for sender in ("mail", "disk"):
        world.wake("ops", "look", sender=sender)
    world.run(minutes=10)
    world.wake("ops", "look again", sender="mail")
    world.run(hours=3)
    assert [f"{call.at:%H:%M:%S}" for call in world.calls][-3:] == ["08:10:00", "08:40:00", "10:40:00"]


def test_retries_of_an_agent_without_an_interval_obey_wake_gap_and_wake_keep(make_world: MakeWorld) -> None:
    world = make_world("limits: {wake_gap: 10m, wake_keep: 3h}\n" + agent(interval="none", retries="0"))
    world.scripts["ops"] = lambda call: 1
    world.wake("ops", "look")
    world.run(days=2)
    assert [f"{call.at:%H:%M}" for call in world.calls] == ["08:00", "08:10", "08:20", "08:50", "10:50"]
    assert wake_results(world)[-1] == "expired"


def test_an_agent_without_an_interval_runs_a_wake_once_its_precheck_works(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", precheck="{command: look, on_error: skip}"))
    world.prechecks["ops"] = lambda call: 3 if call.at < utc("2026-03-02 08:30") else "mail"
    world.wake("ops", "look")
    world.run(hours=3)
    assert world.history() == [
        *(f"03-02 {slot} api skipped precheck_failed" for slot in ("08:00", "08:01", "08:06")),
        "03-02 08:36 api ok heartbeat_ok",
    ]


def test_an_agent_without_an_interval_does_not_retry_during_a_pause(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", retries="0"))
    world.scripts["ops"] = lambda call: 1 if len(world.calls) == 1 else "HEARTBEAT_OK"
    world.wake("ops", "look")
    world.run(seconds=30)
    world.pause(("heartbeat", "ops"), utc("2026-03-02 10:00"))
    world.run(hours=3)
    assert world.history() == ["03-02 08:00 api failed exit", "03-02 08:01 api skipped paused", "03-02 10:00 api ok heartbeat_ok"]


def test_a_cancelled_woken_run_is_not_retried(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none"))
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=1))
    world.wake("ops", "look")
    world.request(VerbRequest(Cancel(), 1))
    world.run(hours=3)
    assert world.history() == ["03-02 08:00 api abandoned cancelled"]


def test_an_agent_without_an_interval_runs_when_the_rate_limit_allows_it_again(make_world: MakeWorld) -> None:
    world = make_world("limits: {wake_flood: 1 per 10m}\n" + agent(interval="none"))
    world.wake("ops", "one")
    world.run(minutes=1)
    world.wake("ops", "two")
    world.run(hours=1)
    assert world.history() == ["03-02 08:00 api ok heartbeat_ok", "03-02 08:10 api ok heartbeat_ok"]
    assert "two" in world.calls[-1].stdin


def test_a_wake_at_night_is_not_said_to_start_at_an_opening_that_has_passed(make_world: MakeWorld) -> None:
    """An earlier wake still waits, because the opening passed while there was no room for a run."""
    measure = "cron:\n  measure: {schedule: '0 7 2 * *', command: measure, timeout: 1d}\n"
    world = make_world(
        "limits: {concurrency: 1}\n" + agent(interval="none", active_hours='"08:00-22:00"') + measure,
        start="2026-03-02 06:00",
        scripts={"measure": lambda _: Delayed("", timedelta(hours=20))},
    )
    first = world.wake("ops", "one", sender="one")
    assert wakes.start_of_wake(world.store.connection, first) == utc("2026-03-02 08:00")
    world.run_until("2026-03-02 22:10")
    second = world.wake("ops", "two", sender="two")
    assert wakes.start_of_wake(world.store.connection, second) == utc("2026-03-03 08:00")


def test_run_once_does_not_wait_for_an_agent_outside_its_hours(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", active_hours='"10:00-22:00"'))
    world.wake("ops", "look")
    world.run(minutes=5)
    assert world.engine.is_idle(world.clock.now)


def test_a_wake_starts_a_run_even_if_the_checklist_is_missing(make_world: MakeWorld) -> None:
    world = make_world(agent(checklist="HEARTBEAT.md"))
    world.run(minutes=1)
    world.wake("ops", "look")
    world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval skipped checklist_missing", "03-02 08:01 api ok heartbeat_ok"]


def test_a_job_can_be_started_manually_unless_it_is_running(make_world: MakeWorld) -> None:
    world = make_world(LAZY + BACKUP)
    world.scripts["backup"] = lambda call: Delayed("", timedelta(minutes=5))
    world.run_job("backup")
    world.run(minutes=1)
    with pytest.raises(Refused, match="already running"):
        world.run_job("backup")
    world.run(minutes=10)
    assert world.history("backup") == ["03-02 08:00 manual ok", "03-02 08:01 manual skipped already_running"]


THREE = """
defaults: {cron: {wake_heartbeat: ops}}
cron:
  short: {schedule: "0 3 * * *", command: short}
  middle: {schedule: "0 3 * * *", command: middle}
  long: {schedule: "0 3 * * *", command: long}
"""


def three_jobs(make_world: MakeWorld, more: str = "", jobs: str = THREE, **seconds: float) -> World:
    """Three jobs that are due at 03:00, each with a duration in seconds."""
    world = make_world(more + agent(interval="none") + jobs, start="2026-03-03 02:59")
    durations = {"short": 2, "middle": 5, "long": 20} | seconds
    world.scripts = {
        name: lambda call, name=name: Delayed(f"{name} is done", timedelta(seconds=durations[name])) for name in durations
    }
    return world


def woken_runs(world: World) -> list[tuple[str, list[str]]]:
    """The start time of each run of the agent, and the jobs named in its prompt."""
    names = ("short", "middle", "long")
    return [
        (f"{call.at:%H:%M:%S}", [name for name in names if f"By cron {name}" in call.stdin])
        for call in world.calls
        if call.name == "ops"
    ]


def test_wakes_of_three_jobs_within_a_minute_start_one_run(make_world: MakeWorld) -> None:
    world = three_jobs(make_world)
    world.run_until("2026-03-03 03:10")
    assert woken_runs(world) == [("03:00:20", ["short", "middle", "long"])]
    assert sorted(wake_results(world)) == ["joined", "joined", "started"]


def test_the_end_of_a_job_lets_each_agent_start_that_waited_for_it(make_world: MakeWorld) -> None:
    web = agent(interval="none").replace("agents:\n", "").replace("ops:", "web:")
    jobs = THREE.replace("heartbeat: ops", "heartbeat: [ops, web]").replace("command: long", "command: long, wake_on: failure")
    world = three_jobs(make_world, jobs=web + jobs)
    world.run_until("2026-03-03 03:10")
    runs = [(call.name, f"{call.at:%H:%M:%S}") for call in world.calls if call.name in ("ops", "web")]
    assert sorted(runs) == [("ops", "03:00:20"), ("web", "03:00:20")]


def test_a_wake_waits_for_running_jobs_no_longer_than_the_gap(make_world: MakeWorld) -> None:
    world = three_jobs(make_world, long=300)
    world.run_until("2026-03-03 03:10")
    assert woken_runs(world) == [("03:00:32", ["short", "middle"]), ("03:05:00", ["long"])]


def test_a_wake_also_waits_for_jobs_that_wait_for_capacity(make_world: MakeWorld) -> None:
    world = three_jobs(make_world, "limits: {concurrency: 1}\n")
    world.run_until("2026-03-03 03:10")
    assert woken_runs(world) == [("03:00:27", ["short", "middle", "long"])]


@pytest.mark.parametrize("keys", ["wake_on: failure", "wake_mode: next", "wake_heartbeat: []", "enabled: false"])
def test_a_wake_does_not_wait_for_a_job_that_cannot_wake_the_agent(make_world: MakeWorld, keys: str) -> None:
    world = three_jobs(make_world, jobs=THREE.replace("command: long", f"command: long, {keys}"))
    world.run_until("2026-03-03 03:10")
    ((at, named),) = woken_runs(world)
    assert at == ("03:00:20" if keys == "wake_on: failure" else "03:00:05")
    assert named[:2] == ["short", "middle"]


def test_a_wake_through_the_api_waits_for_no_job(make_world: MakeWorld) -> None:
    world = three_jobs(make_world)
    world.run_until("2026-03-03 03:00:03")
    world.wake("ops", "look")
    world.run_until("2026-03-03 03:10")
    assert woken_runs(world) == [("03:00:03", ["short"]), ("03:00:33", ["middle", "long"])]


def test_without_a_gap_each_job_wakes_at_once(make_world: MakeWorld) -> None:
    world = three_jobs(make_world, "limits: {wake_gap: 0s}\n")
    world.run_until("2026-03-03 03:10")
    assert [at for at, _ in woken_runs(world)] == ["03:00:02", "03:00:05", "03:00:20"]


def test_a_wake_that_waits_for_running_jobs_survives_a_crash(make_world: MakeWorld) -> None:
    world = three_jobs(make_world)
    world.run_until("2026-03-03 03:00:10")
    world.downtime(seconds=5)
    world.run_until("2026-03-03 03:10")
    assert woken_runs(world) == [("03:00:15", ["short", "middle", "long"])]
    assert "By cron long, result abandoned" in world.calls[-1].stdin


def test_setting_the_clock_back_does_not_prolong_the_wait_for_running_jobs(make_world: MakeWorld) -> None:
    world = three_jobs(make_world, long=300)
    world.run_until("2026-03-03 03:00:10")
    world.clock.now -= timedelta(hours=2)
    world.run(minutes=1)
    ((at, named),) = woken_runs(world)
    assert (at, named) == ("01:00:10", ["short", "middle"])


def test_wake_text_comes_before_the_output_of_the_job(make_world: MakeWorld) -> None:
    world = make_world(LAZY + BACKUP.replace("ops}", "ops, wake_text: Compare it with yesterday.}"))
    world.scripts["backup"] = lambda call: "copied 12 files"
    world.run_until("2026-03-03 03:01")
    prompt = world.calls[-1].stdin
    assert (
        prompt.index("Compare it with yesterday.")
        < prompt.index('The cron job "backup" ended: ok')
        < prompt.index("| copied 12 files")
    )


def test_a_job_without_a_command_only_wakes(make_world: MakeWorld) -> None:
    world = make_world(LAZY + 'cron: {morning: {schedule: "0 3 * * *", wake_heartbeat: ops, wake_text: The day begins.}}\n')
    world.run_until("2026-03-03 03:01")
    assert (world.history("morning"), world.history("ops")[-1]) == (
        ["03-03 03:00 schedule ok"],
        "03-03 03:00 cron ok heartbeat_ok",
    )
    assert "The day begins." in world.calls[-1].stdin


def test_one_job_wakes_several_agents(make_world: MakeWorld) -> None:
    two = agent(interval="none") + agent(interval="none").replace("agents:\n", "").replace("ops", "web")
    world = make_world(two + BACKUP.replace("wake_heartbeat: ops", "wake_heartbeat: [ops, web]"))
    world.run_until("2026-03-03 03:01")
    assert [call.name for call in world.calls] == ["backup", "ops", "web"]


def test_the_output_of_a_job_is_delivered_to_its_channel(make_world: MakeWorld) -> None:
    world = make_world(LAZY + BACKUP.replace("wake_heartbeat: ops", "deliver: log"))
    world.scripts["backup"] = lambda call: "copied 12 files\n"
    world.run_until("2026-03-04 03:01")
    assert [text for _, name, text in world.delivered if name == "backup"] == ["copied 12 files", "copied 12 files"]


def test_a_wake_expires_by_the_time_it_was_last_merged_and_not_first_sent(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"))
    world.run(minutes=1)
    world.pause((Kind.HEARTBEAT, "ops"))
    for hour in range(24):
        world.wake("ops", f"message {hour}")
        world.run(hours=1)
    world.wake("ops", "the house is on fire")
    world.run(minutes=5)
    world.resume((Kind.HEARTBEAT, "ops"))
    world.run(hours=1)
    assert "the house is on fire" in world.calls[-1].stdin


def test_a_wake_starts_a_run_even_if_twenty_others_wait(make_world: MakeWorld) -> None:
    world = make_world("limits: {wake_flood: 100 per 1s}\n" + agent(interval="1d"))
    world.run(minutes=1)
    world.pause((Kind.HEARTBEAT, "ops"))
    for number in range(20):
        world.wake("ops", f"message {number}", sender=f"sender{number}")
        world.run(seconds=2)
    world.resume((Kind.HEARTBEAT, "ops"))
    before = len(world.calls)
    world.wake("ops", "look", sender="another")
    world.run(minutes=2)
    assert len(world.calls) == before + 1


def test_runs_of_a_job_are_not_counted_as_wakes_of_the_agent_with_its_name(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d") + "cron:\n  ops: {every: 1h, command: x}\n")
    world.run(minutes=1)
    world.run_job("ops")
    world.run(minutes=1)
    assert world.events_of(WakeMoved) == []


def test_three_wakes_of_one_sender_that_a_run_waiting_for_its_lane_has_taken_are_merged_when_it_gives_up(
    make_world: MakeWorld,
) -> None:
    world = make_world(agent(interval="1h"), start="2026-03-02 07:30")
    world.run(minutes=20)
    world.wake("ops", "look", sender="other")
    world.run(seconds=1)  # the next two wakes merge while they wait for the gap
    world.request(VerbRequest(HoldLock(id="chat", for_=utc("2026-03-02 10:30") - world.clock.now), (Kind.HEARTBEAT, "ops")))
    for _ in range(2):
        world.wake("ops", "first", sender="monitor")
    world.run_until("2026-03-02 08:10")
    world.wake("ops", "second", sender="monitor")
    world.run_until("2026-03-02 12:00")
    assert "skipped busy" in " ".join(world.history("ops"))
    (call,) = [call for call in world.calls if "By test monitor" in call.stdin or "monitor" in call.stdin]
    assert "3 times" in call.stdin
    assert "second" in call.stdin


def test_a_run_that_waits_for_its_lock_shows_only_the_latest_wake_of_a_sender(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", timeout="3h"))
    world.request(VerbRequest(HoldLock(id="chat", for_=timedelta(minutes=40)), (Kind.HEARTBEAT, "ops")))
    for number in range(4):
        world.wake("ops", f"message {number}", sender="monitor")
        world.wake("ops", "look", sender=f"sender{number}")
        world.run(minutes=9)
    world.run(minutes=9)
    (call,) = world.calls
    assert "By api monitor, 4 times, the last one:" in call.stdin
    assert [number for number in range(5) if f"message {number}" in call.stdin] == [3]
    assert all(f"By api sender{number}:" in call.stdin for number in range(4))
    shown = wakes.wakes_of_run(world.store.connection, 1)
    assert [(wake.sender, wake.count) for wake in shown if wake.sender == "monitor"] == [("monitor", 4)]
    assert [(wake.sender, wake.count) for wake in shown if wake.sender != "monitor"] == [
        (f"sender{each}", 1) for each in range(4)
    ]


def test_rejected_wakes_of_an_hour_share_a_record_and_those_of_each_job_have_their_own(make_world: MakeWorld) -> None:
    jobs = "".join(f"  {name}: {{every: 30m, command: x, wake_heartbeat: ops}}\n" for name in ("first", "second"))
    world = make_world(agent(interval="1d", enabled="false") + "cron:\n" + jobs)
    for _ in range(7):
        with pytest.raises(Refused):
            world.wake("ops", "look")
        world.run(minutes=30)
    rows = world.store.connection.execute("select sender, count, at - first_at from rejected_wake order by sender, id").fetchall()
    assert all(span <= 3_600_000 for _, _, span in rows)
    assert [(sender, count) for sender, count, _ in rows] == [
        ("bot", 2), ("bot", 2), ("bot", 2), ("bot", 1),
        ("first", 2), ("first", 2), ("first", 2), ("first", 1),
        ("second", 2), ("second", 2), ("second", 2), ("second", 1),
    ]  # fmt: skip
