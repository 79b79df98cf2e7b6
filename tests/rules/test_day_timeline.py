"""The day of an agent as marks on a time axis: each slot, each woken run, and times without slots."""

from __future__ import annotations

from datetime import date

from test_story_explain import explained_entry
from test_story_slots import agent
from world import MakeWorld, World

from scheduler.insight import slot_history
from scheduler.insight.slot_history import SlotGroup
from scheduler.model import local_days
from scheduler.model.levels import Level
from scheduler.model.outcome import Kind
from scheduler.store import wakes


def timeline(world: World, on: str = "2026-03-02") -> list[SlotGroup]:
    explained = explained_entry(world)
    day = local_days.whole_day(date.fromisoformat(on), explained.zone)
    return explained.timeline(day.begins, day.ends)


def lines(found: list[SlotGroup]) -> list[str]:
    """One line per mark: `08:30 ok good`, with the end of a time without slots."""
    return [
        " ".join(
            [
                f"{mark.first:%H:%M}",
                *([] if mark.last == mark.first else [f"-{mark.last:%H:%M}"]),
                mark.worst.code,
                mark.worst.level,
                *([] if mark.is_slot else ["woken"]),
            ]
        )
        for mark in found
    ]


def test_each_slot_and_each_woken_run_is_a_mark(make_world: MakeWorld) -> None:
    answers = iter(["HEARTBEAT_OK", "HEARTBEAT_OK", "the disk is full", 1, "HEARTBEAT_OK"])
    world = make_world(agent(interval="30m", retries="0"), scripts={"ops": lambda _: next(answers)})
    world.run_until("2026-03-02 09:35")
    world.wake("ops", "look now")
    world.run_until("2026-03-02 09:50")
    found = timeline(world)
    assert lines(found)[:7] == [
        "00:00 -08:00 not_declared unknown",
        "08:00 ok good",
        "08:30 ok good",
        "09:00 alert alert",
        "09:30 failed bad",
        "09:35 ok good woken",
        "10:00 to_come to_come",
    ]
    assert len(found) == 7 + 27
    assert [mark.run_id for mark in found][:7] == [None, 1, 2, 3, 4, 5, None]


def test_the_slots_of_another_day_are_to_come(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="6h"))
    assert {mark.worst.level for mark in timeline(world, "2026-03-03")} == {Level.TO_COME}


def test_many_slots_become_groups_that_show_the_worst_of_each(make_world: MakeWorld) -> None:
    world = make_world(
        agent(interval="1m", retries="0"), scripts={"ops": lambda call: 1 if call.at.minute % 3 == 0 else "HEARTBEAT_OK"}
    )
    world.run_until("2026-03-02 18:00")
    found = timeline(world)
    assert len(found) <= slot_history.MAX_MARKS
    mixed = [mark for mark in found if len(mark.cause_counts) > 1]
    assert mixed
    assert {mark.worst.level for mark in mixed} == {Level.BAD}


def test_a_day_of_a_clock_change_has_its_23_hours(make_world: MakeWorld) -> None:
    yaml = agent(interval="1h", timezone="Europe/Riga")
    assert len(timeline(make_world(yaml, start="2026-03-28 08:00"), "2026-03-29")) == 23


def test_waiting_wakes_are_listed_with_their_texts(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m"))
    world.pause((Kind.HEARTBEAT, "ops"))
    world.wake("ops", "the first", sender="bot")
    world.wake("ops", "the second", sender="bot")
    world.wake("ops", "by another", sender="cat")
    found = wakes.list_waiting_wakes(world.store.connection, Kind.HEARTBEAT, "ops", 10)
    assert [(each.sender, each.count, each.text) for each in found] == [
        ("bot", 2, "the second"),
        ("cat", 1, "by another"),
    ]
    assert len(wakes.list_waiting_wakes(world.store.connection, Kind.HEARTBEAT, "ops", 1)) == 1
