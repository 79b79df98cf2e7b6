"""Simulates a config before it is in force: what runs, what it costs, and what is sent, with assumed or recorded answers."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import mean
from typing import TypeVar

from heartbeat.findings import Finding, Report
from heartbeat.runners import Action, AgentRequest, Answer, Decision, Failure, ProcessResult, Tokens
from heartbeat.spec import ModelRunner, Runner, estimate_tokens
from heartbeat.verdict import OK_TOKEN
from heartbeat.words import format_duration, format_usd
from heartbeatd.answers import EntryName, ResponseBody, Time
from scheduler.engine.delivery import Delivery
from scheduler.foresight.assumptions import Fault, check_faults, parse_fault
from scheduler.foresight.playback import Attempt, Playback
from scheduler.foresight.recording import Recording, ended, recorded_answer, recorded_command, recorded_precheck
from scheduler.foresight.shares import USUAL_SHARES, AnswerKind, Shares, parse_share, parse_shares
from scheduler.model.budget import find_price
from scheduler.model.entry import Claim, Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import AttemptStarted, CallCharged, Event, RunClosed
from scheduler.model.expected_error import InputError
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import FAILURES, SUCCESSES, AttemptResult, Key, Kind, Outcome, Skip
from scheduler.model.settings import Settings, Target
from scheduler.store import recorded_runs

MAX_SILENCES = 5  # agents that are listed
HISTORY = timedelta(days=30)  # how far back --like-history looks
STEP = timedelta(hours=1)  # after which it is checked whether there is time for more
ANSWER_TIME = timedelta(seconds=20)  # of an agent or a command
CHECK_TIME = timedelta(seconds=1)  # of an attempt that calls nothing
FORM_TOKENS = 400  # of the description of the tool for findings or for a decision, which comes with the prompt
OUTPUT_TOKENS: Mapping[AnswerKind, int] = {"quiet": 60, "problem": 200, "fail": 0}
PROBLEM_KEYS = 3  # different problems that an agent reports
NOTHING_TO_DO = frozenset({Skip.PRECHECK, Skip.PRECHECK_UNCHANGED, Skip.NOTHING_DUE})  # the agent was looked after all the same

K = TypeVar("K")


class FigureRange(ResponseBody):
    """A figure of a simulation: its mean over all seeds, the lowest and the highest."""

    mean: float
    low: float
    high: float


class SimulatedFigures(ResponseBody):
    """Runs and calls in a simulation. `usd` is null if no call has a known price."""

    runs: FigureRange
    calls: FigureRange
    usd: FigureRange | None


class SimulatedEntry(SimulatedFigures, EntryName):
    """An agent or a job in a simulation."""

    messages: FigureRange


class SimulatedSkips(ResponseBody):
    """How many slots were skipped for a reason, without a call."""

    why: str
    planned_runs: FigureRange


class SimulatedDay(SimulatedFigures):
    """A local day of a simulation."""

    day: date


class EarlyBudgetEnd(EntryName):
    """An agent or a job that a budget stops before the day is over: on how many days, and at which time at the earliest.

    `earliest` is the local time of day, such as 16:15.
    """

    days: FigureRange
    earliest: str


class SimulatedRecipient(ResponseBody):
    """The messages to a recipient: a channel, or channel:target. `by_hour` has the mean of each local hour of the day."""

    recipient: str
    messages: FigureRange
    by_hour: list[float]


class BusiestMinute(ResponseBody):
    """The minute in which the most runs started, over all seeds."""

    at: Time
    runs: int


class LongestSilence(EntryName):
    """The longest time in which an agent was not looked after, over all seeds: no answer, and no check that found nothing to do.

    `because` is the most frequent reason of the slots in it; null: it had none.
    """

    since: Time
    until: Time
    because: str | None


class Simulation(ResponseBody):
    """A time of a config, played in advance. `assumed` has a sentence for each thing that is not in the config."""

    from_: Time
    until: Time
    zone: str
    seeds: list[int]
    assumed: list[str]
    runs: FigureRange
    failed: FigureRange
    calls: FigureRange
    messages: FigureRange
    usd: FigureRange | None
    entries: list[SimulatedEntry]
    skips: list[SimulatedSkips]
    days: list[SimulatedDay]
    early_budget_ends: list[EarlyBudgetEnd]
    recipients: list[SimulatedRecipient]
    busiest_minute: BusiestMinute | None
    longest_silences: list[LongestSilence]


@dataclass(slots=True)
class Assumptions:
    """What a simulation assumes: the `shares` of answers, the share of prechecks with `work`, and faults.

    With a `recording`, each simulated day repeats a recorded day that the seed chooses. Where nothing was recorded, the shares
    apply.
    """

    shares: Shares = USUAL_SHARES
    work: float = 1.0
    faults: tuple[Fault, ...] = ()
    recording: Recording | None = None

    def describe(self, settings: Settings) -> list[str]:
        """A sentence for each assumption that has an effect on the figures."""
        lines = []
        if self.recording:
            keys = [(Kind.HEARTBEAT, name) for name in settings.heartbeats] + [(Kind.CRON, name) for name in settings.jobs]
            lines.append(f"each day repeats a recorded day, chosen by the seed; {self.recording.describe(keys)}")
        lines.append(f"answers{' without a record' if self.recording else ''}: {self.shares}, each drawn for itself")
        if any(agent.precheck for agent in settings.enabled_agents):
            lines.append(f"prechecks: {self.work:.0%} find something new")
        if any(beat.postcheck for beat in settings.heartbeats.values()) or any(job.postcheck for job in settings.jobs.values()):
            lines.append("postchecks find that the work was done")
        called = [each for agent in settings.enabled_agents for each in agent.called]
        models = [(runner.provider.name, model) for runner, model in called if isinstance(runner, ModelRunner)]
        unpriced = {model or "" for provider, model in models if not find_price(settings.prices, provider, model)}
        programs = [] if all(isinstance(runner, ModelRunner) for runner, _ in called) else ["programs"]
        if left_out := ", ".join([*sorted(unpriced), *programs]):
            lines.append(f"not in the costs, because no price is known: {left_out}")
        lines.append(f"an answer takes {format_duration(ANSWER_TIME)}; the tokens of prompts are estimated, rather too high")
        return [*lines, *(fault.describe(settings.zone) for fault in self.faults)]


def read_assumptions(
    settings: Settings,
    begin: datetime,
    answers: str | None,
    work: str | None,
    faults: Iterable[str],
    recording: Recording | None = None,
) -> Assumptions:
    """The assumptions in the notation of the command line; None for the usual ones. Raises InputError, which names the option."""
    parsed = tuple(_parsed("--faults", lambda text: parse_fault(text, begin, settings.zone), each) for each in faults)
    called = [runner for agent in settings.enabled_agents for runner, _ in agent.called if isinstance(runner, ModelRunner)]
    check_faults(parsed, {runner.provider.name for runner in called}, {*settings.channels})
    shares = USUAL_SHARES if answers is None else _parsed("--answers", parse_shares, answers)
    return Assumptions(shares, 1.0 if work is None else _parsed("--work", parse_share, work), parsed, recording)


def read_history(db: sqlite3.Connection, now: datetime, settings: Settings) -> Recording:
    """What was recorded in the last 30 days. Raises InputError if that is nothing."""
    found = Recording(recorded_runs.read_runs(db, now - HISTORY), settings.zone)
    if not found:
        raise InputError(f"--like-history: no run of the last {HISTORY.days} days is recorded; write --answers instead")
    return found


def _parsed(option: str, parse: Callable[[str], K], text: str) -> K:
    try:
        return parse(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def only_agents(settings: Settings, names: Collection[str]) -> Settings:
    """The settings with these agents only, and without jobs."""
    beats = {name: beat for name, beat in settings.heartbeats.items() if name in names}
    return replace(settings, heartbeats=beats, jobs={}, job_agents={})


@dataclass(slots=True)
class Draw:
    """What chance says for one attempt: the kind of its answer, whether its precheck finds work, and further chance."""

    kind: AnswerKind
    has_work: bool
    chance: Random


def draw(assumed: Assumptions, seed: int, claim: Claim) -> Draw:
    """The same seed, entry, slot and attempt always give the same draw, whatever else the config contains."""
    run = claim.run
    chance = Random(f"{seed} {claim.entry.kind} {claim.entry.name} {run.slot} {run.trigger} {run.attempt}")  # noqa: S311
    return Draw(assumed.shares.choose(chance.random()), chance.random() < assumed.work, chance)


class SimulatedOutside:
    """Agents, programs and channels by the assumptions and a seed."""

    def __init__(self, assumed: Assumptions, seed: int, now: Callable[[], datetime], tally: Tally) -> None:
        self._assumed = assumed
        self._seed = seed
        self._now = now
        self._tally = tally
        self._called = False

    def attempt(self, claim: Claim, carry_out: Attempt) -> tuple[AttemptResult, timedelta]:
        self._drawn = draw(self._assumed, self._seed, claim)
        recording = self._assumed.recording
        self._recorded = recording and recording.like_day(claim.entry.key, claim.run.slot, self._seed)
        self._called = False
        result = carry_out(claim)
        if self._recorded:
            return result, self._recorded.took
        return result, ANSWER_TIME if self._called else CHECK_TIME

    def call_agent(self, claim: Claim, request: AgentRequest) -> Answer:
        self._called = True
        self._tally.count_call(claim.entry.key, self._now())
        runner = _runner_of(claim.entry, request)
        provider = runner.provider.name if isinstance(runner, ModelRunner) else None
        if provider and any(fault.holds("provider", provider, self._now()) for fault in self._assumed.faults):
            return Answer(failure=Failure.CONNECT, error=f"provider {provider} is down", transient=True)
        if self._recorded and self._recorded.outcome is not Outcome.SKIPPED:
            return recorded_answer(self._recorded, request.form, decides=model_that_decides(claim.entry))
        # A fallback has nothing to do with the failure before it.
        kind = self._assumed.shares.choose(self._drawn.chance.random()) if request.fallback else self._drawn.kind
        if kind == "fail":
            return Answer(failure=Failure.SERVER, error="the simulated agent failed", transient=True)
        return _answer(request, kind, self._drawn.chance, _tokens(request, kind) if provider else None)

    def run_program(self, claim: Claim, *, is_precheck: bool) -> ProcessResult:
        if self._recorded:
            return recorded_precheck(self._recorded) if is_precheck else recorded_command(self._recorded)
        if is_precheck:
            return ended(f"something new at {self._now():%Y-%m-%d %H:%M}" if self._drawn.has_work else "NO_WORK")
        self._called = True
        if self._drawn.kind == "fail":
            return ended("", exit_code=1, errors="the simulated command failed")
        return ended("the simulated command has an output" if self._drawn.kind == "problem" else "")

    def send(self, delivery: Delivery) -> DeliveryResult:
        message, now = delivery.message, self._now()
        if any(fault.holds("channel", message.channel, now) for fault in self._assumed.faults):
            return DeliveryResult("retry", f"channel {message.channel} is down")
        self._tally.count_message(message.kind, message.name, Target(message.channel, message.recipient), now)
        return DeliveryResult("delivered")


def _tokens(request: AgentRequest, kind: AnswerKind) -> Tokens:
    texts = (request.prompt, *(text for _, text in request.messages))
    form = 0 if request.form == "text" else FORM_TOKENS
    return Tokens(estimate_tokens(*texts) + form, OUTPUT_TOKENS[kind])


def _runner_of(entry: Entry, request: AgentRequest) -> Runner:
    """What is called: the model that decides, the agent, or one of its fallbacks."""
    agent = entry.agent
    assert agent is not None
    if request.fallback is not None:
        return next(each.runner for each in agent.fallbacks if each.name == request.fallback)
    return agent.decide.runner if request.form == "decision" and agent.decide else agent.runner


def model_that_decides(entry: Entry) -> str | None:
    """The model that decides before the agent is called; None if none does, or if it is that of the agent itself."""
    decide = entry.agent.decide if entry.agent else None
    return decide.model if decide and decide.model != entry.model else None


def _answer(request: AgentRequest, kind: AnswerKind, chance: Random, tokens: Tokens | None) -> Answer:
    """An answer that reports nothing, or one of a few problems."""
    if kind == "quiet":
        if request.form == "decision":
            return Answer(decision=Decision(Action.SKIP, ""), tokens=tokens)
        return Answer(OK_TOKEN, tokens=tokens) if request.form == "text" else Answer(report=Report(()), tokens=tokens)
    number = chance.randrange(PROBLEM_KEYS) + 1
    if request.form == "decision":
        return Answer(decision=Decision(Action.RUN, f"look into problem {number}"), tokens=tokens)
    found = Finding(f"simulated-{number}", f"simulated problem {number}")
    return Answer(found.line, report=Report((found,)) if request.form == "findings" else None, tokens=tokens)


@dataclass
class Silence:
    """The time since an agent was last looked after, with the reasons of the slots in it, and the longest such time before."""

    since: datetime
    reasons: Counter[str] = field(default_factory=Counter)
    longest: tuple[timedelta, datetime, datetime, str | None] | None = None

    def end(self, now: datetime) -> None:
        """The agent was looked after now."""
        because = self.reasons.most_common(1)[0][0] if self.reasons else None
        if self.longest is None or now - self.since > self.longest[0]:
            self.longest = (now - self.since, self.since, now, because)
        self.since, self.reasons = now, Counter()


class Tally:
    """Counts what happens with one seed to the entries of `settings`. Days, hours and minutes are those of the config's zone.

    Messages about none of them, such as those about a provider, count if `is_whole`: all entries that are played are counted.
    """

    def __init__(self, settings: Settings, start: datetime, *, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self._zone = settings.zone
        self._zones = {(Kind.HEARTBEAT, name): beat.zone for name, beat in settings.heartbeats.items()}
        self._zones |= {(Kind.CRON, name): job.zone for name, job in settings.jobs.items()}
        self.runs: Counter[Key] = Counter()
        self.failed = 0
        self.calls: Counter[Key] = Counter()
        self.messages: Counter[Key] = Counter()
        self.usd: dict[Key, float] = defaultdict(float)
        self.skips: Counter[str] = Counter()
        self.runs_on: Counter[date] = Counter()
        self.calls_on: Counter[date] = Counter()
        self.usd_on: dict[date, float] = defaultdict(float)
        self.starts: Counter[datetime] = Counter()
        self.budget_ends: dict[tuple[Key, date], datetime] = {}
        self.recipients: dict[str, Counter[int]] = defaultdict(Counter)
        beats = settings.heartbeats.values()
        self.silences = {each.name: Silence(start) for each in beats if each.enabled and (each.interval or each.schedule)}

    def listen(self, now: datetime, event: Event) -> None:
        """Count an event of the engine."""
        if not self._is_whole and (getattr(event, "kind", None), getattr(event, "name", None)) not in self._zones:
            return
        if isinstance(event, RunClosed):
            self._count_end(now, event)
        elif isinstance(event, AttemptStarted):
            self.starts[now.replace(second=0, microsecond=0)] += 1
        elif isinstance(event, CallCharged) and event.cost_usd is not None:
            self.usd[event.kind, event.name] += event.cost_usd
            self.usd_on[self._day(now)] += event.cost_usd

    def _count_end(self, now: datetime, event: RunClosed) -> None:
        key, reason = (event.kind, event.name), str(event.result.reason or event.result.outcome)
        if event.result.outcome is Outcome.SKIPPED:
            self.skips[reason] += event.slots
            if event.result.reason is Skip.BUDGET and not (event.result.error or "").startswith("account "):  # no `max_runs`
                self.budget_ends.setdefault((key, now.astimezone(self._zones.get(key, self._zone)).date()), now)
        else:
            self.runs[key] += 1
            self.failed += event.result.outcome in FAILURES
            self.runs_on[self._day(now)] += 1
        silence = self.silences.get(event.name) if event.kind is Kind.HEARTBEAT else None
        if silence and (event.result.outcome in SUCCESSES or event.result.reason in NOTHING_TO_DO):
            silence.end(now)
        elif silence:
            silence.reasons[reason] += event.slots

    def count_call(self, key: Key, now: datetime) -> None:
        """Count a call of an agent or a model."""
        if key not in self._zones:
            return
        self.calls[key] += 1
        self.calls_on[self._day(now)] += 1

    def count_message(self, kind: str, name: str, target: Target, now: datetime) -> None:
        """Count a message that has arrived."""
        if (kind, name) in self._zones:
            self.messages[Kind(kind), name] += 1
        elif not self._is_whole:
            return
        self.recipients[target.label][now.astimezone(self._zone).hour] += 1

    def time_of_day(self, key: Key, instant: datetime) -> str:
        """The local time of an entry, such as 16:15."""
        return f"{instant.astimezone(self._zones.get(key, self._zone)):%H:%M}"

    def end(self, now: datetime) -> None:
        """The simulated time is over."""
        for silence in self.silences.values():
            silence.end(now)

    def _day(self, now: datetime) -> date:
        return now.astimezone(self._zone).date()


def simulate(
    settings: Settings,
    assumed: Assumptions,
    begin: datetime,
    end: datetime,
    seeds: Sequence[int],
    folder: Path,
    known: Iterable[EntryRow] = (),
    note: Callable[[float], None] = lambda _: None,
    *,
    shown: Collection[str] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> Simulation:
    """Play the config from `begin` to `end`, once for each seed.

    `folder` is an empty temporary folder. `known` are rows of the daemon's database: entries keep their schedules. `note` is
    called with the share of the work that is done, from 0 to 1. With `shown`, everything is played, and only these agents are
    counted. Once `is_over`, the first seed ends where it is, and others are left out: `until` and `seeds` say what was played.
    """
    known, tallies = tuple(known), list[Tally]()
    counted = settings if shown is None else only_agents(settings, shown)

    def listen(now: datetime) -> None:
        note((len(tallies) + (now - begin) / (end - begin)) / len(seeds))

    for seed in seeds:
        tally = Tally(counted, begin, is_whole=shown is None)
        reached = play_seed(settings, assumed, begin, end, seed, folder / f"seed-{seed}", tally, known, listen, is_over)
        if tallies and reached < end:
            break
        tallies.append(tally)
        end = reached
        if is_over():
            break
    return _summarize(counted, assumed, begin, end, seeds[: len(tallies)], tallies)


def play_seed(
    settings: Settings,
    assumed: Assumptions,
    begin: datetime,
    end: datetime,
    seed: int,
    folder: Path,
    tally: Tally,
    known: Iterable[EntryRow] = (),
    note: Callable[[datetime], None] = lambda _: None,
    is_over: Callable[[], bool] = lambda: False,
) -> datetime:
    """Play the config once, and count what happens. Returns `end`, or how far it was played until `is_over`.

    `note` is called with the time after each step.
    """
    outside = SimulatedOutside(assumed, seed, lambda: playback.clock.now, tally)
    playback = Playback(settings, folder, begin, outside, tally.listen, seed=seed, known=known)
    for fault in sorted(assumed.faults, key=lambda each: each.begins):
        begins, ends = max(fault.begins, playback.clock.now), min(fault.ends, end)  # it may be down already
        if fault.kind == "daemon" and begins < ends:
            if not _run_until(playback, begins, note, is_over):
                break
            playback.be_down_until(ends)
    _run_until(playback, end, note, is_over)
    playback.close()
    tally.end(playback.clock.now)
    return playback.clock.now


def _run_until(playback: Playback, end: datetime, note: Callable[[datetime], None], is_over: Callable[[], bool]) -> bool:
    """Whether the end was reached before the real time for this was over. At least one step is played."""
    while playback.clock.now < end:
        playback.run_until(min(end, playback.clock.now + STEP))
        note(playback.clock.now)
        if is_over():
            return False
    return True


# --- the figures over all seeds -----------------------------------------------------------------------------------------------


def count_text(figure: FigureRange) -> str:
    """A mean, and the range if the seeds differ."""
    shown = f"{figure.mean:,.1f}".removesuffix(".0")
    return shown if figure.low == figure.high else f"{shown} ({figure.low:,.0f} to {figure.high:,.0f})"


def usd_text(figure: FigureRange | None) -> str:
    """The same for a cost; a dash without a known price."""
    if figure is None:
        return "-"
    shown = format_usd(figure.mean)
    return shown if figure.low == figure.high else f"{shown} ({format_usd(figure.low)} to {format_usd(figure.high)})"


def _range(figures: Iterable[float]) -> FigureRange:
    found = list(figures)
    return FigureRange(mean=round(mean(found), 6), low=round(min(found), 6), high=round(max(found), 6))


def _ranges(counts: Sequence[Mapping[K, float]]) -> dict[K, FigureRange]:
    """The range of each key that occurs with any seed."""
    keys = dict.fromkeys(key for count in counts for key in count)
    return {key: _range(count.get(key, 0) for count in counts) for key in keys}


def _summarize(
    settings: Settings, assumed: Assumptions, begin: datetime, end: datetime, seeds: Sequence[int], tallies: Sequence[Tally]
) -> Simulation:
    is_priced = any(tally.usd for tally in tallies)
    skips = _ranges([tally.skips for tally in tallies])
    return Simulation(
        from_=begin,
        until=end,
        zone=settings.zone.key,
        seeds=list(seeds),
        assumed=assumed.describe(settings),
        runs=_range(tally.runs.total() for tally in tallies),
        failed=_range(tally.failed for tally in tallies),
        calls=_range(tally.calls.total() for tally in tallies),
        messages=_range(sum(counts.total() for counts in tally.recipients.values()) for tally in tallies),
        usd=_range(sum(tally.usd.values()) for tally in tallies) if is_priced else None,
        entries=_entries(settings, tallies),
        skips=[
            SimulatedSkips(why=reason, planned_runs=slots)
            for reason, slots in sorted(skips.items(), key=lambda each: -each[1].mean)
        ],
        days=_days(tallies, is_priced=is_priced),
        early_budget_ends=_early_budget_ends(tallies),
        recipients=_recipients(tallies),
        busiest_minute=_busiest_minute(tallies),
        longest_silences=_longest_silences(tallies),
    )


def _entries(settings: Settings, tallies: Sequence[Tally]) -> list[SimulatedEntry]:
    """All enabled agents and jobs, the most expensive and busiest first."""
    enabled = [(Kind.HEARTBEAT, each.name) for each in settings.heartbeats.values() if each.enabled]
    enabled += [(Kind.CRON, each.name) for each in settings.jobs.values() if each.enabled]
    found = [
        SimulatedEntry(
            kind=kind.value,
            name=name,
            runs=_range(tally.runs[kind, name] for tally in tallies),
            calls=_range(tally.calls[kind, name] for tally in tallies),
            messages=_range(tally.messages[kind, name] for tally in tallies),
            usd=_range(tally.usd.get((kind, name), 0) for tally in tallies)
            if any((kind, name) in tally.usd for tally in tallies)
            else None,
        )
        for kind, name in enabled
    ]
    return sorted(found, key=lambda each: (-(each.usd.mean if each.usd else 0), -each.runs.mean, each.kind, each.name))


def _days(tallies: Sequence[Tally], *, is_priced: bool) -> list[SimulatedDay]:
    days = {day for tally in tallies for day in (*tally.runs_on, *tally.calls_on)}
    return [
        SimulatedDay(
            day=day,
            runs=_range(tally.runs_on[day] for tally in tallies),
            calls=_range(tally.calls_on[day] for tally in tallies),
            usd=_range(tally.usd_on.get(day, 0) for tally in tallies) if is_priced else None,
        )
        for day in sorted(days)
    ]


def _early_budget_ends(tallies: Sequence[Tally]) -> list[EarlyBudgetEnd]:
    days = _ranges([Counter(key for key, _ in tally.budget_ends) for tally in tallies])
    earliest: dict[Key, str] = {}
    for tally in tallies:
        for (key, _), instant in tally.budget_ends.items():
            clock = tally.time_of_day(key, instant)
            earliest[key] = min(earliest.get(key, clock), clock)
    found = [EarlyBudgetEnd(kind=key[0].value, name=key[1], days=count, earliest=earliest[key]) for key, count in days.items()]
    return sorted(found, key=lambda each: (-each.days.mean, each.kind, each.name))


def _recipients(tallies: Sequence[Tally]) -> list[SimulatedRecipient]:
    labels = sorted({label for tally in tallies for label in tally.recipients})
    return [
        SimulatedRecipient(
            recipient=label,
            messages=_range(tally.recipients[label].total() for tally in tallies),
            by_hour=[round(mean(tally.recipients[label][hour] for tally in tallies), 3) for hour in range(24)],
        )
        for label in labels
    ]


def _busiest_minute(tallies: Sequence[Tally]) -> BusiestMinute | None:
    found = [(runs, minute) for tally in tallies for minute, runs in tally.starts.most_common(1)]
    if not found:
        return None
    runs, minute = max(found)
    return BusiestMinute(at=minute, runs=runs)


def _longest_silences(tallies: Sequence[Tally]) -> list[LongestSilence]:
    longest = {
        name: max((found for tally in tallies if (found := tally.silences[name].longest)), key=lambda each: each[0])
        for name in tallies[0].silences
    }
    ranked = sorted(longest.items(), key=lambda each: (-each[1][0], each[0]))
    return [
        LongestSilence(kind="heartbeat", name=agent, since=since, until=until, because=because)
        for agent, (_, since, until, because) in ranked[:MAX_SILENCES]  # not `name` again: Python 3.13.0 would crash in pydantic
    ]
