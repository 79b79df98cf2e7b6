"""Messages in the database, with two of everything: channels, recipients, parts, notifications and agents."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from heartbeat_specs import AGENT
from world import utc

from scheduler.model.entry import Claim, HeartbeatEntry, OpenRun
from scheduler.model.outcome import DeliveryState, Trigger
from scheduler.model.settings import Target
from scheduler.model.timestamps import from_millis, to_optional_millis
from scheduler.store import outbox
from scheduler.store.rows import insert_new
from scheduler.store.transaction import Transaction

EIGHT = utc("2026-03-02 08:00")
DELIVERED, DEAD, DROPPED, HELD, PENDING, UNCERTAIN = (
    DeliveryState(word) for word in ("delivered", "dead", "dropped", "held", "pending", "uncertain")
)
KEYS = count()
OPS = HeartbeatEntry(AGENT)
PHONE, MAIL = Target("phone"), Target("mail")


def at(minutes: float) -> datetime:
    return EIGHT + timedelta(minutes=minutes)


def add(
    tx: Transaction, channel: str = "phone", whom: str = "", run: int = 1, name: str = "ops", kind: str = "heartbeat",
    part: int = 1, parts: int = 1, notice: str | None = None, state: DeliveryState = PENDING, minute: float = 0, text: str = "",
    **more: Any,
) -> int:  # fmt: skip
    """Add a message that was queued, and is due, at this minute."""
    row = {
        "key": str(next(KEYS)), "channel": channel, "whom": whom, "run_id": run, "kind": kind, "name": name, "trigger": "manual",
        "slot": EIGHT, "part": part, "parts": parts, "title": name, "text": text or f"{channel} {part}", "notice": notice,
        "state": state, "not_before": at(minute), "created_at": at(minute),
    }  # fmt: skip
    found = insert_new(tx.db, "outbox", row | more)
    assert found is not None
    return found


def claimed(tx: Transaction, at_once: int = 9, share: int = 9, **busy: int) -> list[int]:
    return [each.id for each in outbox.claim_due_messages(tx, at_once, share, Counter(busy))]


def claim_of(run: int) -> Claim:
    return Claim(OPS, OpenRun(run, "running", at(run), Trigger.MANUAL, 1, 0, 1, "boot1", at(run)))


def test_a_part_waits_only_for_earlier_parts_of_the_same_message_in_the_same_channel(tx: Transaction) -> None:
    for channel, notice, state in (("phone", None, UNCERTAIN), ("mail", None, DELIVERED), ("phone", "opened p1", DEAD)):
        add(tx, channel, notice=notice, state=state, parts=2)
    add(tx, "phone", part=2, parts=2)
    due = [add(tx, "mail", part=2, parts=2), add(tx, "phone", notice="opened p1", part=2, parts=2)]
    add(tx, "phone", run=2, merged_into=1)
    later = add(tx, "phone", run=3, minute=1)
    assert claimed(tx) == due
    tx.now = at(1)
    assert claimed(tx) == [later]


def test_messages_in_progress_count_for_the_share_of_their_channel_and_for_all(tx: Transaction) -> None:
    for run in range(1, 5):
        add(tx, "phone", run=run), add(tx, "mail", run=run)
    assert claimed(tx, at_once=5, share=2, phone=1) == [1, 2, 4]
    assert claimed(tx, at_once=4, share=4, phone=1, mail=2) == [3]
    assert claimed(tx, at_once=9, share=2, phone=2, mail=1) == [6]


def test_hours_begin_for_untried_messages_unless_a_person_has_sent_them(tx: Transaction) -> None:
    begun = [add(tx, awaits="[]", part=1, parts=2), add(tx, awaits="[]", part=2, parts=2)]
    add(tx, run=2, awaits="[]", attempts=1), add(tx, run=3, awaits="[]", hold_note=outbox.SENT_BY_USER)
    add(tx, run=4, awaits='["night"]'), add(tx, run=5, awaits="[]", minute=1), add(tx, run=6, awaits="[]", merged_into=1)
    other = add(tx, notice="opened p1", awaits="[]")
    assert [each.ids for each in outbox.hours_begun(tx.db, EIGHT)] == [tuple(begun), (other,)]
    untried = [add(tx, run=8, parts=2), add(tx, run=8, part=2, parts=2)]
    add(tx, run=9, attempts=1), add(tx, run=10, hold_note=outbox.SENT_BY_USER)
    assert [each.ids for each in outbox.next_untried(tx.db, EIGHT, [])] == [tuple(untried)]


def test_changed_hours_are_found_anew_for_messages_that_wait_for_hours_only(tx: Transaction) -> None:
    moved = add(tx, minute=60, awaits="[]")
    wished = add(tx, run=0, minute=60, awaits="[]", notice="again 7 after reply 8")
    others = [add(tx, run=2, minute=60, awaits='["night"]'), add(tx, run=3, minute=60, awaits="[]", attempts=1)]
    outbox.reconsider_hours(tx)
    due = {row["id"]: from_millis(row["not_before"]) for row in tx.db.execute("select id, not_before from outbox")}
    assert due == {moved: EIGHT} | dict.fromkeys((wished, *others), at(60))


def test_delayed_notifications_are_those_for_agents_and_of_one_job_or_of_all(tx: Transaction) -> None:
    first, second = add(tx, name="backup", awaits='["ops"]', run=1), add(tx, name="sync", awaits='["ops"]', run=2)
    add(tx, name="backup", awaits="[]", run=3)
    assert [each.ids for each in outbox.held_notices(tx.db)] == [(first,), (second,)]
    assert [each.ids for each in outbox.held_notices(tx.db, "sync")] == [(second,)]
    (held,) = outbox.held_notices(tx.db, "backup")
    tx.now = at(90)
    outbox.release_message(tx, held, None)
    assert (outbox.get_message(tx.db, first).created_at, claimed(tx)[0]) == (at(90), first)


def test_texts_that_are_sent_together_arrive_with_the_common_message(tx: Transaction) -> None:
    parts = [add(tx, part=1, parts=2, awaits="[]"), add(tx, part=2, parts=2, awaits="[]")]
    repeated = add(tx, run=0, notice=f"again {parts[1]} after reply 8", awaits="[]")
    other, common = add(tx, run=3), add(tx, run=0, notice="hours", error="busy")
    outbox.record_text(tx, OPS, PHONE, "disk full", parts[1])
    held = outbox.hours_begun(tx.db, EIGHT)
    outbox.merge_held(tx, held, common)
    for number, message in ((1, parts[1]), (2, repeated)):
        tx.db.execute(
            "insert into problem_notice values (?, 'phone', '', 'open', 'warning', 0, '[]', ?, null)", (number, message)
        )
    outbox.merge_held(tx, [held[1]], common)
    found = [row[0] for row in tx.db.execute("select outbox_id from problem_notice order by problem_id")]
    assert found == [common, repeated], "the one that was sent first is known by its own message"
    outbox.record_delivery(tx, outbox.get_message(tx.db, common))
    states = [outbox.find_message(tx.db, each) for each in (*parts, repeated, common, other)]
    assert [each and each[1] for each in states] == [DELIVERED] * 4 + [PENDING]
    assert outbox.get_message(tx.db, common).error is None
    assert outbox.last_message_with_text(tx, OPS, PHONE, "disk full") == common
    outbox.mark_message_dead(tx, outbox.get_message(tx.db, common), "refused")
    outbox.record_run_text(tx, claim_of(8), "disk full", {PHONE: add(tx, run=8, minute=9)})
    found = outbox.find_message(tx.db, common)
    assert (found and found[1]) == DEAD, "it has other texts, too"
    outbox.mark_message_dead(tx, outbox.get_message(tx.db, other), "refused")
    tx.db.execute("update outbox set merged_into = ? where id = ?", (common, other))
    outbox.resend_message(tx, outbox.get_message(tx.db, other))
    assert claimed(tx) == [other]
    assert tx.db.execute("select finished_at from outbox where id = ?", (other,)).fetchone()[0] is None


def test_a_run_has_one_message_for_each_channel(tx: Transaction) -> None:
    queued_for = [
        [*outbox.queue_run_messages(tx, {}, claim_of(1), dict.fromkeys(each, "x"))] for each in ([PHONE], [PHONE, MAIL])
    ]
    assert queued_for == [[PHONE], [MAIL]]
    about, notice = outbox.origin_of_claim(claim_of(1)), "opened p1"
    queued = [outbox.queue_notice(tx, {}, about, notice, "x", (target,))[target] for target in (PHONE, PHONE, MAIL)]
    assert queued[0] == queued[1] != queued[2], "two recipients may have one substitute"


def test_a_message_is_one_text_of_its_parts_in_order_for_each_recipient(tx: Transaction) -> None:
    second = add(tx, part=2, parts=2, whom="1", text="b")
    add(tx, part=1, parts=2, whom="1", text="a"), add(tx, whom="2", text="x"), add(tx, "mail", text="y")
    add(tx, whom="1", notice="opened p1", text="z")
    add(tx, whom="1", notice="opened p2", text="of another problem")
    assert outbox.whole_message(tx.db, outbox.get_message(tx.db, second)).text == "a\nb"
    assert [each.text for each, _ in outbox.messages_of_notice(tx.db, 1, "opened p1")] == ["z"]


def test_the_delay_grows_with_the_tries_unless_the_channel_names_one_and_ends_a_day_after_the_message_was_queued(
    tx: Transaction,
) -> None:
    delays = [outbox.retry_delay(tries) / timedelta(minutes=1) for tries in range(1, 7)]
    assert delays == [1, 5, 30, 120, 120, 120]
    message = replace(outbox.get_message(tx.db, add(tx)), attempts=3)
    for now, wait, state in (
        (0, None, PENDING),
        (1410, None, PENDING),
        (1411, None, DEAD),
        (1411, 29, PENDING),
        (1411, 30, DEAD),
    ):
        tx.now = at(now)
        outbox.resend_message(tx, message)
        outbox.retry_message_later(tx, message, "busy", wait and timedelta(minutes=wait))
        found = outbox.find_message(tx.db, message.id)
        assert (found and found[1]) == state, (now, wait)
        expected = timedelta(minutes=wait or 30)
        if state is PENDING:
            assert outbox.next_pending_at(tx.db) == tx.now + expected


def test_a_message_that_may_have_arrived_is_doubted_since_its_first_doubt_and_expires_only_while_it_is_held(
    tx: Transaction,
) -> None:
    message, uncertain = outbox.get_message(tx.db, add(tx)), add(tx, run=2, state=UNCERTAIN)
    for minute in (1, 2):
        tx.now = at(minute)
        outbox.mark_message_uncertain(tx, message, "timeout", resend=False)
    assert tx.db.execute("select doubted_at from outbox where id = ?", (message.id,)).fetchone()[0] == to_optional_millis(at(1))
    tx.now = at(1441)
    outbox.expire_held_messages(tx)
    states = [outbox.find_message(tx.db, each) for each in (message.id, uncertain)]
    assert [each and each[1] for each in states] == [DEAD, UNCERTAIN]


def test_what_was_said_is_found_by_channel_or_recipient_in_the_order_of_its_arrival(tx: Transaction) -> None:
    arrived = {"state": DELIVERED}
    for whom, finished in (("1", 9), ("2", 5), ("1", 7)):
        add(tx, whom=whom, text=f"phone:{whom} {finished}", finished_at=at(finished), **arrived)
    add(tx, "mail", text="mail 8", finished_at=at(8), **arrived)
    own = add(tx, run=0, text="common", finished_at=at(6), **arrived)
    add(tx, text="merged", merged_into=own, finished_at=at(6), **arrived)
    foreign = add(tx, name="night", run=0, text="of two agents", finished_at=at(4), **arrived)
    add(tx, text="own part", merged_into=foreign, finished_at=at(4), **arrived)
    add(tx, text="pending"), add(tx, kind="cron", text="of a job", finished_at=at(3), **arrived)
    said = {to: [each.text for each in outbox.said_by(tx.db, "ops", to, 9)] for to in (None, "mail", "phone", "phone:2")}
    phone = ["phone:1 9", "phone:1 7", "common", "phone:2 5", "own part"]
    assert said == {None: [phone[0], "mail 8", *phone[1:]], "mail": ["mail 8"], "phone": phone, "phone:2": ["phone:2 5"]}
    targets = (Target("phone", "1"), Target("phone", "2"))
    assert [outbox.was_delivered_since(tx.db, target, at(6)) for target in targets] == [True, False]


def test_a_backlog_counts_messages_and_held_texts_of_each_channel(tx: Transaction) -> None:
    add(tx, minute=5), add(tx, run=2, minute=3, state=HELD), add(tx, run=3, minute=1, awaits="[]", parts=2)
    add(tx, run=3, part=2, parts=2, minute=1, awaits="[]"), add(tx, run=4, state=DEAD, minute=0), add(tx, "mail", minute=7)
    add(tx, run=5, minute=0, awaits="[]", merged_into=1), add(tx, run=6, minute=0, awaits='["night"]')
    backlogs = {each.channel: (each.pending, each.dead, each.oldest_at) for each in outbox.unfinished_by_channel(tx.db)}
    assert backlogs == {"phone": (2, 1, at(3)), "mail": (1, 0, at(7))}
    assert [(each.channel, each.count, each.next_at) for each in outbox.held_by_channel(tx.db)] == [("phone", 1, at(1))]


def test_what_became_of_a_message_is_that_of_all_its_parts_in_each_channel(tx: Transaction) -> None:
    common = {"parts": 2, "whom": "1"}
    add(tx, state=DELIVERED, attempts=3, error="slow", finished_at=at(1), **common)
    add(tx, part=2, state=PENDING, attempts=1, error="busy", **common)
    add(tx, "mail", parts=2, state=DELIVERED, attempts=1, finished_at=at(2))
    add(tx, "mail", part=2, parts=2, state=DELIVERED, attempts=4, error="slow", finished_at=at(3), doubted_at=at(2))
    add(tx, "mail", run=2, state=DEAD), add(tx, run=1, notice="opened p1", state=DEAD), add(tx, "fax", state=DEAD)
    phone, mail, fax = outbox.deliveries_of_runs(tx.db, [1])[1]
    assert (phone.target, phone.state, phone.tries, phone.error) == (Target("phone", "1"), DeliveryState.PARTIAL, 3, "busy")
    assert (phone.is_pending, phone.delivered_at, phone.doubted) == (True, None, False)
    assert (mail.state, mail.tries, mail.error, mail.is_pending) == (DELIVERED, 4, None, False)
    assert (mail.delivered_at, mail.doubted, fax.is_lost) == (at(3), True, True)


def test_a_lost_message_counts_until_a_later_one_of_its_kind_reaches_the_same_recipient(tx: Transaction) -> None:
    lost = {"whom": "1", "state": DEAD}
    for agent, later in (
        ("before", None), ("other recipient", {"whom": "2"}), ("other channel", {"channel": "mail"}), ("notice", {"notice": "x"}),
        ("on its way", {"state": PENDING, "attempts": 0}), ("arrived", {}),
    ):  # fmt: skip
        earlier = add(tx, name=agent, whom="1", state=DELIVERED)
        add(tx, name=agent, run=2, **lost)
        if later is not None:
            add(tx, **{"name": agent, "run": 3, "whom": "1", "state": DELIVERED} | later)
        assert earlier
    found = {name: each.state for (_, name), each in outbox.undelivered_by_entry(tx.db, EIGHT).items()}
    assert found == dict.fromkeys(("before", "other recipient", "other channel", "notice", "on its way"), DEAD)


def test_of_the_undelivered_messages_of_an_entry_the_worst_and_latest_is_shown_once_it_takes_too_long(tx: Transaction) -> None:
    for agent, state, more in (
        ("a", PENDING, {"attempts": 2}), ("a", HELD, {"channel": "mail"}), ("a", DEAD, {"notice": "x"}),
        ("b", DEAD, {}), ("b", DEAD, {"channel": "mail"}), ("tried", PENDING, {"attempts": 2}), ("error", PENDING, {"error": "x"}),
        ("new", PENDING, {}), ("old", PENDING, {"minute": -1}), ("hours", PENDING, {"awaits": "[]", "minute": -60}),
    ):  # fmt: skip
        add(tx, **{"name": agent, "state": state} | more)
    found = {name: (each.state, each.channel) for (_, name), each in outbox.undelivered_by_entry(tx.db, EIGHT).items()}
    late = dict.fromkeys(("tried", "error", "old"), (PENDING, "phone"))
    assert found == {"a": (HELD, "mail"), "b": (DEAD, "mail")} | late


def test_a_text_is_a_duplicate_for_the_recipient_and_entry_that_got_it_while_its_message_is_on_its_way_or_its_window_lasts(
    tx: Transaction,
) -> None:
    others = (Target("phone", "2"), Target("mail", "1"))
    known, job = Target("phone", "1"), replace(OPS, spec=replace(AGENT, name="night"))
    message = add(tx, whom="1")
    outbox.record_text(tx, OPS, known, "disk full", message)
    outbox.record_text(tx, OPS, others[1], "other text", message)
    new = lambda entry=OPS: outbox.targets_without_text(tx, entry, "disk full", (known, *others))  # noqa: E731
    assert (new(), new(job), outbox.count_recent_texts(tx.db, *OPS.key, EIGHT)) == (others, (known, *others), 2)
    tx.now = EIGHT + AGENT.dedup_window
    for state, is_known in ((PENDING, True), (UNCERTAIN, True), (HELD, False), (DELIVERED, False)):
        tx.db.execute("update outbox set state = ? where id = ?", (state, message))
        assert (known not in new()) is is_known, state
    outbox.record_delivery(tx, outbox.get_message(tx.db, message))
    assert known not in new(), "the window begins with the delivery"
    for end in (outbox.drop_message, outbox.mark_message_dead):
        outbox.record_text(tx, OPS, known, "disk full", message)
        end(tx, outbox.get_message(tx.db, message), "refused")
        assert new() == (known, *others)
    outbox.record_text(tx, OPS, PHONE, "disk full", message)
    outbox.record_text(tx, OPS, MAIL, "disk full", message)
    assert outbox.count_recent_texts(tx.db, *OPS.key, tx.now) == 1


def test_the_window_of_a_long_text_begins_only_if_all_its_parts_have_arrived(tx: Transaction) -> None:
    for run, (state, begins) in enumerate(((DROPPED, False), (DEAD, False), (DELIVERED, True))):
        add(tx, run=run, parts=2, state=state)
        last = add(tx, run=run, part=2, parts=2)
        outbox.record_text(tx, OPS, PHONE, state, last)
        tx.db.execute("update digest set until_at = 0 where outbox_id = ?", (last,))
        outbox.record_delivery(tx, outbox.get_message(tx.db, last))
        assert (outbox.targets_without_text(tx, OPS, state, (PHONE,)) == ()) is begins, state


def test_messages_on_their_way_are_listed_before_those_that_were_given_up_and_those_of_chats_the_newest_first(
    tx: Transaction,
) -> None:
    ids = [add(tx, state=DEAD), add(tx, run=2, receipt="5"), add(tx, run=3, state=DEAD), add(tx, run=4, state=HELD, receipt="5")]
    add(tx, run=5, merged_into=ids[1])
    assert [each.id for each in outbox.list_messages(tx.db)] == [5, 4, 2, 3, 1]
    assert outbox.movable_messages(tx.db) == ids
    assert [each.id for each in outbox.messages_with_receipt(tx.db, "5")] == [4, 2]
