"""Runs one heartbeat by the daemon's rules, for programs that have their own main loop and their own agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo

from heartbeat import verdict
from heartbeat.attempt import Given, attempt, finish_at_once
from heartbeat.checks import Skip
from heartbeat.decision import InvalidDecision, parse_decision
from heartbeat.evidence import OpenProblem
from heartbeat.findings import Finding, merge_by_key
from heartbeat.hours import EVERY_DAY, Hours, parse_span, window
from heartbeat.prompt import Memory, Past, PromptFacts, PromptWake
from heartbeat.result import AttemptResult, Outcome, Reason
from heartbeat.runners import Action, AgentRequest, Answer, Decision, Failure, Resources
from heartbeat.runners.agent_json import parse_answer
from heartbeat.runners.call_errors import CallError, redacted_line
from heartbeat.runners.redaction import NO_SECRETS
from heartbeat.spec import Decide, DedupNormalize, Fallback, Heartbeat, HttpRunner, ModelRunner, OkMatch, OnMissing, Provider
from heartbeat.verdict import Suppression

AgentReturn = str | Mapping[str, object] | None
"""What an agent returns: its text, None if it has nothing to report, or `{"text": ...}`, `{"findings": [...]}` (both with
`"truncated": True` if the answer was cut) or `{"error": ...}`."""

DecideReturn = Decision | Mapping[str, object]

_NO_TIME = timedelta(0)
_NO_LIMIT = timedelta(days=1)  # the functions of the caller end by themselves
_NO_RESOURCE = cast("Any", None)  # nothing is used but the caller's functions
# In place of a runner and of a decision by a model. Neither is called.
_THE_CALLER = HttpRunner("", {})
_THE_CALLER_DECIDES = Decide(ModelRunner(Provider("the caller", "openai", None, None), 0), "")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """An agent and its heartbeat. The fields without a comment are those of config.yaml."""

    ask: Callable[[str], AgentReturn] | None = None  # your agent: it gets the prompt
    decide: Callable[[str], DecideReturn] | None = None  # called first: {"action": "skip" or "run", "tasks": text}
    on_execute: Callable[[str], AgentReturn] | None = None  # gets the tasks that were decided on, in place of `ask`
    fallbacks: Sequence[Callable[[str], AgentReturn]] = ()  # get the prompt in this order, if your agent fails
    on_notify: Callable[[str], object] | None = None  # gets the text to deliver
    checklist: str | Path  # the text itself, or a file
    active_hours: str | Hours = "always"  # "HH:MM-HH:MM" in `timezone`, or an object for days and several windows
    timezone: str | ZoneInfo = "UTC"
    name: str = "agent"
    prompt: str | None = None
    on_missing: OnMissing = "skip"
    on_empty: Literal["skip", "run"] = "skip"
    ok_match: OkMatch = "edges"
    ack_max_chars: int = 5
    strip_reasoning: bool = True
    show_ok: bool = False
    show_alerts: bool = True
    dedup_window: timedelta = timedelta(hours=24)
    dedup_normalize: DedupNormalize = "text"


# The fields of a heartbeat that have the values of those of a spec.
_CARRIED = {each.name for each in fields(Spec)} & {each.name for each in fields(Heartbeat)} - {"decide", "fallbacks", "checklist"}


@dataclass(frozen=True, slots=True)
class KnownProblem:
    """A finding that still holds. `since` is when it came up, and `reported_at` when it was last part of a text to deliver.

    `finding` has the latest text, and the highest severity that was reported. `missed` counts the answers in a row without it.
    """

    finding: Finding
    since: datetime
    reported_at: datetime
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    """The result of one run. Pass it to the next call as `last`.

    `why` says why the run was skipped or failed, or else why nothing is delivered although the agent was called.
    `text` is the text to deliver, empty for nothing, and `answer` the agent's whole answer. `asked_at` is when the agent was
    last called, `failures` is the number of failures in a row. `told` has the digests of the delivered texts and when each was
    first delivered. `checked` has the checklist items with an `every` and when each was last checked. `truncated`: the answer was
    cut at a token limit, which the last line of `text` says too. `fallback` is the number of the fallback that was called last,
    from 1 on; 0: none was. `findings` are those of the answer, and `problems` those of this and earlier answers that still hold.
    """

    at: datetime
    result: Literal["ok", "alert", "failed", "skipped"]
    why: Skip | Failure | Reason | Suppression | None = None
    text: str = ""
    answer: str = ""
    error: str = ""
    asked_at: datetime | None = None
    failures: int = 0
    told: tuple[tuple[str, datetime], ...] = ()
    checked: tuple[tuple[str, datetime], ...] = ()
    truncated: bool = False
    findings: tuple[Finding, ...] = ()
    problems: tuple[KnownProblem, ...] = ()
    fallback: int = 0


def beat(spec: Spec, *, now: datetime, last: Beat | None = None, woken_by: str | None = None, **former: object) -> Beat:
    """Do one heartbeat run at `now` (aware): the checks, the call of the agent, the verdict, and `on_notify(text)` if there is
    something to deliver.

    `last` is the result of the run before. `woken_by` is the reason for a run outside the schedule: then an empty or missing
    checklist does not skip it. An exception in ask, decide or on_execute, except KeyboardInterrupt, makes the run failed. An
    exception in on_notify is passed to the caller, and the text does not count as delivered. Raises ValueError if `now` has no
    time zone, if there is no function to call, and for invalid hours.
    """
    if not isinstance(spec, Spec) or former:
        raise TypeError("beat takes a spec: beat(Spec(ask=ask, checklist=...), now=..., last=..., woken_by=...)")
    if now.tzinfo is None:
        raise ValueError("now has no time zone; pass an aware datetime, best in UTC")
    if spec.ask is None and (spec.decide is None or spec.on_execute is None):
        raise ValueError("there is no function to call; pass ask, or decide and on_execute")
    before = last or Beat(now, "skipped")
    now = now.astimezone(UTC)
    settings = _heartbeat_of(spec)
    given = Given(
        PromptFacts(
            now,
            Past(before.asked_at, before.failures),
            (PromptWake("manual", "caller", 1, woken_by),) if woken_by is not None else (),
            problems=_known_problems(before),
        ),
        woken=woken_by is not None,
        memory=Memory(last_checked=dict(before.checked)),
    )
    resources = Resources(_NO_RESOURCE, _NO_RESOURCE, own_agent=_CallersAgent(spec).call_agent, may_block=True)
    run = _settle(settings, before, now, finish_at_once(attempt(settings, given, resources, lambda: _NO_TIME)))
    if run.text and spec.on_notify is not None:
        spec.on_notify(run.text)
    return run


class _CallersAgent:
    """Calls the functions of a spec."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._tasks: str | None = None  # that were decided on

    def call_agent(self, request: AgentRequest) -> Answer:
        if request.fallback is not None:
            return _to_answer(_call_function(self._spec.fallbacks[int(request.fallback) - 1], request.prompt))
        if request.form == "decision":
            return self._request_decision(request.prompt)
        if self._tasks is not None and self._spec.on_execute is not None:
            return _to_answer(_call_function(self._spec.on_execute, self._tasks))
        assert self._spec.ask is not None
        return _to_answer(_call_function(self._spec.ask, request.prompt))

    def _request_decision(self, prompt: str) -> Answer:
        assert self._spec.decide is not None
        decision = _to_decision(_call_function(self._spec.decide, prompt))
        self._tasks = decision.tasks if decision.action is Action.RUN else None
        return Answer(decision=decision)


def _call_function(function: Callable[[str], Any], text: str) -> Any:
    # SystemExit fails only this run too. A KeyboardInterrupt is meant for the whole program.
    try:
        return function(text)
    except (Exception, SystemExit) as error:
        raise CallError(Failure.EXIT, redacted_line(f"it raised {type(error).__name__}: {error}", NO_SECRETS)) from error


def _to_answer(value: object) -> Answer:
    answer = parse_answer(value, failed=Failure.EXIT, redactor=NO_SECRETS)
    if answer.later:
        raise CallError(Failure.BAD_ANSWER, "it returned later, which only the daemon supports; return the text")
    return answer


def _to_decision(value: object) -> Decision:
    try:
        return value if isinstance(value, Decision) else parse_decision(value)
    except InvalidDecision as why:
        raise CallError(Failure.BAD_ANSWER, str(why)) from None


def _carry_over(before: Beat, now: datetime) -> Beat:
    """The values that one run passes to the next, whatever its result."""
    return Beat(
        now,
        "ok",
        asked_at=before.asked_at,
        failures=before.failures,
        told=before.told,
        checked=before.checked,
        problems=before.problems,
    )


def _known_problems(before: Beat) -> tuple[OpenProblem, ...]:
    """The open problems as the prompt lists them."""
    return tuple(
        OpenProblem(known.finding.label, known.finding.severity, known.finding.text, known.since, known.reported_at)
        for known in before.problems
    )


def _settle(spec: Heartbeat, before: Beat, now: datetime, result: AttemptResult) -> Beat:
    """The result of the run: what of the answer is news, and what the next run has to know."""
    run = _carry_over(before, now)
    if result.outcome is Outcome.SKIPPED:
        return replace(run, result="skipped", why=result.why, error=result.error or "")
    run = replace(run, asked_at=now, failures=0, answer=result.text or "", truncated=result.truncated)
    run = replace(run, fallback=int(result.fallback or 0))
    report, is_alert = result.report, result.outcome is Outcome.ALERT
    has_failed = result.outcome not in (Outcome.OK, Outcome.ALERT)
    if has_failed:
        run = replace(run, result="failed", why=result.why, error=result.error or "", failures=before.failures + 1)
        if report is None:
            return run
    elif selection := result.prompt.selection:
        kept = {item: at for item, at in before.checked if item in selection.recurring_items}
        checked = kept | dict.fromkeys(sorted(selection.prompted_items), now)
        run = replace(run, checked=tuple(checked.items()))
    if not has_failed:
        run = replace(run, result="alert" if is_alert else "ok")
    run = replace(run, findings=merge_by_key(report.findings) if report else ())
    if result.suppression in (Suppression.DECIDED_SKIP, Suppression.NOT_SHOWN):
        return replace(run, why=result.why)
    run, news = _update_problems(spec, run)
    if news and report and report.loose:
        news = [report.loose, *news]
    text = "" if news and result.outcome is Outcome.OK else result.message or ""
    if text:
        run, text = _drop_duplicate(spec, run, text)
    lines = "\n".join(news)
    if text:
        return replace(run, text="\n\n".join(part for part in (lines, text) if part))
    if lines:
        return replace(run, text=verdict.with_cut_note(lines, truncated=result.truncated))
    if has_failed:
        return run
    if is_alert or spec.show_ok:
        return replace(run, why=Suppression.DUPLICATE)
    return replace(run, why=Suppression.HEARTBEAT_OK if report else result.why)


def _update_problems(spec: Heartbeat, run: Beat) -> tuple[Beat, list[str]]:
    """The result with the problems that still hold, and a line for each finding that is news.

    A finding is news if its key is new, if its severity has risen above the reported one, if it was reported longer ago than
    the window, or if it resolves a problem. A problem ends without a line after `clear_after` complete answers without it.
    """
    known = {problem.finding.key: problem for problem in run.problems}
    kept: dict[str, KnownProblem] = {}
    news = []
    for finding in run.findings:
        before = known.pop(finding.key, None)
        if finding.resolved:
            news += [finding.line] if before else []
        elif before is None or finding.severity.rank > before.finding.severity.rank:
            kept[finding.key] = KnownProblem(finding, before.since if before else run.at, run.at)
            news.append(finding.line)
        else:
            is_due = not _NO_TIME <= run.at - before.reported_at < spec.dedup_window
            latest = replace(finding, severity=before.finding.severity)
            kept[finding.key] = KnownProblem(latest, before.since, run.at if is_due else before.reported_at)
            news += [finding.line] if is_due else []
    for key, problem in known.items():
        missed = problem.missed + (0 if run.truncated or run.result == "failed" else 1)
        if missed < spec.clear_after:
            kept[key] = replace(problem, missed=missed)
    return replace(run, problems=tuple(kept.values())), news


def _drop_duplicate(spec: Heartbeat, run: Beat, text: str) -> tuple[Beat, str]:
    """The result and the text, which is empty if it was delivered within the window. The window counts from the first time."""
    # A first time in the future means that the clock was set back. Its window may be far from its end.
    fresh = tuple((digest, first) for digest, first in run.told if _NO_TIME <= run.at - first < spec.dedup_window)
    digest = verdict.message_digest(text, spec.dedup_normalize)
    if digest in dict(fresh):
        return replace(run, told=fresh), ""
    return replace(run, told=(*fresh, (digest, run.at))), text


def _parse_hours(given: str | Hours, zone: ZoneInfo) -> Hours:
    if isinstance(given, Hours):
        return given
    return Hours() if given == "always" else Hours((window(*parse_span(given), EVERY_DAY, zone),))


def _heartbeat_of(spec: Spec) -> Heartbeat:
    """The settings of the heartbeat. Those that only the daemon uses are empty."""
    zone = ZoneInfo(spec.timezone) if isinstance(spec.timezone, str) else spec.timezone
    checklist = spec.checklist
    return Heartbeat(
        **{name: getattr(spec, name) for name in _CARRIED},
        enabled=True,
        interval=None,
        stagger=_NO_TIME,
        hours=_parse_hours(spec.active_hours, zone),
        zone=zone,
        grace=_NO_TIME,
        workspace=checklist.absolute().parent if isinstance(checklist, Path) else Path(),
        runner=_THE_CALLER,
        model=None,
        decide=_THE_CALLER_DECIDES if spec.decide else None,
        fallbacks=tuple(Fallback(str(number + 1), _THE_CALLER, None) for number in range(len(spec.fallbacks))),
        checklist=checklist.name if isinstance(checklist, Path) else f"{checklist}\n",
        retries=0,
        timeout=_NO_LIMIT,
    )
