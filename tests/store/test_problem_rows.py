"""Problems in the database, with two of everything: agents, keys, recipients, messages and causes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from heartbeat_specs import AGENT
from world import utc

from heartbeat.findings import Severity
from heartbeat.spec import CommandRunner
from scheduler.model.circuit import Circuit
from scheduler.model.entry import HeartbeatEntry
from scheduler.model.outcome import Kind
from scheduler.model.problem import (
    CHANNEL,
    PAUSED,
    Acknowledgement,
    Evidence,
    Problem,
    ProblemNotice,
    Subject,
    Symptom,
    Told,
)
from scheduler.model.settings import Target
from scheduler.model.timestamps import to_millis
from scheduler.store import agent_memory, outbox, problems
from scheduler.store.outbox import Origin
from scheduler.store.transaction import Transaction

EIGHT = utc("2026-03-02 08:00")
INFO, WARNING, CRITICAL = Severity
OPS, NIGHT = Subject.of_reports("ops"), Subject.of_reports("night")
JOB = Subject.of_reports("ops", Kind.CRON)
PHONE, MAIL = Target("phone"), Target("mail")


def at(minutes: float) -> datetime:
    return EIGHT + timedelta(minutes=minutes)


def add(
    tx: Transaction, subject: Subject = OPS, key: str = "disk", severity: Severity = WARNING, minute: float = 0,
    cause: int | None = None, told: dict[Target, tuple[Told, int]] | None = None, **more: Any,
) -> Problem:  # fmt: skip
    """Save a problem that opened at this minute. `told` are the kinds and IDs of the last messages about it."""
    found = Symptom(key, severity, f"{key} is bad", "failed", "x", cause)
    opened = {"opened_at": at(minute), "openings": (at(minute),)} if cause is None else {}
    times = {"since": at(minute), "last_seen_at": at(minute)}
    saved = problems.save_problem(tx, Problem(subject, found, **{**times, **opened, **more}))
    for target, (kind, message) in (told or {}).items():
        problems.save_notice(tx, saved.id, target, ProblemNotice(kind, severity, at(minute), severity_before=severity), message)
    return saved


def keys(found: list[Problem]) -> list[str]:
    return [f"{each.subject.name} {each.key}" for each in found]


def remaining(tx: Transaction) -> list[str]:
    return keys(problems.all_problems(tx.db))


def test_the_open_problems_of_an_agent_are_its_own_the_most_severe_and_then_the_latest_first(tx: Transaction) -> None:
    for key, severity, since, seen in (("a", WARNING, 2, 3), ("b", CRITICAL, 0, 1), ("c", WARNING, 0, 9), ("d", INFO, 5, 9)):
        add(tx, key=key, severity=severity, minute=since, last_seen_at=at(seen))
    add(tx, key="over", severity=CRITICAL, over_at=at(1))
    add(tx, NIGHT), add(tx, JOB), add(tx, Subject("heartbeat", "ops"), "failed")
    assert [each.key for each in problems.open_reports_of(tx.db, "ops")] == ["b", "c", "a", "d"]
    assert len(problems.open_reports_of(tx.db, "ops", Kind.CRON)) == 1


def test_a_problem_is_about_a_job_that_failed_or_that_woke_its_agent(tx: Transaction) -> None:
    for subject, evidence in (
        (OPS, Evidence(jobs=frozenset({"sync", "backup"}))),
        (NIGHT, Evidence(senders=frozenset({"api:backup", "cron:backup"}))),
        (JOB, Evidence(senders=frozenset({"api:backup"}))),
    ):
        add(tx, subject, evidence=evidence)
    assert keys(problems.reports_about(tx.db, "backup")) == ["night disk", "ops disk"]
    assert keys(problems.reports_about(tx.db, "sync")) == ["ops disk"]


def test_the_problem_of_an_agent_that_its_latest_runs_have_is_why_it_was_paused(tx: Transaction) -> None:
    runs = Subject("heartbeat", "ops")
    found = [add(tx, severity=CRITICAL, minute=9), add(tx, runs, PAUSED, minute=8)]
    found += [add(tx, runs, "failed", minute=7), add(tx, runs, "no_answer", minute=6)]
    assert [found[1], found[2]] == [problems.present_problem(found[:2]), problems.present_problem(found)]


def test_a_message_is_about_the_open_problems_that_it_reported_and_as_urgent_as_the_worst_of_all(tx: Transaction) -> None:
    add(tx, key="open", told={PHONE: (Told.OPEN, 7)})
    add(tx, key="over", severity=CRITICAL, told={PHONE: (Told.OVER, 7)})
    add(tx, key="other", told={PHONE: (Told.OPEN, 8), MAIL: (Told.UNSTABLE, 9)})
    assert [keys(problems.problems_in_message(tx.db, number)) for number in (7, 8, 9)] == [
        ["ops open"],
        ["ops other"],
        ["ops other"],
    ]
    assert [problems.is_about_critical(tx.db, number) for number in (7, 8)] == [True, False]


def test_a_problem_is_settled_when_each_recipient_knows_its_end(tx: Transaction) -> None:
    ends = {"known": (Told.OVER, Told.OVER), "lost": (Told.OVER, Told.LOST_END), "unstable": (Told.UNSTABLE, Told.OVER)}
    for key, (phone, mail) in ends.items():
        add(tx, Subject.of_reports(key), key, over_at=at(5), told={PHONE: (phone, 1), MAIL: (mail, 2)})
    assert keys(problems.unsettled_problems(tx.db)) == ["lost lost", "unstable unstable"]
    assert [problems.has_unsettled(tx.db, Subject.of_reports(key)) for key in ends] == [False, True, True]
    assert problems.entries_with_problems(tx.db) == {(Kind.HEARTBEAT, "lost"), (Kind.HEARTBEAT, "unstable")}
    assert keys(problems.unsettled_problems(tx.db, "heartbeat", "lost")) == ["lost lost"]


def test_each_entry_has_only_its_own_problems_also_if_there_are_many(tx: Transaction) -> None:
    for number in range(problems.MAX_RECALLED + 1):
        add(tx, Subject.of_reports(f"agent{number}"), "disk")
    own = Subject.of_reports("agent7")
    others = (own._replace(kind="cron"), own._replace(name="ops"), own._replace(part="phone"))
    assert problems.has_unsettled(tx.db, own)
    assert not any(problems.has_unsettled(tx.db, other) for other in others)


def test_a_lost_message_leaves_an_end_to_be_sent_to_its_recipient_only(tx: Transaction) -> None:
    about = Origin(1, "heartbeat", "ops", "manual", EIGHT)
    targets = (Target("phone", "1"), Target("phone", "2"))
    sent = [outbox.queue_notice(tx, {}, about, f"over p1 to {each.recipient}", "x", (each,))[each] for each in targets]
    told = {target: (Told.OVER, message) for target, message in zip(targets, sent, strict=True)}
    saved = add(tx, over_at=at(5), told=told)
    silent = ProblemNotice(Told.OVER, WARNING, at(0))
    problems.save_notice(tx, saved.id, MAIL, silent, sent[0])
    problems.save_notice(tx, saved.id, MAIL, silent, None)  # the message stays the last one that was sent
    problems.note_lost_message(tx, sent[0])
    (found,) = problems.all_problems(tx.db)
    kinds = {target.label: (last.kind.value, last.message_id) for target, last in found.notices.items()}
    assert kinds == {"phone:1": ("lost_end", sent[0]), "phone:2": ("over", sent[1]), "mail": ("over", sent[0])}


def test_a_target_fails_while_its_own_problem_is_open(tx: Transaction) -> None:
    add(tx, Subject(CHANNEL, "phone", "1"))
    add(tx, Subject(CHANNEL, "phone", "2"), over_at=at(5))
    assert problems.failing_targets(tx.db) == {Target("phone", "1")}


def test_the_consequences_of_a_cause_end_with_it_unless_they_were_sent_or_are_updated_anyway(tx: Transaction) -> None:
    for name in ("gone", "kept"):
        add(tx, Subject("heartbeat", name), "failed", cause=7)
    add(tx, Subject("cron", "kept"), "failed", cause=7)
    add(tx, Subject("heartbeat", "sent"), "failed", cause=7, openings=(at(0),))
    add(tx, Subject("heartbeat", "other"), "failed", cause=8)
    assert problems.consequences_of(tx.db, 7) == [
        ("heartbeat", "gone"),
        ("heartbeat", "kept"),
        ("heartbeat", "sent"),
        ("cron", "kept"),
    ]
    problems.release_consequences(tx, 7, (Kind.HEARTBEAT, "kept"))
    assert remaining(tx) == ["kept failed", "sent failed", "other failed"]


def test_the_problem_of_a_provider_that_no_entry_uses_is_kept_until_its_consequences_are_over(tx: Transaction) -> None:
    causes = [add(tx, Subject.of_circuit(Circuit(name)), "failed") for name in ("first", "second")]
    add(tx, Subject("heartbeat", "ops"), "failed", cause=causes[1].id)
    problems.delete_problems_of_unused_circuits(tx, ())
    assert remaining(tx) == ["second failed", "ops failed"]


def test_the_problem_of_an_account_is_kept_while_an_enabled_agent_uses_it(tx: Transaction) -> None:
    planned = [
        HeartbeatEntry(replace(AGENT, name=account, enabled=enabled, runner=CommandRunner(("claude",), {}, account)))
        for account, enabled in (("team", True), ("own", True), ("off", False))
    ]
    for account in ("team", "own", "off", "former"):
        add(tx, Subject.of_circuit(Circuit(f"account {account}")), "limited")
    problems.delete_problems_of_unused_circuits(tx, planned)
    assert remaining(tx) == ["account team limited", "account own limited"]


def test_a_problem_that_has_opened_before_is_remembered_although_it_ends_unopened(tx: Transaction) -> None:
    for key, openings in (("new", ()), ("again", (at(-60),))):
        found = add(tx, key=key, opened_at=None, openings=openings)
        problems.save_problem(tx, replace(found, over_at=at(1)))
    assert remaining(tx) == ["ops again"]


def test_the_problem_of_a_channel_is_deleted_once_nothing_is_sent_to_it_and_nothing_waits_for_it(tx: Transaction) -> None:
    day = timedelta(days=1)
    for agent, recipient in (("ops", "former"), ("ops", "last"), ("night", "former"), ("night", "last of another")):
        agent_memory.record_target(tx, agent, Target("phone", recipient), None)
    for name, recipient, seen in (
        ("phone", "", -2 * day), ("phone", "last", -2 * day), ("phone", "last of another", -2 * day), ("phone", "former", -2 * day),
        ("phone", "recent", -day / 2), ("phone", "waits", -2 * day), ("mail", "", -day / 2), ("fax", "", -day / 2),
    ):  # fmt: skip
        add(tx, Subject(CHANNEL, name, recipient), minute=-4320, last_seen_at=EIGHT + seen)
    for target, state in ((Target("phone", "waits"), "held"), (Target("fax"), "uncertain"), (Target("mail", "other"), "pending")):
        about = Origin(1, "heartbeat", target.label, "manual", EIGHT)
        (number,) = outbox.queue_notice(tx, {}, about, "x", "x", (target,)).values()
        tx.db.execute("update outbox set state = ? where id = ?", (state, number))
    problems.delete_problems_of_unused_channels(tx, ["phone"])
    assert [each.subject[1:] for each in problems.all_problems(tx.db)] == [
        ("phone", ""), ("phone", "last"), ("phone", "last of another"), ("phone", "recent"), ("phone", "waits"), ("fax", ""),
    ]  # fmt: skip


def test_problems_that_are_over_are_kept_for_a_day_at_least_and_the_latest_of_each_entry(tx: Transaction) -> None:
    hours = {"recent": -23, "old": -25}
    for key, hour in hours.items():
        add(tx, NIGHT, key, over_at=EIGHT + timedelta(hours=hour))
    problems.delete_old_problems(tx, timedelta(hours=1))
    assert remaining(tx) == ["night recent"]
    for number in range(problems.MAX_KEPT + 2):
        add(tx, OPS, str(number), over_at=at(number % 7 + (0 if number < 2 else 10)), told={PHONE: (Told.OPEN, 1)})
    add(tx, JOB, "job", over_at=at(0))
    problems.delete_old_problems(tx, timedelta(hours=1))
    assert len(problems.problems_of(tx.db, OPS)) == problems.MAX_KEPT
    assert remaining(tx)[:2] == ["night recent", "ops 2"]
    assert remaining(tx)[-1] == "ops job"
    assert tx.db.execute("select count(*) from problem_notice").fetchone()[0] == problems.MAX_KEPT


def test_open_problems_are_counted_by_severity_and_the_oldest_that_nobody_has_acknowledged_is_found(tx: Transaction) -> None:
    acknowledged = Acknowledgement(at(0), WARNING, "command")
    add(tx, key="a", minute=5), add(tx, key="b", minute=3), add(tx, key="c", severity=CRITICAL, minute=4)
    add(tx, key="info", severity=INFO), add(tx, key="acked", acknowledgement=acknowledged), add(tx, key="over", over_at=at(1))
    add(tx, key="covered", cause=7, opened_at=at(0)), add(tx, key="seen", opened_at=None), add(tx, NIGHT, minute=6)
    counts = {(OPS, "warning", False): 2, (OPS, "critical", False): 1, (OPS, "info", False): 1, (OPS, "warning", True): 1}
    assert problems.count_open(tx.db) == counts | {(NIGHT, "warning", False): 1}
    assert problems.oldest_unacknowledged(tx.db) == {OPS: at(3), NIGHT: at(6)}


def test_the_interval_of_reminders_begins_with_the_last_part_of_a_delayed_message(tx: Transaction) -> None:
    about = Origin(1, "heartbeat", "ops", "manual", EIGHT)
    hold = outbox.Hold((), at(60))
    (last,) = outbox.queue_notice(tx, {}, about, "opened p1", "x", (PHONE,), hold=hold).values()
    saved = add(tx, told={PHONE: (Told.OPEN, last), MAIL: (Told.OPEN, last + 1)})
    held = replace(outbox.whole_message(tx.db, outbox.get_message(tx.db, last)), ids=(last + 1, last))
    tx.now = at(60)
    problems.renew_notice(tx, held)
    told = tx.db.execute("select channel, told_at from problem_notice where problem_id = ? order by channel desc", (saved.id,))
    assert [tuple(row) for row in told.fetchall()] == [("phone", to_millis(at(60))), ("mail", to_millis(at(0)))]
