"""Carries out a person's reply to a message: `done`, `later` or a time need no model. Any other text wakes the agent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from heartbeatd.operations import parse_span
from heartbeatd.verbs import CloseProblem, Wake
from scheduler.engine.ask_people import answer_question
from scheduler.engine.delivery import open_problems_in
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.tick_items import Refused, Tick
from scheduler.extras.chat.buttons import NO_PROBLEM, is_from_its_chat, use_once
from scheduler.extras.chat.telegram_buttons import Reply, bot_of
from scheduler.model import wake as wakes_of_agents
from scheduler.model.entry import JobEntry
from scheduler.model.events import ButtonPressed
from scheduler.model.local_days import WEEKDAYS, local_text
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.settings import Target
from scheduler.store import asked_questions, outbox, wakes
from scheduler.store.outbox import HeldMessage, Hold, OutboxMessage

LATER = timedelta(hours=1)
MORNING = (9, 0)  # of a day without a time
DONE = ("done", "close")
MOST_QUOTED = 1000  # characters of the message that a reply answers: its own text, and further replies, need the room of the wake

_TIME = re.compile(r"([01]?\d|2[0-3])(?::([0-5]\d))?")


def parse_when(text: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """The time that a reply names: `later`, `later 2h`, `30m`, `tomorrow`, `tomorrow 9`, `mon 8:30`, `18:00`; else None.

    A time is local. Without a day, it is the next one. A day without a time means 9 in the morning.
    """
    words = [word for word in text.casefold().rstrip(".!").split() if word not in ("at", "in")]
    if words[:1] == ["later"]:
        return now + LATER if len(words) == 1 else _after_span(words[1:], now)
    local = now.astimezone(zone)
    days = _days_ahead(words[0], local.weekday()) if words else None
    if days is not None and len(words) <= 2:
        clock = _parse_clock(words[1]) if len(words) == 2 else MORNING
        return clock and _at(local, days, clock)
    if len(words) == 1 and ":" in words[0] and (clock := _parse_clock(words[0])):
        at = _at(local, 0, clock)
        return at if at > now else _at(local, 1, clock)
    return _after_span(words, now)


def _after_span(words: list[str], now: datetime) -> datetime | None:
    try:
        return now + parse_span(words[0]) if len(words) == 1 else None
    except (ValueError, OverflowError):
        return None


def _days_ahead(word: str, today: int) -> int | None:
    if word == "tomorrow":
        return 1
    day = next((number for number, name in enumerate(WEEKDAYS) if len(word) >= 3 and name.startswith(word)), None)
    return None if day is None else (day - today - 1) % 7 + 1


def _parse_clock(word: str) -> tuple[int, int] | None:
    found = _TIME.fullmatch(word)
    return (int(found[1]), int(found[2] or 0)) if found else None


def _at(local: datetime, days: int, clock: tuple[int, int]) -> datetime:
    day = local.date() + timedelta(days=days)
    return datetime(day.year, day.month, day.day, *clock, tzinfo=local.tzinfo).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class ReplyToMessage:
    """Carry out a reply. `channel` is one that has the bot."""

    channel: str
    reply: Reply

    def __call__(self, tick: Tick) -> str:
        """The answer to the person, or an empty text.

        Only a reply to a message of ours, by a person whom its channel allows, has an effect, and only once.
        """
        message = self._find_message(tick)
        if message is None:
            return ""  # it may be meant for another program
        channel = tick.plan.settings.channels[message.channel]
        question = asked_questions.question_of_notice(tick.tx.db, message.notice)
        if not self.reply.people & {*((question and question.people) or channel.people)}:
            self._report(tick, message, "not_allowed")
            return "Only the people of this channel may answer its messages."
        if not use_once(tick, message, f"reply {self.reply.number}"):
            return ""
        try:
            person = self.reply.sender_on(message.channel)
            if question:
                says = answer_question(tick, question.id, self.reply.text.rstrip(".!"), person).course
            else:
                says = self._act(tick, message, Sender(person))
        except Refused as refused:
            self._report(tick, message, "failed")
            return str(refused)
        self._report(tick, message, "applied")
        return says

    def _find_message(self, tick: Tick) -> OutboxMessage | None:
        """The message that is answered. Two bots may have messages with the same number."""
        channels = tick.plan.settings.channels
        asked = channels.get(self.channel)
        for message in outbox.messages_with_receipt(tick.tx.db, self.reply.to):
            channel = channels.get(message.channel)
            is_ours = channel is not None and asked is not None and channel.people and bot_of(channel) == bot_of(asked)
            if is_ours and channel is not None and is_from_its_chat(self.reply, channel, message):
                return message
        return None

    def _act(self, tick: Tick, message: OutboxMessage, person: Sender) -> str:
        whole, text = outbox.whole_message(tick.tx.db, message), self.reply.text
        if text.casefold().rstrip(".!") in DONE:
            return self._close(tick, whole, person)
        zone = tick.plan.settings.zone
        at = parse_when(text, tick.now, zone)
        if at is not None:
            return self._send_again(tick, message, whole, at)
        agent = _agent_of(tick, message)
        when = local_text(message.created_at, zone)
        quoted = whole.text if len(whole.text) <= MOST_QUOTED else f"{whole.text[:MOST_QUOTED]}…"
        told = f"Answer of {self.reply.user}: {text}\n\nIt answers this message of {when}:\n{quoted}"
        waiting = wakes.find_wake_of_sender(tick.tx, wakes_of_agents.Wake(agent, Trigger.MANUAL, person.name))
        told = f"{waiting.text}\n\n{told}" if waiting else told  # a wake has only the latest text of its sender
        if len(told.encode(errors="replace")) > wakes_of_agents.TEXT_LIMIT:
            before = ", together with your replies that the agent has not read yet" if waiting else ""
            raise Refused("bad_request", f"this reply is too long{before}, and was not passed on; shorten it, or write it later")
        return VerbRequest(Wake(text=told), (Kind.HEARTBEAT, agent), person)(tick).says

    def _close(self, tick: Tick, whole: HeldMessage, person: Sender) -> str:
        found = open_problems_in(tick.tx.db, whole)
        if not found:
            raise Refused("not_found", NO_PROBLEM)
        return "; ".join(VerbRequest(CloseProblem(), each.id, person)(tick).says for each in found)

    def _send_again(self, tick: Tick, message: OutboxMessage, whole: HeldMessage, at: datetime) -> str:
        """Send a message once more at a time, unless what it says is over, closed or acknowledged by then."""
        if at > tick.now + wakes_of_agents.LONGEST_REMINDER:
            raise Refused("bad_request", "write a time within the next 90 days")
        when, target = local_text(at, tick.plan.settings.zone), Target(message.channel, message.recipient)
        notice = f"again {whole.first_sent_id} after reply {self.reply.number}"
        channels = tick.plan.settings.channels
        again = outbox.queue_notice(tick.tx, channels, message.origin, notice, whole.text, (target,), message.title)[target]
        queued = outbox.whole_message(tick.tx.db, outbox.get_message(tick.tx.db, again))
        note = f"waits until {when}, as {self.reply.user} has asked"
        outbox.hold_message(tick.tx, queued, Hold((), at), note)
        return f"this message is sent again at {when}"

    def _report(self, tick: Tick, message: OutboxMessage, result: str) -> None:
        tick.tx.report(ButtonPressed(message.channel, "Reply", result, self.reply.user, message.name))


def _agent_of(tick: Tick, message: OutboxMessage) -> str:
    """The agent that a reply wakes: the one that wrote the message, or that its job calls or wakes. Raises Refused."""
    if message.kind == Kind.HEARTBEAT:
        return message.name
    job = tick.plan.entries.get((Kind.CRON, message.name)) if message.kind == Kind.CRON else None
    names = [job.lane, *job.spec.wake_heartbeat] if isinstance(job, JobEntry) else []
    agent = next((name for name in names if name and (Kind.HEARTBEAT, name) in tick.plan.entries), None)
    if agent is None:
        raise Refused("not_found", "no agent belongs to this message; write done, later, or a time such as tomorrow 9")
    return agent
