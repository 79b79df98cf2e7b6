"""The rules of messages once more, as a reader of docs/messages.md and docs/findings.md understands them: what each recipient is sent about a problem.

A test plays the same events here and in the daemon, and compares. Nothing is taken from the code of the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from datetime import timedelta

INFO, WARNING, CRITICAL = range(3)
OPENS, RISES, REMINDS, UNSTABLE, OVER, NOTHING = "opens", "rises", "reminds", "unstable", "over", "nothing"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
REMIND_CRITICAL = 6 * HOUR
OPENINGS = 3  # of a day make a problem unstable
LOOKS = 2  # without a line, or without a mention, end a problem; failures in a row open one of an agent
MOST_LOOKS = 16  # without a mention, after ends that were wrong
LOG = "log"

Expected = dict["Place", "Chance"]


@dataclass(frozen=True)
class Place:
    """A problem and one of its recipients."""

    subject: str
    key: str
    recipient: str


@dataclass(frozen=True)
class Chance:
    """What may be sent to a recipient now: one of these, over this channel."""

    kinds: frozenset[str]
    channel: str


@dataclass
class Sent:
    """What a recipient was sent last about a problem: the highest severity, and when.

    `lost` is what it said if it did not arrive, and `told` the highest severity of earlier messages about it; None if there was none.
    """

    severity: int
    at: timedelta
    message: str
    is_unstable: bool = False
    told: int | None = None
    lost: str = ""
    is_pending: bool = True
    is_end: bool = False  # it was the end, which is still known if it is lost
    end: str = ""  # the message about the end before it, which is still pending
    may_need_end: bool = False  # an earlier opening may count as known: its end was lost, or it still waited when this was sent
    settled_at: timedelta | None = None
    may_be_stable: bool = False  # it may have been sent when the problem was not unstable any more
    stable_at: timedelta | None = None  # since when it is not unstable any more
    was_removed: bool = False  # from the recipients since: then it need not get the end
    may_be_settled: bool = False  # it was over without a message, if it was not unstable at a time that one cannot know


@dataclass
class Problem:
    """What is wrong with a subject. Times are elapsed time since the beginning of the test."""

    severity: int
    openings: list[timedelta] = field(default_factory=list)
    is_open: bool = True
    is_mentioned: bool = True
    missed: int = 0
    looks: int = LOOKS  # without a mention that end it
    ended_at: timedelta | None = None
    ended_by_silence: bool = False
    is_closed_by_user: bool = False
    acknowledged: int | None = None  # the severity at which it was
    line: int | None = None  # the severity that its line was last printed with
    ended: dict[str, Sent] = field(default_factory=dict)  # what was sent before its end, which needed no message
    sent: dict[str, Sent] = field(default_factory=dict)


@dataclass
class Rules:
    """What is wrong, and what each recipient was sent. Each method returns what must be sent because of an event.

    Where the clock was set within a period, its length is known only roughly: then more than one outcome is right.
    """

    deliver: dict[str, list[str]]  # the recipients of each subject
    remind: timedelta = DAY
    channels: tuple[str, ...] = ("phone", "mail")
    now: timedelta = timedelta()
    problems: dict[tuple[str, str], Problem] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)  # in a row
    clock: timedelta = timedelta()  # the time by the clock, since the beginning
    muted_until: dict[str, timedelta] = field(default_factory=dict)  # by the clock
    clock_changes: list[tuple[timedelta, timedelta]] = field(default_factory=list)  # when, and by how much
    delivered_at: dict[str, timedelta] = field(default_factory=dict)  # the last message that a channel took
    refusing: set[str] = field(default_factory=set)  # the channels that refused one since the last start or reload

    # --- events ---------------------------------------------------------------------------------------------------------

    def look(self, agent: str, mentioned: dict[str, int], resolved: Iterable[str] = ()) -> Expected:
        """An answer of an agent without a precheck."""
        self.failures[agent] = 0
        for key, severity in mentioned.items():
            self._see(agent, key, severity)
        for key, problem in self._open_of(agent):
            if key in mentioned:
                continue
            problem.is_mentioned = False
            problem.missed += 1
            if key in resolved:
                self._end(problem)
            elif problem.missed >= problem.looks:
                self._end(problem, by_silence=True)
        self._end_failure(agent)
        return self._due(agent, self._keys_of(agent))

    def look_at_lines(self, agent: str, lines: dict[str, int], named: Iterable[str], *, fails: bool = False) -> Expected:
        """A precheck with lines, of which an answer names some; none if the agent fails."""
        for key, severity in lines.items():
            problem = self.problems.get((agent, key))
            if key in named:
                is_over = problem is not None and not problem.is_open and not problem.is_closed_by_user
                is_same = is_over and problem is not None and problem.line == severity == INFO
                ended = problem.ended if problem is not None and is_same and not self.is_muted(agent) else {}
                self._see(agent, key, severity)
                day_has_passed = problem is None or problem.ended_at is None or self.has_passed(DAY, problem.ended_at)
                if problem is not None and day_has_passed is not True:
                    # An `info` comes back: no news to those that it was sent to. If it is unstable again, they are told again.
                    for who, sent in ended.items():
                        doubted = sent.may_be_settled or day_has_passed is None
                        problem.sent.setdefault(who, replace(sent, is_unstable=False, may_be_settled=doubted))
            if (problem := self.problems.get((agent, key))) is not None and problem.is_open:
                problem.missed, problem.line = 0, severity
        for key, problem in self._open_of(agent):
            problem.is_mentioned = key in lines  # a reminder needs no answer, only the line
            if key not in lines:
                problem.missed += 1
                if problem.missed >= LOOKS:
                    self._end(problem)
        expected = self.fail(agent) if fails else {}
        if not fails:
            self.failures[agent] = 0
            self._end_failure(agent)
            expected = self._due(agent, ["failed"])
        return self._due(agent, [key for key in self._keys_of(agent) if key != "failed"]) | expected

    def fail(self, subject: str) -> Expected:
        """A run fails. One of a job is enough for a message."""
        self.failures[subject] = self.failures.get(subject, 0) + 1
        if self.failures[subject] >= (1 if subject.startswith("cron/") else LOOKS):
            self._see(subject, "failed", WARNING)
        elif (subject, "failed") in self.problems:
            self.problems[subject, "failed"].missed = -1  # it seems to begin again, so that its end may wait
        return self._due(subject, ["failed"])

    def work(self, job: str) -> Expected:
        """A job succeeds."""
        self.failures[job] = 0
        self._end_failure(job)
        return self._due(job, ["failed"])

    def settle(self, place: Place, message: str, lost: str = "") -> None:
        """A message about a problem has arrived, or what it said was `lost`: it was not sent, and the next chance sends it again."""
        problem = self.problems[place.subject, place.key]
        for known in (problem.sent, problem.ended):
            sent = known.get(place.recipient)
            if sent is not None and sent.end == message:
                sent.end, sent.may_need_end = "", bool(lost)
            if sent is None or sent.message != message:
                continue
            sent.lost, sent.is_pending, sent.settled_at = lost, False, self.now
            if sent.is_end and not lost:
                del known[place.recipient]

    def channel_refuses(self, channel: str, given_up: Set[str] = frozenset()) -> Expected:
        """A channel refused a message for good, or has taken none for an hour.

        If the message about it is `given_up` now as well, its channel refuses too: then the next refusal is told on another one.
        """
        subject = f"channel {channel}"
        self._see(subject, "undelivered", CRITICAL)
        self.refusing.add(channel)
        self.deliver[subject] = [recipient := self._substitute(channel)]
        last = self.problems[subject, "undelivered"].sent.get(recipient)
        return {} if last is not None and last.message in given_up else self._due(subject, ["undelivered"])

    def channel_is_late(self, channel: str, waited: timedelta, given_up: Set[str] = frozenset()) -> Expected:
        """A channel did not take a message that has waited for some time."""
        has_taken_others = self.now - self.delivered_at.get(channel, -DAY) < HOUR
        return {} if waited < HOUR or has_taken_others else self.channel_refuses(channel, given_up)

    def channel_takes(self, channel: str, given_up: Set[str] = frozenset()) -> Expected:
        """A channel took a message. If the end of its problem is `given_up` now, it is sent again when the next one is taken."""
        subject = f"channel {channel}"
        problem = self.problems.get((subject, "undelivered"))
        if problem is None:
            return {}
        if problem.is_open:
            self._end(problem)
        lost = {who for who, sent in problem.sent.items() if sent.is_end and sent.message in given_up}
        return {place: chance for place, chance in self._due(subject, ["undelivered"]).items() if place.recipient not in lost}

    def restart(self) -> None:
        self.refusing.clear()

    def reload(self, subject: str, recipients: list[str], remind: timedelta) -> None:
        self.refusing.clear()
        self.deliver[subject], self.remind = recipients, remind
        for (of, _), problem in self.problems.items():
            for recipient, sent in problem.sent.items():
                sent.was_removed |= of == subject and recipient not in recipients

    def acknowledge(self, subject: str, key: str) -> None:
        problem = self.problems[subject, key]
        problem.acknowledged = problem.severity

    def unacknowledge(self, subject: str, key: str) -> None:
        self.problems[subject, key].acknowledged = None

    def close(self, subject: str, key: str) -> None:
        """A user ends a problem: nothing is sent. What is unstable stays so."""
        problem, kept = self.problems[subject, key], {}
        unstable = self.is_unstable(problem)
        self._end(problem)
        problem.is_closed_by_user, problem.looks = True, LOOKS
        for who, sent in problem.sent.items():
            if unstable is not False and sent.is_unstable:
                kept[who], sent.may_be_settled = sent, sent.may_be_settled or sent.may_be_stable or unstable is None
            else:
                problem.ended[who] = sent
        problem.sent = kept

    def set_clock(self, by: timedelta) -> None:
        self.clock_changes.append((self.now, abs(by)))

    def note(self, place: Place, kind: str, message: str) -> None:
        """A recipient was sent something about a problem. It is pending until it is settled."""
        problem = self.problems[place.subject, place.key]
        before = problem.sent.get(place.recipient)
        is_first = before is None or (before.is_end and kind != OVER) or (before.may_be_settled and kind in (OPENS, UNSTABLE))
        told = None if before is None or is_first else before.told if before.lost else before.severity
        if kind == OVER:
            problem.sent[place.recipient] = Sent(problem.severity, self.now, message, told=told, is_end=True)
            return
        severity = problem.severity if told is None else max(problem.severity, told)
        stays_unstable = kind != UNSTABLE and self._stays_unstable(problem, before)
        now = Sent(severity, self.now, message, kind == UNSTABLE or stays_unstable, told)
        if before is not None:
            now.end = before.message if before.is_end and before.is_pending else before.end
            has_waited = not before.is_end and (before.is_pending or before.settled_at == self.now)
            now.may_need_end = before.may_need_end or has_waited
        now.may_be_stable = stays_unstable and self.is_unstable(problem) is None
        problem.sent[place.recipient] = now

    # --- rules ----------------------------------------------------------------------------------------------------------

    def is_muted(self, subject: str) -> bool:
        return subject in self.muted_until and self.muted_until[subject] > self.clock

    def was_muted_within(self, span: timedelta) -> bool:
        """Whether a mute ends later than so long ago: a clock that is set back may begin it again."""
        return any(until > self.clock - span for until in self.muted_until.values())

    def has_passed(self, span: timedelta, since: timedelta) -> bool | None:
        """Whether so much time has passed; None if the clock was set, so that one cannot say."""
        doubt = sum((by for at, by in self.clock_changes if at >= since), timedelta())
        passed = self.now - since
        return True if passed - doubt >= span else False if passed + doubt < span else None

    def is_return_in_doubt(self, subject: str, key: str) -> bool:
        """Whether one cannot say if it comes back within a day after its end, in this minute: then how many looks end it is unknown."""
        problem = self.problems.get((subject, key))
        if problem is None or problem.is_open or problem.ended_at is None:
            return False
        counts = problem.ended_by_silence or problem.looks > LOOKS
        return counts and None in (self.has_passed(DAY - span, problem.ended_at) for span in (timedelta(), timedelta(minutes=1)))

    def is_unstable(self, problem: Problem) -> bool | None:
        """Whether it opened for the third time within a day."""
        recent = [self.has_passed(DAY, opened) for opened in problem.openings]
        if sum(each is False for each in recent) >= OPENINGS:
            return True
        return None if sum(each is not True for each in recent) >= OPENINGS else False

    def rightful(self, place: Place) -> frozenset[str]:
        """What a recipient may get now about a problem: one of these."""
        problem = self.problems[place.subject, place.key]
        sent, unstable = problem.sent.get(place.recipient), self.is_unstable(problem)
        if self.is_muted(place.subject):
            return frozenset((NOTHING,))
        if not problem.is_open:
            return frozenset(self._after_end(problem, sent, unstable))
        if problem.acknowledged is not None and problem.severity <= problem.acknowledged:
            return frozenset((NOTHING,))
        return frozenset(self._while_open(problem, sent, unstable))

    def _after_end(self, problem: Problem, sent: Sent | None, unstable: bool | None) -> Iterator[str]:
        if sent is not None and sent.is_end and sent.lost and sent.told in (None, INFO):
            yield from (OVER, NOTHING)  # what it is the end of was lost too, but still waited when the end was sent
            return
        arrived = sent is not None and ((sent.lost and sent.told is not None) or (not sent.lost and not sent.is_end))
        if sent is not None and sent.may_need_end and not arrived:
            yield from (OVER, NOTHING)
            return
        if not arrived or sent is None or (sent.told if sent.lost else sent.severity) == INFO or problem.is_closed_by_user:
            yield NOTHING
            return
        if unstable is not True:
            yield OVER
        if unstable is not False or problem.missed < 0 or sent.was_removed or sent.may_be_settled:
            yield NOTHING

    def _while_open(self, problem: Problem, sent: Sent | None, unstable: bool | None) -> Iterator[str]:
        if sent is None or sent.is_end or (sent.lost and sent.told is None):
            yield from self._either(unstable, UNSTABLE, OPENS)
            return
        if sent.may_be_settled:
            yield from self._either(unstable, UNSTABLE, OPENS)
        if sent.may_be_stable and unstable is not False and problem.severity <= sent.severity:
            yield UNSTABLE
        if sent.lost:
            yield from (sent.lost, *self._either(unstable, UNSTABLE, OPENS))
            if sent.lost in (RISES, OPENS) and problem.severity <= (sent.told or INFO):
                yield NOTHING  # they know it already: what was lost said that it is worse than now
        elif problem.severity > sent.severity:
            yield RISES
        elif unstable is True and not sent.is_unstable:
            yield UNSTABLE
        else:
            if unstable is None and not sent.is_unstable:
                yield UNSTABLE
            yield from self._while_known(problem, sent, unstable)

    def _while_known(self, problem: Problem, sent: Sent, unstable: bool | None) -> Iterator[str]:
        """Nothing is new, so only a reminder may be due."""
        if unstable is True or problem.severity == INFO or sent.is_pending or not problem.is_mentioned:
            yield NOTHING
            return
        interval = min(self.remind, REMIND_CRITICAL) if problem.severity == CRITICAL else self.remind
        if sent.is_unstable and sent.stable_at is None:  # the interval of reminders may begin again when it is stable
            sent.stable_at = self.now
        may_be_unstable = unstable is None and sent.is_unstable
        if may_be_unstable or (sent.stable_at is not None and self.has_passed(interval, sent.stable_at) is not True):
            yield NOTHING
        yield from self._either(self.has_passed(interval, sent.at), REMINDS, NOTHING)

    @staticmethod
    def _either(is_so: bool | None, yes: str, no: str) -> Iterator[str]:
        if is_so is not False:
            yield yes
        if is_so is not True:
            yield no

    def _stays_unstable(self, problem: Problem, before: Sent | None) -> bool:
        return before is not None and before.is_unstable and self.is_unstable(problem) is not False

    def _see(self, subject: str, key: str, severity: int) -> None:
        problem = self.problems.get((subject, key))
        if problem is None:
            self.problems[subject, key] = Problem(severity, [self.now])
            return
        if not problem.is_open:
            was_wrong = problem.ended_at is not None and self.has_passed(DAY, problem.ended_at) is not True
            problem.looks = (
                min(2 * problem.looks, MOST_LOOKS)
                if was_wrong and problem.ended_by_silence
                else problem.looks
                if was_wrong
                else LOOKS
            )
            problem.openings.append(self.now)
            if self.is_muted(subject):  # nothing is sent now, so what was sent before may still count if its line comes back
                for sent in problem.ended.values():
                    sent.may_be_settled = True
            else:
                problem.ended = {}
            problem.is_open, problem.is_closed_by_user, problem.acknowledged = True, False, None
        if problem.acknowledged is not None and severity > problem.acknowledged:
            problem.acknowledged = None
        problem.severity, problem.is_mentioned, problem.missed = severity, True, 0

    def _end(self, problem: Problem, *, by_silence: bool = False) -> None:
        problem.is_open, problem.ended_at, problem.ended_by_silence = False, self.now, by_silence
        problem.acknowledged = None

    def _end_failure(self, subject: str) -> None:
        problem = self.problems.get((subject, "failed"))
        if problem is not None and problem.is_open:
            self._end(problem)

    def _open_of(self, subject: str) -> list[tuple[str, Problem]]:
        """What an agent has reported and is not over."""
        return [(key, each) for (of, key), each in self.problems.items() if of == subject and each.is_open and key != "failed"]

    def _keys_of(self, subject: str) -> list[str]:
        return [key for of, key in self.problems if of == subject]

    def is_failing(self, channel: str) -> bool:
        problem = self.problems.get((f"channel {channel}", "undelivered"))
        return problem is not None and problem.is_open

    def _substitute(self, channel: str) -> str:
        """Another channel that takes messages, or else one that a person may have repaired before the start, or else the log."""
        usable = (channel, *self.channels)
        working = (each for each in usable if each != channel and not self.is_failing(each))
        return next(working, None) or next((each for each in usable if each not in self.refusing), LOG)

    def _recipients(self, subject: str, key: str) -> list[str]:
        """What an agent says goes to its channels. What the daemon says goes to those of them that work, or to another one."""
        named = self.deliver[subject]
        if key != "failed":
            return named
        return [each for each in named if not self.is_failing(each)] or [self._substitute(named[0])]

    def _due(self, subject: str, keys: Iterable[str]) -> Expected:
        """What is to be sent now about these problems of a subject. What needs no message is settled."""
        expected = {}
        for key in keys:
            problem = self.problems.get((subject, key))
            if problem is None:
                continue
            recipients = (
                self._recipients(subject, key) if problem.is_open or key not in ("failed", "undelivered") else list(problem.sent)
            )
            for place in (Place(subject, key, each) for each in recipients):
                rightful = self.rightful(place)
                if rightful != {NOTHING}:
                    is_own = key in ("failed", "undelivered") and self.is_failing(place.recipient)
                    expected[place] = Chance(rightful, self._substitute(place.recipient) if is_own else place.recipient)
                elif not problem.is_open and not self.is_muted(subject):
                    sent, unstable = problem.sent.get(place.recipient), self.is_unstable(problem)
                    if sent is not None and unstable is None:
                        sent.may_be_settled = True
                    elif sent is not None and not unstable and not sent.is_end:  # an end may still be lost
                        problem.ended[place.recipient] = problem.sent.pop(place.recipient)
        return expected
