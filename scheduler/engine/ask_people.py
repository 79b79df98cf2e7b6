"""Asks people for a run, and records their answers. The time in which a run waits does not count for its timeout."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from heartbeat.spec import Ask
from heartbeat.words import format_duration, shorten
from heartbeatd import verbs
from heartbeatd.answers import PersonQuestion
from scheduler.config.file.message_parts import join_with_or
from scheduler.engine.pending_runs import recorded_run
from scheduler.engine.tick_items import Refused, Tick
from scheduler.model.events import QuestionMoved
from scheduler.model.local_days import local_text
from scheduler.model.outcome import DeliveryState, Kind
from scheduler.model.settings import Target
from scheduler.store import asked_questions, outbox, runs
from scheduler.store.outbox import Origin

MAX_OPEN = 5  # questions of a run that wait at the same time
MAX_ASKED = 50  # questions of a run in all
LONGEST_WAIT = timedelta(hours=24)
MAX_QUOTED = 100  # characters of a question in the message about its end


def ask_person(tick: Tick, run_id: int, verb: verbs.Ask, asked_by: str) -> PersonQuestion:
    """The question, which is sent unless the run has asked it before. Raises Refused.

    A further attempt of a run gets the question of the attempt before it, and its answer.
    """
    origin, fence = _asking_run(tick, run_id)
    ask = _who_answers(tick, origin)
    wait = verb.timeout or ask.timeout
    if wait > LONGEST_WAIT:
        raise Refused("bad_request", f"timeout: at most {format_duration(LONGEST_WAIT)}")
    text, key = verb.text.replace("\0", "").strip(), verb.key or secrets.token_hex(8)
    known = asked_questions.asked_before(tick.tx, run_id, key, fence, text, verb.options)
    if known is not None and (known.text, known.options) != (text, verb.options):
        raise Refused("key_used", f"key: this run has asked another question with the key {key!r}; choose another key")
    if known is not None:
        tick.waiting[run_id] = asked_questions.waits_for_person(tick.tx.db, run_id)
        return known
    if len(asked_questions.open_questions(tick.tx.db, run_id)) >= MAX_OPEN:
        raise Refused("too_many_questions", f"run {run_id} waits for {MAX_OPEN} answers already")
    if len(asked_questions.questions_of_run(tick.tx.db, run_id)) >= MAX_ASKED:
        raise Refused("too_many_questions", f"run {run_id} has asked {MAX_ASKED} questions already")
    asked = asked_questions.add_question(
        tick.tx, run_id, (Kind(origin.kind), origin.name), key, fence, text, verb.options, ask.people, asked_by, tick.now + wait
    )
    until = local_text(asked.until, tick.plan.settings.zone)
    command = f"heartbeatd answer {asked.id} {asked.options[0]}"
    channels = tick.plan.settings.channels
    for name in ask.to:
        where = "here or with" if channels[name].can_be_answered else "with"
        choice = f"Answer {join_with_or(tuple(asked.options))} until {until}, {where} `{command}`."
        message = f"{text}\n\n{choice} No answer means no."
        outbox.queue_notice(tick.tx, channels, origin, f"{asked_questions.NOTICE}{asked.id}", message, (Target(name),))
    tick.waiting[run_id] = True
    tick.tx.report(QuestionMoved(asked.id, run_id, Kind(asked.kind), asked.name, "asked", asked_by))
    return asked


def _asking_run(tick: Tick, run_id: int) -> tuple[Origin, int]:
    """The run that asks, with the number of its attempt. Raises Refused if it has ended, or if its time cannot be stopped."""
    found = runs.find_open_run_by_id(tick.tx.db, run_id)
    if found is not None and found[2].state == "running" and not found[2].is_cancelled:
        kind, name, run = found
        if tick.plan.settings.remote is not None:
            raise Refused("on_worker", "the runs of workers cannot wait for people, because a worker measures their timeout")
        return Origin(run_id, kind, name, run.trigger, run.slot), run.fence
    awaited, record = runs.find_awaited_result(tick.tx.db, run_id), recorded_run(tick, run_id)
    if awaited is None or awaited.due_at is None:
        raise Refused("closed", f"run {run_id} is not in progress, so nothing would wait for the answer")
    return Origin(run_id, *awaited.key, record.trigger, awaited.slot), 0


def _who_answers(tick: Tick, origin: Origin) -> Ask:
    """Whom the entry asks; for a job, else whom its agent asks. Raises Refused."""
    entry = tick.plan.entries.get((Kind(origin.kind), origin.name))
    agent = tick.plan.entries.get((Kind.HEARTBEAT, entry.lane)) if entry and entry.lane else None
    found: Ask | None = (entry and entry.spec.ask) or (agent and agent.spec.ask) or None
    if found is None:
        raise Refused(
            "nobody_to_ask", f"nobody answers the questions of {Kind(origin.kind).label_of(origin.name)}; write ask: CHANNEL"
        )
    return found


def answer_question(tick: Tick, number: int, answer: str, by: str) -> PersonQuestion:
    """The answered question. Raises Refused if it has ended, or has no such option."""
    question = asked_questions.find_question(tick.tx.db, number)
    if question is None:
        raise Refused("not_found", f"no question {number}; `heartbeatd status` lists those that wait")
    if question.state != "open":
        raise Refused("closed", f"question {number} has ended: {question.course}")
    if question.until <= tick.now:
        raise Refused("closed", f"question {number} has ended: {_why_over(tick, question)}")
    chosen = next((each for each in question.options if each.casefold() == answer.strip().casefold()), None)
    if chosen is None:
        raise Refused("bad_request", f"answer: write {join_with_or(tuple(question.options))}")
    return _close(tick, question, answer=chosen, by=by)


def end_overdue(tick: Tick) -> datetime | None:
    """End the questions whose time is over or whose run has ended. Returns when the time of the next one is over."""
    if asked_questions.next_end_at(tick.tx.db) is None:
        return None
    for question in asked_questions.questions_over(tick.tx.db, tick.now):
        _close(tick, question, why=_why_over(tick, question))
    return asked_questions.next_end_at(tick.tx.db)


def _why_over(tick: Tick, question: PersonQuestion) -> str:
    if question.until <= tick.now:
        return f"nobody answered within {format_duration(question.until - question.asked_at)}"
    return f"run {question.run} has ended"


def _close(
    tick: Tick, question: PersonQuestion, *, answer: str | None = None, by: str | None = None, why: str | None = None
) -> PersonQuestion:
    """Record the end of a question, and say it to those who were asked. An unsent question is dropped."""
    asked_questions.close_question(tick.tx, question.id, answer=answer, by=by, why=why)
    tick.waiting[question.run] = asked_questions.waits_for_person(tick.tx.db, question.run)
    closed = asked_questions.find_question(tick.tx.db, question.id)
    assert closed is not None
    told: list[Target] = []
    for message, state in outbox.messages_of_notice(tick.tx.db, question.run, f"{asked_questions.NOTICE}{question.id}"):
        if state is DeliveryState.PENDING and not message.doubted:
            outbox.drop_message(tick.tx, message, "the question has ended")
        elif message.target not in told:
            told.append(message.target)
            text = f"{shorten(question.text, MAX_QUOTED)}: {closed.course}"
            notice = f"{asked_questions.NOTICE}{question.id} has ended"
            outbox.queue_notice(tick.tx, tick.plan.settings.channels, message.origin, notice, text, (message.target,))
    tick.tx.report(QuestionMoved(question.id, question.run, Kind(question.kind), question.name, closed.state, by))
    return closed
