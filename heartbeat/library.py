"""Runs one heartbeat by the daemon's rules, for programs that have their own main loop and their own agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

from heartbeat import findings, verdict
from heartbeat.checklist import count_boxes
from heartbeat.checks import Situation, Skip, create_missing_checklist, first_obstacle, load_checklist
from heartbeat.decision import Action, Decision, InvalidDecision, decision_prompt, parse_decision
from heartbeat.evidence import OpenProblem
from heartbeat.findings import Finding, merge_by_key
from heartbeat.hours import EVERY_DAY, Hours, parse_span, window
from heartbeat.prompt import PromptFacts, PromptWake, compose_prompt
from heartbeat.runners import Answer, Failure
from heartbeat.runners.agent_json import parse_answer
from heartbeat.runners.errors import CallError, redacted_line
from heartbeat.runners.redaction import Redactor
from heartbeat.spec import DedupNormalize, Heartbeat, OkMatch, OnMissing, PythonRunner
from heartbeat.verdict import Suppression

AgentReturn = str | Mapping[str, object] | None
"""What an agent returns: its text, None if it has nothing to report, or `{"text": ...}`, `{"findings": [...]}` (both with
`"truncated": True` if the answer was cut) or `{"error": ...}`."""

DecideReturn = Decision | Mapping[str, object]

_NO_TIME = timedelta(0)
_NO_SECRETS = Redactor(())
_THE_CALLER = PythonRunner("the caller's own", in_process=True)


@dataclass(frozen=True, slots=True)
class OpenCondition:
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

    `reason` says why the run was skipped or failed, `suppression` why nothing is delivered although the agent was called.
    `text` is the text to deliver, empty for nothing, and `answer` the agent's whole answer. `asked_at` is when the agent was
    last called, `failures` is the number of failures in a row. `told` has the digests of the delivered texts and when each was
    first delivered. `checked` has the checklist items with an `every` and when each was last checked. `truncated`: the answer was
    cut at a token limit, which the last line of `text` says too. `findings` are those of the answer, and `conditions` those of
    this and earlier answers that still hold.
    """

    at: datetime
    outcome: Literal["ok", "alert", "failed", "skipped"]
    reason: Skip | Failure | None = None
    suppression: Suppression | None = None
    text: str = ""
    answer: str = ""
    error: str = ""
    asked_at: datetime | None = None
    failures: int = 0
    told: tuple[tuple[str, datetime], ...] = ()
    checked: tuple[tuple[str, datetime], ...] = ()
    truncated: bool = False
    findings: tuple[Finding, ...] = ()
    conditions: tuple[OpenCondition, ...] = ()


def beat(
    ask: Callable[[str], AgentReturn] | None = None,
    *,
    now: datetime,
    checklist: str | Path,
    decide: Callable[[str], DecideReturn] | None = None,
    on_execute: Callable[[str], AgentReturn] | None = None,
    on_notify: Callable[[str], object] | None = None,
    last: Beat | None = None,
    woken_by: str | None = None,
    name: str = "agent",
    prompt: str | None = None,
    active_hours: str | Hours = "always",
    timezone: str | ZoneInfo = "UTC",
    on_missing: OnMissing = "skip",
    on_empty: Literal["skip", "run"] = "skip",
    ok_match: OkMatch = "edges",
    ack_max_chars: int = 5,
    strip_reasoning: bool = True,
    show_ok: bool = False,
    show_alerts: bool = True,
    dedup_window: timedelta = timedelta(hours=24),
    dedup_normalize: DedupNormalize = "text",
) -> Beat:
    """Do one heartbeat run at `now` (aware): the checks, the call of the agent, the verdict, and `on_notify(text)` if there is
    something to deliver.

    `ask` gets the prompt. If `decide` is given, it is called first and returns `{"action": "skip" or "run", "tasks": text}`.
    With `run`, the tasks go to `on_execute(tasks)`, or else to `ask` in its prompt. `checklist` is a file as a Path, or the
    text itself. `active_hours` is "HH:MM-HH:MM" in `timezone`, "always", or an Hours object. `woken_by` is the reason for a run
    outside the schedule: then an empty or missing checklist does not skip it. An exception in ask, decide or on_execute, except
    KeyboardInterrupt, makes the run failed. An exception in on_notify is passed to the caller, and the text does not count as
    delivered. Raises ValueError if `now` has no time zone, if there is no function to call, and for invalid hours.
    """
    if now.tzinfo is None:
        raise ValueError("now has no time zone; pass an aware datetime, best in UTC")
    if ask is None and (decide is None or on_execute is None):
        raise ValueError("there is no function to call; pass ask, or decide and on_execute")
    zone = ZoneInfo(timezone) if isinstance(timezone, str) else timezone
    spec = replace(
        _bare_heartbeat(checklist),
        name=name,
        prompt=prompt,
        zone=zone,
        hours=_parse_hours(active_hours, zone),
        on_missing=on_missing,
        on_empty=on_empty,
        ok_match=ok_match,
        ack_max_chars=ack_max_chars,
        strip_reasoning=strip_reasoning,
        show_ok=show_ok,
        show_alerts=show_alerts,
        dedup_window=dedup_window,
        dedup_normalize=dedup_normalize,
    )
    before = last or Beat(now, "skipped")
    run = _run_beat(spec, _AgentCallbacks(ask, decide, on_execute), before, now.astimezone(UTC), woken_by)
    if run.text and on_notify is not None:
        on_notify(run.text)
    return run


@dataclass(frozen=True, slots=True)
class _AgentCallbacks:
    ask: Callable[[str], AgentReturn] | None
    decide: Callable[[str], DecideReturn] | None
    on_execute: Callable[[str], AgentReturn] | None


def _run_beat(spec: Heartbeat, agent: _AgentCallbacks, before: Beat, now: datetime, woken_by: str | None) -> Beat:
    found, checked = load_checklist(spec), dict(before.checked)
    situation = Situation(spec, now, woken=woken_by is not None, paused=False, checklist=found, last_prompted=checked)
    obstacle = first_obstacle(situation)
    skipped = replace(_carry_over(before, now), outcome="skipped")
    if obstacle is not None:
        return replace(skipped, reason=obstacle, error=create_missing_checklist(spec, obstacle) or "")
    selection = situation.selection
    facts = PromptFacts(
        now,
        before.asked_at,
        before.failures,
        (PromptWake("manual", "caller", 1, woken_by),) if woken_by is not None else (),
        selection.text,
        progress=count_boxes("" if isinstance(found, Skip) else found),
        conditions=_known_conditions(before),
    )
    try:
        answer = _get_answer(spec, agent, facts)
    except CallError as error:
        answer = error.answer
    run = _judge_answer(spec, before, now, answer)
    if run.outcome == "failed":
        return run
    kept = {item: at for item, at in checked.items() if item in selection.recurring_items}
    return replace(run, checked=tuple((kept | dict.fromkeys(sorted(selection.prompted_items), now)).items()))


def _get_answer(spec: Heartbeat, agent: _AgentCallbacks, facts: PromptFacts) -> Answer | None:
    """The agent's answer. None if the decision was that there is nothing to do."""
    if agent.decide is None:
        assert agent.ask is not None
        return _to_answer(_call_function(agent.ask, compose_prompt(facts, spec).text))
    decision = _to_decision(_call_function(agent.decide, decision_prompt(facts, spec).text))
    if decision.action is Action.SKIP:
        return None
    if agent.on_execute is not None:
        return _to_answer(_call_function(agent.on_execute, decision.tasks))
    assert agent.ask is not None
    return _to_answer(_call_function(agent.ask, compose_prompt(replace(facts, tasks=decision.tasks), spec).text))


def _call_function(function: Callable[[str], Any], text: str) -> Any:
    # SystemExit fails only this run too. A KeyboardInterrupt is meant for the whole program.
    try:
        return function(text)
    except (Exception, SystemExit) as error:
        raise CallError(Failure.EXIT, redacted_line(f"it raised {type(error).__name__}: {error}", _NO_SECRETS)) from error


def _to_answer(value: object) -> Answer:
    answer = parse_answer(value, failed=Failure.EXIT, redactor=_NO_SECRETS)
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
        conditions=before.conditions,
    )


def _known_conditions(before: Beat) -> tuple[OpenProblem, ...]:
    """The open conditions as the prompt lists them."""
    return tuple(
        OpenProblem(known.finding.label, known.finding.severity, known.finding.text, known.since, known.reported_at)
        for known in before.conditions
    )


def _judge_answer(spec: Heartbeat, before: Beat, now: datetime, answer: Answer | None) -> Beat:
    run = replace(_carry_over(before, now), asked_at=now, failures=0)
    if answer is None:
        return replace(run, suppression=Suppression.DECIDED_SKIP)
    if answer.failure is not None:
        return replace(run, outcome="failed", reason=answer.failure, error=answer.error, failures=before.failures + 1)
    content = verdict.without_reasoning(answer.text, strip_reasoning=spec.strip_reasoning, truncated=answer.truncated)
    if answer.truncated:
        content = verdict.without_cut_end(content)
    run = replace(run, answer=answer.text, truncated=answer.truncated)
    if answer.truncated and not content.strip() and not (answer.report and answer.report.findings):
        error = "the answer was cut at its token limit before it contained any text"
        return replace(run, outcome="failed", reason=Failure.BAD_ANSWER, error=error, failures=before.failures + 1)
    report = findings.find_report(answer.report, content, strip_reasoning=spec.strip_reasoning, is_cut=answer.truncated)
    judged = verdict.judge_for(spec, report.text if report else content, truncated=answer.truncated)
    holds = [finding for finding in report.findings if not finding.resolved] if report else []
    run = replace(run, outcome="alert" if holds else judged.outcome, findings=merge_by_key(report.findings) if report else ())
    if run.outcome == "alert" and not spec.show_alerts:
        return replace(run, suppression=Suppression.NOT_SHOWN)
    run, news = _update_conditions(spec, run)
    if news and report and report.loose:
        news = [report.loose, *news]
    text = judged.text if judged.outcome == "alert" else ""
    if run.outcome == "ok" and not news and spec.show_ok:
        text = judged.text or verdict.OK_TOKEN
    if text:
        run, text = _drop_duplicate(spec, run, text)
    whole = "\n\n".join(part for part in ("\n".join(news), text) if part)
    if whole:
        return replace(run, text=verdict.with_cut_note(whole, truncated=answer.truncated))
    if run.outcome == "alert" or spec.show_ok:
        return replace(run, suppression=Suppression.DUPLICATE)
    return replace(run, suppression=Suppression.HEARTBEAT_OK if report else judged.suppression)


def _update_conditions(spec: Heartbeat, run: Beat) -> tuple[Beat, list[str]]:
    """The result with the conditions that still hold, and a line for each finding that is news.

    A finding is news if its key is new, if its severity has risen above the reported one, if it was reported longer ago than
    the window, or if it resolves a condition. A condition ends without a line after `clear_after` complete answers without it.
    """
    known = {condition.finding.key: condition for condition in run.conditions}
    kept: dict[str, OpenCondition] = {}
    news = []
    for finding in run.findings:
        before = known.pop(finding.key, None)
        if finding.resolved:
            news += [finding.line] if before else []
        elif before is None or finding.severity.rank > before.finding.severity.rank:
            kept[finding.key] = OpenCondition(finding, before.since if before else run.at, run.at)
            news.append(finding.line)
        else:
            is_due = run.at - before.reported_at >= spec.dedup_window
            latest = replace(finding, severity=before.finding.severity)
            kept[finding.key] = OpenCondition(latest, before.since, run.at if is_due else before.reported_at)
            news += [finding.line] if is_due else []
    for key, condition in known.items():
        missed = condition.missed + (0 if run.truncated else 1)
        if missed < spec.clear_after:
            kept[key] = replace(condition, missed=missed)
    return replace(run, conditions=tuple(kept.values())), news


def _drop_duplicate(spec: Heartbeat, run: Beat, text: str) -> tuple[Beat, str]:
    """The result and the text, which is empty if it was delivered within the window. The window counts from the first time."""
    fresh = tuple((digest, first) for digest, first in run.told if run.at - first < spec.dedup_window)
    digest = verdict.message_digest(verdict.with_cut_note(text, truncated=run.truncated), spec.dedup_normalize)
    if digest in dict(fresh):
        return replace(run, told=fresh), ""
    return replace(run, told=(*fresh, (digest, run.at))), text


def _parse_hours(given: str | Hours, zone: ZoneInfo) -> Hours:
    if isinstance(given, Hours):
        return given
    return Hours() if given == "always" else Hours((window(*parse_span(given), EVERY_DAY, zone),))


def _bare_heartbeat(checklist: str | Path) -> Heartbeat:
    """The settings of a heartbeat with only a checklist. Settings that only the daemon uses are empty."""
    return Heartbeat(
        name="agent",
        enabled=True,
        interval=None,
        stagger=_NO_TIME,
        hours=Hours(),
        zone=ZoneInfo("UTC"),
        grace=_NO_TIME,
        workspace=checklist.absolute().parent if isinstance(checklist, Path) else Path(),
        runner=_THE_CALLER,
        model=None,
        checklist=checklist.name if isinstance(checklist, Path) else f"{checklist}\n",
        retries=0,
        timeout=_NO_TIME,
    )
