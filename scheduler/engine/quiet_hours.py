"""Holds messages outside of the hours of their recipient (`hours` in `deliver`), and sends them together when the hours begin."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from heartbeat.hours import first_open
from heartbeat.spec import DeliverHours
from heartbeat.words import format_count
from scheduler.engine.tick_items import Tick
from scheduler.model.entry import Entry
from scheduler.model.local_days import local_text
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.problem import DAEMON, EndedBy, Subject
from scheduler.model.settings import LAST_TARGET, Target
from scheduler.store import outbox, problems
from scheduler.store.outbox import NO_RUN, HeldMessage, Origin
from scheduler.store.questions import NOTICE as QUESTION

# The first line of what a message says about a problem ends with its number (notices.problem_text).
NUMBER_OF_PROBLEM = re.compile(r"   p(\d+)$")

HELD = "held until "  # begins the name of the notice with what was held


def hold_and_release(tick: Tick) -> None:
    """Hold the due messages whose recipient has closed hours, and release those whose hours have begun. Called in each tick.

    Messages are decided on when they are due, so this holds for every message, however it was queued. Hours that have begun may
    be over again: the machine may have been suspended, or the daemon down.
    """
    waiting, begun = outbox.due_for_hours(tick.tx.db, tick.now)
    held: list[HeldMessage] = []
    for message in (*waiting, *begun) if tick.plan.has_deliver_hours else ():
        opens_at = _opens_at(tick, message)
        if opens_at is not None and opens_at > tick.now:
            note = f"waits until {local_text(opens_at, tick.plan.settings.zone)}, when the hours of the recipient begin"
            outbox.hold_for_hours(tick.tx, message, opens_at, note)
            held.append(message)
    released = [message for message in begun if message not in held]
    for target in dict.fromkeys(message.target for message in released):
        _release(tick, target, [message for message in released if message.target == target])


def _opens_at(tick: Tick, message: HeldMessage) -> datetime | None:
    """When the hours of its recipient begin, which is now if they have begun. None: it is sent at any time.

    A message about a provider or the daemon goes to the recipients of many entries. It is held if all that have this recipient
    have hours, until the first of them begin. The message with what was held is sent, one that a person wants at this time, and a
    question, because a run waits for its answer.
    """
    notice = message.notice or ""
    if notice.startswith((HELD, QUESTION)) or outbox.REPEATS.match(notice):
        return None
    entry = tick.plan.entries.get((Kind(message.kind), message.name)) if message.kind in tuple(Kind) else None
    chosen: list[Sequence[DeliverHours]]
    if entry is not None:
        chosen = [entry.spec.deliver_hours if message.notice is None else entry.spec.problems_hours]
    else:
        chosen = [hours for each in tick.plan.entries.values() for hours in _hours_of_recipient(each, message.target)]
    declared = [[hours for hours in some if _is_for(hours.channel, message.target)] for some in chosen]
    if not declared or not all(declared):
        return None
    found = [hours for some in declared for hours in some]
    if any(each.critical_always for each in found) and problems.is_about_critical(tick.tx.db, message.last_id):
        return None
    return min((at for each in found if (at := first_open(each.hours, tick.now)) is not None), default=None)


def _hours_of_recipient(entry: Entry, target: Target) -> Iterator[Sequence[DeliverHours]]:
    """The hours in `deliver` and in `problems.deliver`, of each of them that names this recipient."""
    for names, hours in ((entry.deliver, entry.spec.deliver_hours), (entry.problem_rule.deliver, entry.spec.problems_hours)):
        if any(_is_for(name, target) for name in names):
            yield hours


def _is_for(name: str, target: Target) -> bool:
    return name == (LAST_TARGET if target.recipient else target.channel)


def _release(tick: Tick, target: Target, held: Sequence[HeldMessage]) -> None:
    """Send the held messages of a recipient, as one message if there are several. What is no longer news is left out."""
    texts = {message: "\n".join(_news_lines(tick, message)).strip() for message in held}
    for message in [each for each in held if not texts[each]]:
        outbox.drop_held(tick.tx, message, "not sent: what it says was over, closed or acknowledged before the hours began")
    kept = [message for message in held if texts[message]]
    if len(kept) == 1 and texts[kept[0]] == kept[0].text:
        outbox.release_held(tick.tx, kept[0])
    elif kept:
        _send_together(tick, target, kept, [texts[message] for message in kept])


def _send_together(tick: Tick, target: Target, kept: Sequence[HeldMessage], texts: Sequence[str]) -> None:
    """Queue one message with these texts. One of several entries is a message of the daemon, which few tokens may see."""
    zone = tick.plan.settings.zone
    entries = {(each.kind, each.name) for each in kept}
    subject, title = (Subject.of_daemon()[:2], DAEMON) if len(entries) > 1 else (next(iter(entries)), None)
    names = (
        "" if NUMBER_OF_PROBLEM.search(text.splitlines()[0]) else f"{each.name}: " for each, text in zip(kept, texts, strict=True)
    )
    parts = [
        f"{each.created_at.astimezone(zone):%H:%M} {name}{text}" for each, name, text in zip(kept, names, texts, strict=True)
    ]
    first = f"{format_count(len(kept), 'message')} since {kept[0].created_at.astimezone(zone):%H:%M}:"
    about = Origin(NO_RUN, *subject, Trigger.MANUAL, tick.now)
    notice = f"{HELD}{tick.now:%Y-%m-%d %H:%M:%S}{f' to {target.recipient}' if target.recipient else ''}"
    text = "\n\n".join((first, *parts))
    queued = outbox.queue_notice(tick.tx, tick.plan.settings.channels, about, notice, text, (target,), title)[target]
    outbox.merge_held(tick.tx, kept, queued)


def _news_lines(tick: Tick, message: HeldMessage) -> Iterator[str]:
    """The lines of a message, without those about problems of which a later message says more, or nothing is to be said."""
    is_news = True
    for line in message.text.splitlines():
        found = NUMBER_OF_PROBLEM.search(line)
        if found:
            is_news = _is_news(tick, message, line, int(found[1]))
        elif not line.strip():
            is_news = True  # the text without a key begins after an empty line
        if is_news:
            yield line


def _is_news(tick: Tick, message: HeldMessage, line: str, number: int) -> bool:
    problem = problems.get_problem(tick.tx.db, number)
    if problem is None or f" {problem.subject} {problem.label}: " not in line:
        return True  # the line only looks like one about a problem
    is_last = any(last.message_id == message.first_sent_id for last in problem.notices.values())
    return is_last and not problem.is_acknowledged and problem.ended_by is not EndedBy.USER
