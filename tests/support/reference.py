"""The reference of the simulator: what must hold for slots, runs, lanes, wakes, budgets, messages and tokens, whatever happens.

It is written from docs/guarantees.md and the pages that it links to. Nothing is taken from the code of the daemon. What each
recipient is sent about a problem is in message_rules.py.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

MINUTE, SECONDS, DAY = timedelta(minutes=1), timedelta(seconds=5), timedelta(days=1)
QUARTER = timedelta(minutes=15)  # the hours of each zone begin with one
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
UTC_ZONE = ZoneInfo("UTC")
INPUT_TOKENS, OUTPUT_TOKENS = 3000, 500  # at most, of one attempt
INPUT_PRICE, OUTPUT_PRICE = 2.0, 10.0  # USD per million tokens
MODEL_MAXIMUM = (INPUT_TOKENS * INPUT_PRICE + OUTPUT_TOKENS * OUTPUT_PRICE) / 1e6
SMALLEST = 1e-9  # USD; smaller differences are those of floating point
BILLED_NOTHING = frozenset({400, 401, 402, 403, 404, 413, 429, 503, 529})
SHARED_TEXTS = re.compile(r"; used by [^\"]*|Stops [^\"]*?\. ")  # by docs/api.md they may name other agents

ABOUT = re.compile(r"\S+ +(?P<kind>account|channel|daemon|provider (?P<provider>\w+)(?:, model (?P<model>\w+))?) ")  # no entry
NUMBER_OF_PROBLEM = re.compile(r"   p(\d+)$", re.MULTILINE)

Key = tuple[str, str]  # heartbeat or cron, and the name
Effect = tuple[Any, ...]  # what people have changed: a word, and what it is about
Rhythm = Literal["schedule", "interval", "every", "after", "none"]


class Broken(AssertionError):
    """A promise that does not hold. It begins with the name of the promise."""

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise


@dataclass(frozen=True)
class Entry:
    """An agent or a job, as the config of the moment has it."""

    kind: str
    name: str
    rhythm: Rhythm
    minutes: int
    runner: Literal["program", "model", "gateway", "command"]
    provider: str = ""
    model: str = ""
    retries: int = 0  # of an agent
    usd_per_day: float | None = None
    runs_per_day: int | None = None
    deliver: tuple[str, ...] = ()
    wakes: tuple[str, ...] = ()
    is_enabled: bool = True
    has_precheck: bool = False
    follows: tuple[str, str] = ("", "")  # the job after whose runs it runs, and `on`
    usd_per_month: float | None = None
    pause_after: int = 0
    fallback: str = ""  # the provider that is called if its own fails
    max_runs: int = 0  # of its account, in the time WITHIN
    hours: tuple[int, int] | None = None  # between which the first of its channels takes messages
    holds_critical: bool = False  # also messages about critical problems wait for these hours
    asks: str = ""  # the channel that gets the questions of its runs
    looks_at_files: bool = False  # its precheck shows new files
    active: tuple[int, int] | None = None  # the active hours of an agent
    zone: str = "UTC"  # of its schedule, its hours and its days

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def maximum(self) -> float:
        """The maximum cost of an attempt."""
        return {"model": MODEL_MAXIMUM, "command": 0.0}.get(self.runner, PROGRAM_MAXIMUM)


PROGRAM_MAXIMUM = 0.03  # usd_per_try
WITHIN = timedelta(hours=6)  # the time of max_runs
REFUSED = frozenset({401, 403, 404, 429, 503, 529})  # after these, a fallback is called, and nothing was spent


@dataclass
class Token:
    """A token of the HTTP API: what it may do, and for which agents; None: for all agents and jobs."""

    name: str
    may: frozenset[str]
    agents: frozenset[str] | None = None

    def may_do(self, right: str | None, key: Key | None) -> bool:
        """Whether a request is accepted that needs this right and concerns this entry; None: all of them."""
        return (right is None or right in self.may) and (
            self.agents is None or (key is not None and key[0] == "heartbeat" and key[1] in self.agents)
        )


@dataclass
class Slots:
    """The slots of an entry that have come due."""

    anchor: datetime
    looked_until: datetime
    minutes: int
    due: float = 0
    fewer: int = 0  # how many fewer or more than `due` may be recorded because the clock was set back
    more: int = 0
    has_moved: bool = False  # the clock was set back, and with it the slots of this interval
    is_known: bool = True  # False: an interval was changed, or the clock was set back while the entry was not active


@dataclass
class Call:
    """One attempt that has called its agent, and what it cost as far as the agent has said."""

    key: Key
    run: int
    day: str  # where its agent is
    day_of_all: str  # that of limits.budget
    maximum: float
    known: float | None = None  # None: the maximum is charged
    is_open: bool = True

    @property
    def charge(self) -> float:
        return self.maximum if self.is_open or self.known is None else self.known


@dataclass
class WakeSent:
    """A wake that was accepted."""

    number: int
    agent: str
    sender: str
    mark: str
    at: datetime | None = None  # of a reminder
    is_kept: bool = False  # its text is in a prompt even if the sender wakes the agent again before that


@dataclass(frozen=True)
class ChatMessage:
    """A message that has arrived in a chat. `about` is its agent or job; `question` the number of the question that it asks."""

    number: int
    key: str
    about: Key
    text: str
    at: datetime
    buttons: Mapping[str, str]  # their data, by label
    question: int | None
    is_whole: bool

    @property
    def problems(self) -> frozenset[int]:
        """The numbers of the problems that it names."""
        return frozenset(map(int, NUMBER_OF_PROBLEM.findall(self.text)))


@dataclass
class NewFile:
    """A file that came after the first look of an agent at its files, and after the run `newest`."""

    agent: str
    newest: int
    shown_in: list[int] = field(default_factory=list)


@dataclass
class Question:
    """A question of a run to people, which ends by its first answer, after its time, or with the run."""

    run: int
    until: datetime
    answer: str | None = None
    is_exact: bool = True  # False: a change of the clock has moved its end


@dataclass
class Reference:
    """What must be true. Methods named after events are called by the simulator; those named `check` raise Broken."""

    entries: dict[Key, Entry]
    usd_per_day: float | None
    now: datetime
    usd_per_month: float | None = None
    zone: ZoneInfo = UTC_ZONE  # of the config
    slots: dict[Key, Slots] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    # The first call that counts for the USD or the runs of an entry, or of limits.budget.
    first_counted: Counter[tuple[Key | None, str]] = field(default_factory=Counter)
    holds: dict[str, dict[str, datetime]] = field(default_factory=lambda: defaultdict(dict))
    wakes: list[WakeSent] = field(default_factory=list)
    marks: dict[int, frozenset[str]] = field(default_factory=dict)  # that the prompt of the last attempt of a run had
    started: dict[tuple[str, str, str], int] = field(default_factory=dict)  # the run of each slot
    attempts: Counter[int] = field(default_factory=Counter)  # of each run, that have begun
    texts: dict[str, str] = field(default_factory=dict)  # of each message, by channel and key
    sent: Counter[str] = field(default_factory=Counter)  # how often a channel has accepted it
    allowed: Counter[str] = field(default_factory=Counter)  # how often it may be sent more than once
    dead: set[str] = field(default_factory=set)  # messages that their channel refused for good
    dropped: set[str] = field(default_factory=set)  # messages that a user has dropped
    cancelled: set[int] = field(default_factory=set)  # runs that a user has cancelled
    reported: set[int] = field(default_factory=set)  # runs whose late result was accepted
    refused: Counter[str] = field(default_factory=Counter)  # wakes of each agent that were not accepted
    first_starts: dict[int, datetime] = field(default_factory=dict)  # of each run that has called a program
    counts_failures_from: dict[Key, int] = field(default_factory=dict)  # the first run that counts for `pause_after`
    paused: dict[Key, datetime] = field(default_factory=dict)  # until when people have paused an entry
    muted: dict[Key, tuple[datetime, datetime]] = field(default_factory=dict)  # since and until when they have muted it
    inactive: list[tuple[datetime, set[Key]]] = field(default_factory=list)  # that a config of this time leaves out or disables
    limited: tuple[datetime, datetime] | None = None  # between which no program may start
    has_failed: set[str] = field(default_factory=set)  # providers that have refused a request at some time
    was_set_back: bool = False  # the clock
    was_set_forward: bool = False
    latest: datetime = EPOCH  # that the clock has ever shown
    questions: dict[int, Question] = field(default_factory=dict)  # by their numbers
    question_keys: dict[tuple[int, str], int] = field(default_factory=dict)  # the question of each run and key
    files: dict[str, NewFile] = field(default_factory=dict)  # by their names
    people: frozenset[str] = frozenset()  # who may reply in the chat
    used: set[tuple[str, str]] = field(default_factory=set)  # buttons: the key of their message, and their label
    mutes: set[Effect] = field(default_factory=set)  # by buttons; a second button in the same second changes nothing
    wanted_at: dict[str, datetime] = field(default_factory=dict)  # when a person wants a message again

    def __post_init__(self) -> None:
        self.wakers = [*self.entries.values()]  # entries as they were at some time
        for entry in self.entries.values():
            self._add(entry)

    # --- slots ----------------------------------------------------------------------------------------------------------

    def _add(self, entry: Entry) -> None:
        """An entry that the daemon sees for the first time. An interval of an agent begins now, that of a job one later."""
        first = entry.rhythm == "interval" and entry.is_enabled
        self.slots[entry.key] = Slots(self.now, self.now, entry.minutes, due=int(first))

    def time_passed(self, now: datetime) -> None:
        """The daemon has seen this time."""
        self.now = now
        self.latest = max(self.latest, now)
        for key, slots in self.slots.items():
            entry = self.entries.get(key)
            if entry is not None and entry.is_enabled and now > slots.looked_until:
                slots.due += self._count(entry, slots, slots.looked_until, now)
            slots.looked_until = max(slots.looked_until, now)

    @staticmethod
    def _count(entry: Entry, slots: Slots, after: datetime, until: datetime) -> float:
        """How many slots lie after one time and not after another. The slots of an interval that has moved are spread evenly."""
        if entry.rhythm in ("none", "after"):
            return 0
        period, anchor = entry.minutes * MINUTE, slots.anchor
        if entry.rhythm == "schedule":
            # `0 */4 * * *` follows the clock: an hour that is skipped has no slot, and one that comes twice has two.
            first, last = ((at - EPOCH) // QUARTER for at in (after, until))
            local = ((EPOCH + number * QUARTER).astimezone(ZoneInfo(entry.zone)) for number in range(first + 1, last + 1))
            return sum(at.minute == 0 and at.hour % (entry.minutes // 60) == 0 for at in local)
        return (until - after) / period if slots.has_moved else (until - anchor) // period - (after - anchor) // period

    def clock_changed(self, by: timedelta) -> None:
        """The times of open questions may have moved. Locks that were held for some time are held for as long as before."""
        for question in self.questions.values():
            question.is_exact = False
        self.was_set_forward |= by > timedelta()
        if by < timedelta():
            self._clock_set_back(self.now + by)

    def _clock_set_back(self, now: datetime) -> None:
        """A schedule pauses until the clock has caught up, and an interval moves, so that it is at most once late.

        Slots that an earlier change has skipped may be due again.
        """
        self.was_set_back = True
        self.paused = {key: until for key, until in self.paused.items() if until > self.now}  # what is over stays over
        self.muted = {}
        for agent, holders in self.holds.items():
            self.holds[agent] = {holder: until - (self.now - now) for holder, until in holders.items() if until > self.now}
        for key, slots in self.slots.items():
            entry = self.entries.get(key)
            if entry is None or not entry.is_enabled:
                slots.is_known = False
                continue
            repeated = int((slots.looked_until - now) / (entry.minutes * MINUTE)) + 1
            slots.more += repeated if self.was_set_forward else 0
            if entry.rhythm == "schedule":
                unseen = self._count(entry, slots, min(now, slots.anchor), slots.anchor)  # of a time before it was first seen
                slots.due += unseen
                slots.fewer += int(unseen)  # after a restart, the clock may count as corrected, and these slots as over
                slots.anchor = min(now, slots.anchor)
            else:
                slots.has_moved, slots.looked_until = True, now
                slots.fewer += repeated + 1  # a run that is skipped at a time that has a record gets no second one
                slots.more += 1
        self.now = now

    def check_slots(self, recorded: Mapping[Key, int], *, is_quiet: bool) -> None:
        """Every slot is recorded exactly once. `is_quiet`: no run is in progress and none waits."""
        for key, slots in self.slots.items():
            found = recorded.get(key, 0)
            if not slots.is_known:
                continue
            if found > slots.due + slots.more:
                raise Broken("slots", f"{key}: {found} recorded, and only {slots.due} were due, and {slots.more} perhaps again")
            entry = self.entries.get(key)
            # Those outside of the active hours are recorded together with the first one within them.
            open_ = self._count(entry, slots, self.now - DAY, self.now) if entry is not None and entry.active else 0
            is_past = self.now >= slots.looked_until  # else the clock, which was set back, has not caught up
            if is_quiet and is_past and found < int(slots.due - open_) - slots.fewer and self.is_active(key):
                raise Broken("slots", f"{key}: only {found} of {slots.due} recorded, {slots.fewer} of which may be missing")

    def is_active(self, key: Key) -> bool:
        return key in self.entries and self.entries[key].is_enabled

    def _was_active(self, key: Key, at: datetime) -> bool:
        """Whether an entry was certainly active at a time, also shortly before and after it."""
        spans = zip(self.inactive, [since for since, _ in self.inactive[1:]] + [self.latest], strict=False)
        was_out = any(key in out and since - SECONDS <= at <= end + SECONDS for (since, out), end in spans)
        return not self.was_set_back and not was_out

    # --- the config -----------------------------------------------------------------------------------------------------

    def reload(self, entries: Mapping[Key, Entry], usd_per_day: float | None, usd_per_month: float | None) -> None:
        """A config is applied. Slots before it are those of the old one."""
        self.time_passed(self.now)
        before: dict[tuple[Key | None, str], float | None]
        before = {(None, "usd"): self.usd_per_day, (None, "month"): self.usd_per_month}
        for key, each in self.entries.items():
            before |= {(key, "usd"): each.usd_per_day, (key, "runs"): each.runs_per_day, (key, "month"): each.usd_per_month}
        for budget, limit in before.items():  # a new budget starts at zero (docs/money.md)
            if limit is None:
                self.first_counted[budget] = len(self.calls)
        inactive = {key for key in self.slots if key not in entries or not entries[key].is_enabled}
        self.inactive.append((self.now, inactive))
        self.paused = {key: until for key, until in self.paused.items() if key not in inactive}
        self.limited = None
        self.entries, self.usd_per_day, self.usd_per_month = dict(entries), usd_per_day, usd_per_month
        self.wakers += entries.values()
        for key, entry in entries.items():
            if key not in self.slots:
                self._add(entry)
            elif self.slots[key].minutes != entry.minutes:
                self.slots[key].minutes = entry.minutes
                self.slots[key].is_known &= entry.rhythm == "schedule" and not self.was_set_back

    # --- runs and lanes -------------------------------------------------------------------------------------------------

    def check_start(self, key: Key, run: int, slot: str, running: Iterable[Key]) -> None:
        """An agent or a job starts, at a slot with its trigger, while these are running."""
        if self.started.setdefault((*key, slot), run) != run:
            raise Broken("slots", f"{key} runs twice at {slot}")
        self.attempts[run] += 1
        if key[0] == "cron" and self.attempts[run] > 1:  # no job has retries or `rerun_after_crash`
            raise Broken("repeated", f"{key} is executed again in run {run}")
        if run in self.cancelled:
            raise Broken("cancelled", f"{key} starts in run {run}, which was cancelled")
        if key in running:
            raise Broken("one run", f"{key} starts while a run of it is active")
        if self.now < self.paused.get(key, self.now):
            raise Broken("pauses", f"{key} starts in run {run}, although it is paused until {self.paused[key]}")
        self._check_account(key, run)
        if not self._is_within(self.entries[key].active, self.entries[key]):
            raise Broken("active hours", f"{key} starts outside of {self.entries[key].active} in {self.entries[key].zone}")
        held = [holder for holder, until in self.holds[key[1]].items() if until > self.now] if key[0] == "heartbeat" else []
        if held:
            raise Broken("lanes", f"{key} starts while {held} hold its lane")

    def _is_within(self, hours: tuple[int, int] | None, entry: Entry) -> bool:
        """Whether these hours have begun and are not over where an entry is."""
        return hours is None or hours[0] <= self.now.astimezone(ZoneInfo(entry.zone)).hour < hours[1]

    def _check_account(self, key: Key, run: int) -> None:
        """All agents that are programs share an account. The smallest of their `max_runs` counts for all."""
        if self.entries[key].runner != "program":
            return
        if self.limited is not None and self.limited[0] < self.now < self.limited[1]:
            raise Broken("usage limits", f"{key} starts before {self.limited[1]}, when the usage limit of its account is over")
        if run in self.first_starts:
            return
        recent = [number for number, at in self.first_starts.items() if self.now - WITHIN + SECONDS < at <= self.now]
        most = min((each.max_runs for each in self.entries.values() if each.max_runs), default=0)
        if 0 < most <= len(recent) and not self.was_set_back:
            raise Broken("usage limits", f"{key} starts, although {recent} have begun in {WITHIN}, and at most {most} may")
        self.first_starts[run] = self.now

    def program_limited(self, since: datetime, until: datetime) -> None:
        """A program has said that its usage limit is reached until then. The daemon knows it since its end."""
        self.limited = (since + SECONDS, until - SECONDS)

    def check_pause(self, key: Key, run: int, ended: Iterable[tuple[int, bool]]) -> None:
        """A run starts. `ended` are the runs of its entry that have ended, the newest first, and whether they have failed."""
        entry = self.entries[key]
        most = 0 if entry.runner == "model" else entry.pause_after  # failures of providers do not count
        first = self.counts_failures_from.get(key, 0)
        last = [has_failed for number, has_failed in ended if number >= first or not has_failed][:most]
        if most and len(last) == most and all(last):
            raise Broken("pauses", f"{key} starts in run {run} after {most} failures in a row")

    def check_requests(self, key: Key, requests: Sequence[tuple[str, int]]) -> None:
        """An attempt has sent these requests to providers, with their statuses."""
        entry = self.entries[key]
        for provider, status in requests:
            if status != 200:
                self.has_failed.add(provider)
            if provider != entry.provider and entry.provider not in self.has_failed:
                raise Broken("fallbacks", f"{key} called {provider}, although {entry.provider} has never failed")
        has_other = bool(entry.fallback) and entry.fallback not in self.has_failed
        if has_other and requests and requests[-1][1] in REFUSED:
            raise Broken("fallbacks", f"{key} got {requests[-1]}, and did not call {entry.fallback}")

    def run_cancelled(self, run: int) -> None:
        """A user has cancelled a run: it makes no further attempt. What it has used so far is never known."""
        self.cancelled.add(run)
        for call in self.calls:
            if call.run == run and call.is_open:
                call.known = None

    def check_precheck(self, key: Key, found: str, *, is_woken: bool) -> None:
        """An agent is called after its precheck has found nothing, failed, or found work."""
        if found == "nothing" and not is_woken:
            raise Broken("prechecks", f"{key} is called, although its precheck found no work, and no wake came")

    def files_shown(self, run: int, names: Iterable[str]) -> None:
        """The prompt of a run shows these files as new."""
        for name in names:
            if name in self.files and run not in self.files[name].shown_in:
                self.files[name].shown_in.append(run)

    def check_files(self, nothing_found: Mapping[str, Sequence[int]], answered: Collection[int], final: Collection[int]) -> None:
        """At a quiet time no new file was passed over, and none was shown again after an agent had answered.

        `nothing_found` are the runs of each agent that were skipped because its precheck found nothing. `answered` are the runs
        with an answer, and `final` those of them whose answer was whole. Two others count as a whole one.
        """
        for name, file in self.files.items():
            for run in nothing_found.get(file.agent, ()):
                before = [shown for shown in file.shown_in if shown < run]
                if run > file.newest and sum((shown in answered) + (shown in final) for shown in before) < 2:
                    raise Broken("prechecks", f"run {run} of {file.agent} found nothing, although only {before} had {name}")
            seen = [run for run in file.shown_in if run in final]
            if any(run > seen[0] for run in file.shown_in if seen):
                raise Broken("prechecks", f"{file.agent} was shown {name} in the runs {file.shown_in}, and answered in {seen[0]}")

    # --- late results ---------------------------------------------------------------------------------------------------

    def result_accepted(self, run: int) -> None:
        """The result of a run that has answered "later" was accepted: once, and not after it was cancelled."""
        if run in self.reported or run in self.cancelled:
            raise Broken("late results", f"run {run} got a second result")
        self.reported.add(run)

    def check_results(self, results: Mapping[int, Sequence[str]]) -> None:
        """At a quiet time each run that has answered "later" has one result. `results` has the reason of each result by run."""
        for run, reasons in results.items():
            if len(reasons) != 1:
                raise Broken("late results", f"run {run} has {len(reasons)} results: {reasons}")
            expected = "cancelled" if run in self.cancelled else None if run in self.reported else "no_result"
            if expected and reasons[0] != expected:
                raise Broken("late results", f"the result of run {run} is {reasons[0]}, and not {expected}")
            if run in self.reported and reasons[0] == "no_result":
                raise Broken("late results", f"the result of run {run} was accepted, and counts as missing")

    def lane_held(self, agent: str, holder: str, until: datetime) -> None:
        self.holds[agent][holder] = until

    def lane_released(self, agent: str, holder: str) -> None:
        self.holds[agent].pop(holder, None)

    # --- money ----------------------------------------------------------------------------------------------------------

    def call_starts(self, key: Key, run: int) -> Call:
        """An agent is called by an attempt. What it may cost fits into what is left of the day."""
        entry = self.entries[key]
        call = Call(
            key, run, f"{self.now.astimezone(ZoneInfo(entry.zone)):%F}", f"{self.now.astimezone(self.zone):%F}", entry.maximum
        )
        self.calls.append(call)
        if not call.maximum:
            return call  # the command of a job needs no budget
        today = [each for each in self.calls[self.first_counted[None, "usd"] :] if each.day_of_all == call.day_of_all]
        own = [each for each in self.calls[self.first_counted[key, "usd"] :] if (each.key, each.day) == (key, call.day)]
        self._check_sum(f"the budget of {key}", own, entry.usd_per_day)
        self._check_sum("limits.budget", today, self.usd_per_day)
        for whose, limit in ((key, entry.usd_per_month), (None, self.usd_per_month)):
            counted = self.calls[self.first_counted[whose, "month"] :]
            month = [
                each for each in counted
                if (each.day[:7] == call.day[:7] if whose == each.key else whose is None and each.day_of_all[:7] == call.day_of_all[:7])
            ]  # fmt: skip
            self._check_sum(f"the month's budget of {whose or 'all'}", month, limit)
        counted = self.calls[self.first_counted[key, "runs"] :]
        runs = {each.run for each in counted if (each.key, each.day) == (key, call.day)}
        runs -= {each.run for each in self.calls if each.day < call.day}  # a further try after midnight is no further run
        if entry.runs_per_day is not None and len(runs) > entry.runs_per_day:
            raise Broken("money", f"{key} calls its agent in {len(runs)} of {entry.runs_per_day} runs of {call.day}")
        return call

    @staticmethod
    def _check_sum(whose: str, calls: Iterable[Call], limit: float | None) -> None:
        spent = sum(each.charge for each in calls)
        if limit is not None and spent > limit + SMALLEST:
            raise Broken("money", f"{whose} is {limit}, and {spent:.4f} may be spent")

    # --- wakes ----------------------------------------------------------------------------------------------------------

    def wake_accepted(
        self, number: int, agent: str, sender: str, mark: str, at: datetime | None = None, *, is_kept: bool = False
    ) -> None:
        """Without a mark, the wake has no text."""
        self.wakes.append(WakeSent(number, agent, sender, mark, at, is_kept))

    def check_marks(self, key: Key, marks: Collection[str]) -> None:
        """These wakes are in a prompt: that of the agent which they are for. None of them comes before its time."""
        strays = [wake.mark for wake in self.wakes if wake.mark in marks and ("heartbeat", wake.agent) != key]
        if strays:
            raise Broken("wakes", f"{strays} are in a prompt of {key}")
        latest = max(self.now, self.latest)
        early = [each.mark for each in self.wakes if each.mark in marks and each.at is not None and each.at > latest]
        if early:
            raise Broken("wakes", f"{early} came before their time")

    def wake_refused(self, agent: str) -> None:
        self.refused[agent] += 1

    def check_wakes(
        self, states: Mapping[int, str], answered: Iterable[int], delivered: Mapping[str, int], rejected: Mapping[str, int]
    ) -> None:
        """At a quiet time each wake is in the prompt of one answered run, itself or merged into a later one, or is rejected.

        `answered` are the runs that were answered. `delivered` counts the wakes of each agent that came to it in such a run,
        alone or merged, and `rejected` those that are on record as rejected.
        """
        runs = defaultdict(list)
        for run in sorted(self.marks.keys() & set(answered)):
            for mark in self.marks[run]:
                runs[mark].append(run)
        marked = [wake for wake in self.wakes if wake.mark]
        newest = {(each.agent, each.mark if each.at or each.is_kept else each.sender): each.mark for each in marked}
        lost = defaultdict(list)
        for wake in self.wakes:
            if len(runs[wake.mark]) > 1:
                raise Broken("wakes", f"{wake.mark} for {wake.agent} was in the runs {runs[wake.mark]}")
            state = states.get(wake.number, "ended")  # the rows of wakes that reached no run are deleted after a day
            if state != "ended":
                raise Broken("wakes", f"{wake.mark} for {wake.agent} is still {state}")
            if wake.mark and wake.mark in newest.values() and not runs[wake.mark]:
                lost[wake.agent].append(wake.mark)
        for agent, sent in Counter(wake.agent for wake in self.wakes).items():
            without_run = rejected.get(agent, 0) - self.refused[agent]
            if delivered.get(agent, 0) + without_run != sent:
                found = f"{delivered.get(agent, 0)} were delivered, and {without_run} rejected later"
                raise Broken("wakes", f"of {sent} wakes for {agent} {found}; these were in no answered run: {lost[agent]}")
            if len(lost[agent]) > without_run:
                raise Broken("wakes", f"{lost[agent]} for {agent} were in no run that was answered")

    def check_expired(self, agents: Iterable[str]) -> None:
        """Wakes of these agents have expired at a quiet time, which had not waited for long before."""
        for entry in (self.entries[key] for agent in agents if self.is_active(key := ("heartbeat", agent))):
            limits = (entry.usd_per_day, entry.usd_per_month, entry.runs_per_day, self.usd_per_day, self.usd_per_month)
            if entry.runner != "program" and not any(limits) and entry.active is None:
                raise Broken("wakes", f"wakes of {entry.name} expired, although nothing kept it from running")

    # --- chains ---------------------------------------------------------------------------------------------------------

    def check_chains(self, ends: Iterable[tuple[str, int, bool, datetime]], starts: Iterable[tuple[str, int, bool]]) -> None:
        """At a quiet time each end of a job has started each job that follows it once, or a record says why it did not.

        `ends` are the runs of jobs that have ended, whether they have failed, and when. `starts` are the runs and the skips that
        follow them: the job, the run before it, and whether it was executed.
        """
        found = defaultdict(list)
        for job, before, is_executed in starts:
            found[job, before].append(is_executed)
        for name, run, has_failed, at in ends:
            for entry in [each for each in self.entries.values() if each.follows[0] == name]:
                executed = found[entry.name, run]
                if len(executed) > 1 or (not executed and self._was_active(entry.key, at)):
                    raise Broken("chains", f"run {run} of {name} has started {entry.name} {len(executed)} times")
                if True in executed and entry.follows[1] not in ("any", "failure" if has_failed else "success"):
                    raise Broken("chains", f"run {run} of {name} has started {entry.name}, which follows {entry.follows[1]}")

    # --- questions to people --------------------------------------------------------------------------------------------

    def question_asked(self, number: int, run: int, key: str, until: datetime) -> None:
        """A run has asked a question. With the same key it is the same question."""
        if self.question_keys.setdefault((run, key), number) != number:
            raise Broken("questions", f"run {run} has asked {number} with the key {key!r}, and before that another question")
        if self.questions.setdefault(number, Question(run, until)).run != run:
            raise Broken("questions", f"question {number} of run {self.questions[number].run} is given to run {run}")

    def question_answered(self, number: int, answer: str) -> None:
        """An answer was accepted: the first one, in time, and one of the options."""
        question = self.questions[number]
        if question.answer is not None or answer not in ("yes", "no"):
            raise Broken("questions", f"question {number} got {answer!r} after {question.answer!r}")
        if question.is_exact and question.until <= self.now:
            raise Broken("questions", f"question {number} was answered after {question.until}")
        question.answer = answer

    def check_questions(self, rows: Iterable[tuple[int, str | None, datetime | None, datetime | None, int, int]]) -> None:
        """At a quiet time each question has ended, with the answer that was accepted, and whoever got it got its end.

        `rows` are its number, its answer, when it and its run ended, and how many channels got it and were sent its end.
        """
        for number, answer, ended_at, run_ended_at, asked, informed in rows:
            question = self.questions[number]
            if ended_at is None or answer != question.answer:
                raise Broken("questions", f"question {number} ended at {ended_at} with {answer!r}, and not {question.answer!r}")
            is_early = answer is None and question.is_exact and ended_at < question.until
            if is_early and (run_ended_at is None or run_ended_at > ended_at):
                raise Broken("questions", f"question {number} ended at {ended_at}, before {question.until} and before its run")
            if informed < asked:
                raise Broken("questions", f"{asked} channels got question {number}, and {informed} its end")

    # --- messages -------------------------------------------------------------------------------------------------------

    def message_tried(self, channel: str, key: str, text: str, state: str) -> None:
        """A channel got a message, and accepted it, or not."""
        place = f"{channel} {key}"
        if place in self.dead:
            raise Broken("messages", f"{place} is sent again after it was refused for good: {text!r}")
        if place in self.dropped:
            raise Broken("messages", f"{place} is sent, although a user has dropped it: {text!r}")
        if self.now < self.wanted_at.get(place, self.now):
            raise Broken("chats", f"{place} is sent before {self.wanted_at[place]}: {text!r}")
        before = self.texts.setdefault(place, text)
        if before != text:
            raise Broken("messages", f"{place} has two texts: {before!r} and {text!r}")
        if self.sent[place] > self.allowed[place]:
            raise Broken("messages", f"{place} is sent again: {text!r}")
        if state == "delivered":
            self.sent[place] += 1
        if state == "uncertain":
            self.sent[place] += 1
            self.allowed[place] += 1
        if state == "dead":
            self.dead.add(place)

    def check_hours(self, key: Key, channel: str, text: str) -> None:
        """A message of an agent or a job is sent that did not wait for the hours of its recipient.

        One about a provider, an account, a channel or the daemon waits for the first hours of those that use it, if all of them
        with this recipient have hours; of those of all entries if none uses it.
        """
        about = ABOUT.match(text)
        concerned = [entry for each, entry in self.entries.items() if about or each == key]
        having = [each for each in concerned if channel in each.deliver]
        if about:
            having = [each for each in having if self._uses(each, about)] or having
        if not having or any(each.hours is None or channel != each.deliver[0] for each in having):
            return
        is_critical = re.search("critical|^over ", text, re.IGNORECASE | re.MULTILINE)
        if is_critical and not all(each.holds_critical for each in having):
            return
        if not any(self._is_within(each.hours, each) for each in having):
            hours = [(each.hours, each.zone) for each in having]
            raise Broken("quiet hours", f"{channel} gets a message of {key} outside of {hours}: {text!r}")

    def muted_until(self, key: Key, until: datetime) -> None:
        since, ends = self.muted.get(key, (self.now, self.now))
        self.muted[key] = since if ends > self.now else self.now, until

    def check_mute(self, key: Key, queued: datetime, text: str) -> None:
        """A message of an agent or a job is sent for the first time, which was queued at this time."""
        since, until = self.muted.get(key, (self.now, self.now))
        if since < queued < until and not ABOUT.match(text):
            raise Broken("mutes", f"a message of {key} is sent, which was muted from {since} until {until}: {text!r}")

    @staticmethod
    def _uses(entry: Entry, about: re.Match[str]) -> bool:
        """Whether an entry calls this provider or model, or the account of the programs."""
        if about["provider"] is None:
            return entry.is_enabled and about["kind"] == "account" and entry.runner == "program"
        calls = about["provider"] in (entry.provider, entry.fallback)
        return entry.is_enabled and calls and about["model"] in (None, entry.model)

    def may_be_sent_again(self, channel: str, key: str) -> None:
        """The daemon cannot know whether the message arrived, or a user has asked for it."""
        self.allowed[f"{channel} {key}"] += 1
        self.dead.discard(f"{channel} {key}")

    def message_retried(self, channel: str, key: str) -> None:
        """A user wants a message to be sent again that is not delivered."""
        self.dead.discard(f"{channel} {key}")
        self.wanted_at.pop(f"{channel} {key}", None)

    def message_dropped(self, channel: str, key: str) -> None:
        self.dropped.add(f"{channel} {key}")

    def check_outbox(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """At a quiet time each message has arrived, or its end has a name. `rows` are its channel, key and state."""
        for channel, key, state in rows:
            if state not in ("delivered", "dead", "held", "dropped"):
                raise Broken("messages", f"{channel} {key} is still {state}")
            if (state == "dropped") < (f"{channel} {key}" in self.dropped):
                raise Broken("messages", f"{channel} {key} was dropped by a user, and is {state}")
            if state == "dead" and f"{channel} {key}" not in self.texts:
                raise Broken("messages", f"{channel} {key} was given up, and the channel never got it")
            if state == "delivered" and channel != "log" and not self.sent[f"{channel} {key}"]:
                raise Broken("messages", f"{channel} {key} counts as delivered, and the channel never accepted it")

    # --- chats ----------------------------------------------------------------------------------------------------------

    def check_press(self, message: ChatMessage, label: str, person: str, *, is_genuine: bool, done: Collection[Effect]) -> None:
        """A person has pressed a button, and this was done. Everybody in the chat may press it, once within 24 hours.

        Only some may answer a question. Its first answer counts.
        """
        who = f"{person} pressed {label!r} below {message.text!r} of {message.at:%F %T}"
        if message.question is not None:
            self._check_answer(who, message.question, label, done, is_allowed=is_genuine and person in self.people)
            return
        is_allowed = is_genuine and self.now <= message.at + DAY and (message.key, label) not in self.used
        until = self.now + timedelta(hours=2)
        mine = {
            "Mute 2h": {("mute", *message.about, until)},
            "Run again": {*[each for each in done if each[:3] == ("wake", *message.about)][:1]},
            "Acknowledge": {("acknowledge", number) for number in message.problems},
            "Resume": {each for each in done if each[0] == "resume" and (each[1:] == message.about or each[2] in message.text)},
        }[label]
        self._check_done(who, done, mine if is_allowed else set())
        is_certain = label == "Mute 2h" or (
            label == "Run again" and message.about[0] == "heartbeat" and self.is_active(message.about)
        )
        if is_allowed and is_certain and message.about in self.entries and not done and not mine <= self.mutes:
            raise Broken("chats", f"{who}, and nothing happened")
        for each in (each for each in done if each[0] == "mute"):
            self.mutes.add(each)
            self.muted_until(each[1:3], each[3])
        if done or (is_allowed and mine and mine <= self.mutes):
            self.used.add((message.key, label))

    def check_reply(
        self, message: ChatMessage, text: str, person: str, *, is_here: bool, done: Collection[Effect], open_: Collection[int]
    ) -> None:
        """A person has replied to a message, and this was done. The problems `open_`, which it names, are still open."""
        who = f"{person} replied {text!r} to {message.about} {message.text!r}"
        is_allowed = is_here and person in self.people
        if message.question is not None:
            self._check_answer(who, message.question, text, done, is_allowed=is_allowed)
        elif not is_allowed:
            self._check_done(who, done, set())
        elif text == "done":
            self._check_done(who, done, {("close", number) for number in message.problems})
            if open_ and not message.text.startswith("over "):
                raise Broken("chats", f"{who}, and {open_} are still open")
        elif (at := self._time_in(text)) is not None:
            again = [each for each in done if each[0] == "again" and each[2:] == (message.text, at)]
            self._check_done(who, done, again)
            if len(again) != 1:
                raise Broken("chats", f"{who}, and {len(again)} messages come at {at}")
            self.wanted_at[again[0][1]] = at
        else:
            agent = self._agent_of(message.about)
            woken = [each for each in done if each[:3] == ("wake", "heartbeat", agent)]
            self._check_done(who, done, woken)
            if agent is not None and self.is_active(("heartbeat", agent)) and len(woken) != 1:
                raise Broken("chats", f"{who}, which has woken {agent} {len(woken)} times")

    def _check_answer(self, who: str, question: int, word: str, done: Collection[Effect], *, is_allowed: bool) -> None:
        self._check_done(who, done, {("answer", question, word)} if is_allowed else set())
        if done:
            self.question_answered(question, word)

    @staticmethod
    def _check_done(who: str, done: Collection[Effect], allowed: Collection[Effect]) -> None:
        if wrong := [each for each in done if each not in allowed]:
            raise Broken("chats", f"{who}, which did {wrong}")

    def _time_in(self, text: str) -> datetime | None:
        """When a reply wants its message again."""
        spans = {"later": 60, "later 2h": 120, "30m": 30}
        if text in spans:
            return self.now + spans[text] * MINUTE
        if text != "tomorrow 9":
            return None
        tomorrow = self.now.astimezone(self.zone).date() + DAY
        return datetime(tomorrow.year, tomorrow.month, tomorrow.day, 9, tzinfo=self.zone).astimezone(UTC)

    def _agent_of(self, about: Key) -> str | None:
        """The agent that a reply wakes: that of its message, or the first one that the job of its message wakes."""
        if about[0] == "heartbeat":
            return about[1]
        return next(iter(self.entries[about].wakes), None) if about in self.entries else None

    # --- views ----------------------------------------------------------------------------------------------------------

    def check_view(self, token: Token, question: str, shown: str) -> None:
        """An answer names no agent or job that the token may not see, except jobs that have woken one of its agents."""
        if token.agents is None:
            return
        wakers = {each.key for each in self.wakers if token.agents.intersection(each.wakes)}
        shown = SHARED_TEXTS.sub("", shown)
        for kind, name in self.slots:
            if not (kind == "heartbeat" and name in token.agents) and (kind, name) not in wakers and name in shown:
                at = shown.index(name)
                raise Broken("views", f"{question} shows {name} to the token {token.name}: {shown[max(0, at - 150) : at + 50]}")
