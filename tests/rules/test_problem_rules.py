"""The rules of problems, as tables: what happens to a subject, minute by minute, and what each recipient gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from heartbeat.findings import Severity
from scheduler.engine.problem_rules import News, after_end, after_removal, after_symptom, news_of
from scheduler.engine.reported_problems import answers_to_close
from scheduler.model.problem import Acknowledgement, Evidence, Problem, State, Subject, Symptom
from scheduler.model.settings import Target

START = datetime(2026, 3, 2, 8, tzinfo=UTC)
OPS = Subject("heartbeat", "ops")
A, B = Target("a"), Target("b")
DAY = timedelta(hours=24)
INFO, WARNING, CRITICAL = Severity

Look = tuple[float, str]
"""When a subject is looked at, in hours, and what is found: a severity and an error, a cause, or `works`."""


def _finding(said: str) -> Symptom:
    severity, _, fault = said.partition(" ")
    cause = 7 if fault == "because of p7" else None
    return Symptom("failed", Severity(severity), fault, "exit", fault, cause)


def after_news(problem: Problem, news: Iterable[News]) -> Problem:
    """The problem with what its recipients know after these messages."""
    return replace(problem, notices={**problem.notices, **{each.target: each.known for each in news}})


def played(looks: Sequence[Look], recipients: Sequence[Target] = (A,), after: int = 1, remind: timedelta = DAY) -> list[str]:
    """The messages of a problem: the hour, what it says, and to whom if there are several recipients."""
    problem: Problem | None = None
    sent: list[str] = []
    for hour, said in looks:
        now = START + timedelta(hours=hour)
        count = 1 if problem is None or problem.over_at is not None else problem.count + 1
        if said == "works":
            problem = after_end(problem, now) if problem else None
        else:
            problem = after_symptom(problem, OPS, _finding(said), now, opens=count >= after)
        if problem is None:
            continue
        news = news_of(problem, recipients, remind, now)
        sent += [_described(hour, each, recipients) for each in news if each.change]
        problem = after_news(problem, news)
    return sent


def _described(hour: float, news: News, recipients: Sequence[Target]) -> str:
    return f"{hour:g} {news.change}" + (f" to {news.target.channel}" if len(recipients) > 1 else "")


OPENINGS: Sequence[Look] = [(0, "warning x"), (1, "works"), (2, "warning x"), (3, "works"), (4, "warning x")]


def test_each_rule_of_problems_decides_which_messages_are_sent() -> None:
    table: list[tuple[str, Sequence[Look], list[str]]] = [
        ("it opens, and is over", [(0, "warning x"), (1, "warning x"), (2, "works"), (3, "works")], ["0 opened", "2 over"]),
        ("the end is sent however short it was", [(0, "critical x"), (0.01, "works")], ["0 opened", "0.01 over"]),
        ("info is sent once, without reminder and end", [(0, "info x"), (25, "info x"), (50, "info y"), (51, "works")], ["0 opened"]),
        ("a reminder after a day", [(0, "warning x"), (23, "warning x"), (24, "warning x"), (47, "warning x")], ["0 opened", "24 reminder"]),
        ("if it is critical, after six hours", [(0, "critical x"), (5, "critical x"), (6, "critical x")], ["0 opened", "6 reminder"]),
        ("it gets worse", [(0, "info x"), (1, "warning x"), (2, "critical x"), (3, "warning x"), (4, "critical x")],
         ["0 opened", "1 worse", "2 worse"]),
        ("after a reminder of less, it is no worse than once before",
         [(0, "critical x"), (24, "warning x"), (25, "critical x")], ["0 opened", "24 reminder"]),
        ("another error is sent once", [(0, "warning x"), (1, "warning y"), (2, "warning x"), (3, "warning y")], ["0 opened", "1 other"]),
        ("of many errors, five are sent", [(each / 10, f"warning {each}") for each in range(20)],
         ["0 opened", "0.1 other", "0.2 other", "0.3 other", "0.4 other"]),
        ("the third opening in a day is unstable, then nothing is sent", [*OPENINGS, (5, "works"), (6, "warning x"), (7, "works")],
         ["0 opened", "1 over", "2 opened", "3 over", "4 unstable"]),
        ("unless it gets worse", [*OPENINGS, (5, "critical x")], ["0 opened", "1 over", "2 opened", "3 over", "4 unstable", "5 worse"]),
        ("its end is sent when it is stable", [*OPENINGS, (5, "works"), (23.9, "works"), (24, "works"), (25, "works")],
         ["0 opened", "1 over", "2 opened", "3 over", "4 unstable", "24 over"]),
        ("three openings in more than a day are not unstable", [(0, "warning x"), (1, "works"), (12, "warning x"), (13, "works"), (24, "warning x")],
         ["0 opened", "1 over", "12 opened", "13 over", "24 opened"]),
        ("a cause covers it", [(0, "warning because of p7"), (30, "warning because of p7"), (31, "works")], []),
        ("without its cause it is sent at once", [(0, "warning because of p7"), (1, "warning x"), (2, "works")], ["1 opened", "2 over"]),
        ("an opening that a cause covers does not make it unstable",
         [*((hour, "warning because of p7" if hour % 2 else "works") for hour in range(1, 7)), (7, "warning x")], ["7 opened"]),
        ("a known problem with a cause is still over", [(0, "warning x"), (1, "warning because of p7"), (30, "works")], ["0 opened", "30 over"]),
    ]  # fmt: skip
    for rule, looks, messages in table:
        assert played(looks) == messages, rule
    assert played([(0, "critical x"), (1, "critical x")], remind=timedelta(hours=1)) == ["0 opened", "1 reminder"]


def test_a_problem_opens_when_it_was_found_often_enough_in_a_row() -> None:
    looks = [(0, "warning x"), (1, "works"), (2, "warning x"), (3, "warning x"), (4, "works")]
    assert played(looks, after=2) == ["3 opened", "4 over"]
    assert played(looks, after=3) == []


def _known(*recipients: Target, hour: float = 0) -> Problem:
    """An open problem that these recipients were notified of."""
    now = START + timedelta(hours=hour)
    problem = after_symptom(None, OPS, _finding("warning x"), now, opens=True)
    return after_news(problem, news_of(problem, recipients, DAY, now))


def _told(problem: Problem, recipients: Sequence[Target], hour: float) -> list[str]:
    news = news_of(problem, recipients, DAY, START + timedelta(hours=hour))
    return [f"{each.change} to {each.target.channel}" for each in news if each.change]


def test_each_recipient_gets_what_it_does_not_know() -> None:
    known = _known(A)
    assert _told(known, (A, B), 1) == ["opened to b"]
    assert _told(known, (A, B), 24) == ["reminder to a", "opened to b"]
    over = after_end(known, START + timedelta(hours=2))
    assert _told(over, (B,), 2) == ["over to a"]  # who is no recipient any more was notified of the beginning


def test_a_message_that_was_not_delivered_was_not_sent() -> None:
    known = _known(A, B)
    lost = replace(known, notices={**known.notices, A: replace(known.notices[A], is_lost=True)})
    assert _told(lost, (A, B), 1) == ["opened to a"]
    over = after_end(lost, START + timedelta(hours=2))
    assert _told(over, (A, B), 2) == ["over to b"]
    assert after_news(over, news_of(over, (A, B), DAY, START + timedelta(hours=2))).is_settled


def _lost(problem: Problem) -> Problem:
    """The problem after its last message to A was given up."""
    return replace(problem, notices={A: replace(problem.notices[A], is_lost=True)})


def test_what_had_arrived_before_a_lost_message_stays_known() -> None:
    """Which messages follow, if what is sent at hour 1 is lost, and those at hour 0 and 2 arrive."""
    table = [
        (("warning x", "critical x", "info x"), "warning x", []),  # a rise only above what has arrived
        (("warning x", "critical x", "info x"), "critical x", ["worse to a"]),
        (("warning x", "critical x"), "works", ["over to a"]),  # a warning has arrived
        (("info x", "warning x"), "works", []),  # no more than an info has arrived
        (("warning x", "critical x", "info x"), "works", ["over to a"]),
    ]
    for (first, second, *third), last, messages in table:
        problem = None
        for hour, said in enumerate((first, second, *third)):
            now = START + timedelta(hours=hour)
            problem = after_symptom(problem, OPS, _finding(said), now, opens=True)
            problem = after_news(problem, news_of(problem, (A,), DAY, now))
            problem = _lost(problem) if hour == 1 else problem
        assert problem is not None
        now = START + timedelta(hours=3)
        problem = after_end(problem, now) if last == "works" else after_symptom(problem, OPS, _finding(last), now, opens=True)
        assert _told(problem, (A,), 3) == messages, (first, second, *third, last)


def test_a_recipient_of_a_rise_is_still_told_that_the_problem_is_unstable() -> None:
    """It opens again twice within a mute, and has become worse."""
    problem = _known(A)
    for hour in (1, 2):
        now = START + timedelta(hours=hour)
        problem = after_symptom(after_end(problem, now), OPS, _finding("critical x"), now, opens=True)
    assert _told(problem, (A,), 3) == ["worse to a"]
    problem = after_news(problem, news_of(problem, (A,), DAY, START + timedelta(hours=3)))
    assert _told(problem, (A,), 4) == ["unstable to a"]


def test_no_reminder_follows_a_message_that_may_still_arrive() -> None:
    known = _known(A)
    pending = replace(known, notices={A: replace(known.notices[A], is_pending=True)})
    assert _told(pending, (A,), 30) == []


def test_what_was_held_back_by_a_mute_is_sent_after_it_only_if_it_is_still_true() -> None:
    """Within a mute, the news are neither sent nor recorded."""
    opened = after_symptom(None, OPS, _finding("warning x"), START, opens=True)
    assert _told(after_end(opened, START + timedelta(hours=1)), (A,), 2) == []
    assert _told(opened, (A,), 2) == ["opened to a"]
    assert _told(after_end(_known(A), START + timedelta(hours=1)), (A,), 5) == ["over to a"]


def test_a_recipient_knows_of_a_problem_unless_its_message_was_given_up_or_was_the_end() -> None:
    known = _known(A)
    over = after_end(known, START + timedelta(hours=2))
    ended = after_news(over, news_of(over, (A,), DAY, START + timedelta(hours=2)))
    assert [each.is_known_to(A) for each in (known, _lost(known), over, ended)] == [True, False, True, False]
    assert not known.is_known_to(B)


def test_a_problem_has_one_state_at_a_time() -> None:
    seen = after_symptom(None, OPS, _finding("warning x"), START, opens=False)
    opened = after_symptom(seen, OPS, _finding("warning x"), START)
    acked = replace(opened, acknowledgement=Acknowledgement(START, WARNING, "ann"))
    unstable = replace(opened, openings=(START, START, START))
    found = {
        State.SEEN: seen,
        State.OPEN: opened,
        State.UNSTABLE: unstable,
        State.COVERED: after_symptom(opened, OPS, _finding("warning because of p7"), START),
        State.ACKNOWLEDGED: acked,
        State.OVER: after_end(acked, START),
    }
    assert {state: problem.state(START) for state, problem in found.items()} == {state: state for state in State}
    assert unstable.state(START + DAY) is State.OPEN, "the openings are a day ago"
    assert replace(acked, found=_finding("critical x")).state(START) is State.OPEN, "it is worse than what was acknowledged"
    assert replace(unstable, acknowledgement=acked.acknowledgement).state(START) is State.ACKNOWLEDGED


def test_an_acknowledgement_lasts_over_a_removal_of_a_day_however_old_the_problem_is() -> None:
    opened = after_symptom(None, OPS, _finding("warning x"), START)
    acked = replace(opened, acknowledgement=Acknowledgement(START, WARNING, "ann"))
    away = after_removal(acked, START + 9 * DAY)
    found = [after_symptom(away, OPS, _finding("warning x"), START + 10 * DAY + timedelta(hours=hours)) for hours in (0, 1)]
    assert [each.acknowledgement for each in found] == [acked.acknowledgement, None]


def test_each_time_that_it_was_wrong_to_end_a_problem_doubles_the_answers_that_end_it_up_to_three_times() -> None:
    assert [answers_to_close(Evidence(wrongly_closed=times), 2) for times in range(6)] == [2, 4, 8, 16, 16, 16]
