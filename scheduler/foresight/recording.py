"""Turns recorded runs back into what the world outside the daemon did: answers, prechecks and commands."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, Literal
from zoneinfo import ZoneInfo

from heartbeat.findings import Finding, Report, Severity
from heartbeat.runners import Action, Answer, Decision, Failure, ProcessResult, Tokens
from heartbeat.verdict import OK_TOKEN, Suppression
from heartbeat.words import format_count
from scheduler.model.outcome import FAILURES, FAILURES_WITH_ANSWER, PRECHECK_SKIPS, Key, Outcome, Reason, Skip, Trigger
from scheduler.model.problem import Effect
from scheduler.store.recorded_runs import RecordedRun

Form = Literal["text", "findings", "decision"]

MIN_WHOLE_DAYS = 2
LIKE_WITHIN = timedelta(hours=12)  # of the same time of a recorded day


class Recording:
    """The recorded runs of all entries. `zone` is that of their days."""

    def __init__(self, runs: Sequence[RecordedRun], zone: ZoneInfo) -> None:
        self.zone = zone
        self._runs: dict[Key, list[RecordedRun]] = defaultdict(list)
        for run in runs:
            self._runs[run.key].append(run)
        self._slots = {key: [run.slot for run in of_entry] for key, of_entry in self._runs.items()}
        looked = (run.slot.astimezone(zone).date() for run in runs if was_looked_at(run))
        days = sorted(set(looked))
        self._days = days[1:-1] if len(days) > MIN_WHOLE_DAYS else days  # the first and the last may be parts of a day

    def describe(self, keys: Collection[Key]) -> str:
        """How much was recorded of these agents and jobs."""
        number = sum(len(self._runs.get(key, ())) for key in keys)
        return f"{format_count(len(self._days), 'day')} with {format_count(number, 'run record')}"

    def __bool__(self) -> bool:
        return bool(self._days)

    def at(self, key: Key, slot: datetime, trigger: Trigger) -> RecordedRun | None:
        """What became of this slot: its own record, or that of the skipped slots to which it belongs."""
        runs, place = self._runs.get(key, []), bisect_right(self._slots.get(key, []), slot)
        for run in reversed(runs[max(0, place - 4) : place]):  # a wake or a late result can have the same time
            if run.trigger is trigger and (run.slot == slot or (run.slots > 1 and slot <= run.finished_at)):
                return run
        return None

    def near(self, key: Key, instant: datetime, within: timedelta) -> RecordedRun | None:
        """The record of a slot at most `within` before or after this time, the nearest one; the earlier one if two are equal."""
        runs, place = self._runs.get(key, []), bisect_right(self._slots.get(key, []), instant)
        around = runs[max(0, place - 2) : place + 2]
        # Skipped slots that share a record reach from its first slot to its end.
        distances = [(_distance(run, instant), run.slot, run) for run in around if was_looked_at(run)]
        distance, _, nearest = min(distances, key=lambda each: each[:2], default=(within, instant, None))
        return nearest if distance <= within else None

    def like_day(self, key: Key, slot: datetime, seed: int) -> RecordedRun | None:
        """What was recorded at this local time of day, on a recorded day that the seed chooses for the day of the slot."""
        local = slot.astimezone(self.zone)
        day = Random(f"{seed} {local.date()}").choice(self._days)  # noqa: S311 (nothing is secret about it)
        return self.near(key, datetime.combine(day, local.timetz()).astimezone(slot.tzinfo), LIKE_WITHIN)


def was_looked_at(run: RecordedRun) -> bool:
    """Whether it shows what the world was like: an agent or a command was called, or a precheck was made."""
    return run.outcome is not Outcome.SKIPPED or run.why in PRECHECK_SKIPS


def _distance(run: RecordedRun, instant: datetime) -> timedelta:
    last = run.finished_at if run.slots > 1 else run.slot
    return max(run.slot - instant, instant - last, timedelta())


def recorded_answer(run: RecordedRun, form: Form, *, decides: str | None = None) -> Answer:
    """The answer of its agent in this form. `decides` is the model that decides before the agent is called."""
    if form == "decision":
        tokens, cost = _usage({model: used for model, used in run.usage.items() if model == decides})
        is_skip = run.why == Suppression.DECIDED_SKIP
        return Answer(decision=Decision(Action.SKIP if is_skip else Action.RUN, ""), tokens=tokens, cost_usd=cost)
    tokens, cost = _usage({model: used for model, used in run.usage.items() if model != decides})
    if run.outcome in FAILURES and run.why not in FAILURES_WITH_ANSWER:
        failure = Failure.TIMEOUT if run.outcome is Outcome.TIMEOUT else _failure(run.why)
        return Answer(failure=failure, error=run.error or "", tokens=tokens, cost_usd=cost)
    if run.outcome is Outcome.ASYNC:
        return Answer(later=True, tokens=tokens, cost_usd=cost)
    report = _report(run, form)
    text = (run.text or "") if report is None else str(report)
    return Answer(text, report=report, tokens=tokens, cost_usd=cost, truncated=run.truncated)


def _failure(reason: str | None) -> Failure:
    return Failure(reason) if reason in tuple(Failure) else Failure.EXIT


def _usage(used: Mapping[str, Mapping[str, Any]]) -> tuple[Tokens | None, float | None]:
    """The tokens, and the cost if there are none: otherwise the prices of the config apply."""
    if not used:
        return None, None
    tokens = sum((Tokens(*(each[kind] for kind in Tokens().by_kind())) for each in used.values()), start=Tokens())
    costs = [each["usd"] for each in used.values() if each["usd"] is not None]
    return (tokens, None) if tokens.total else (None, sum(costs) if costs else None)


def _report(run: RecordedRun, form: Form) -> Report | None:
    """The findings of the answer; None if it is a text without any."""
    said = [each for each in run.findings if "text" in each]
    failed = (run.error or "") if run.why == Reason.REPORTED_FAILURE else ""
    if not said and not failed and form != "findings":
        return None
    found: list[Finding] = []
    unconfirmed: list[Finding] = []
    for each in said:
        finding = Finding(each["key"], each["text"], Severity(each["severity"]), each["resolved"])
        (unconfirmed if each["effect"] == Effect.UNCONFIRMED else found).append(finding)
    lines = {line for finding in (*found, *unconfirmed) for line in finding.line.splitlines()}
    lines |= {f"failed: {failed}", OK_TOKEN}
    rest = "\n".join(line for line in (run.text or "").splitlines() if line not in lines)
    # Text beside findings is only sent with them, unless it was asked for: then it is an alert without them.
    is_asked_for = run.outcome is Outcome.ALERT and all(finding.resolved for finding in found)
    text, loose = (rest, "") if is_asked_for else ("", rest)
    return Report(tuple(found), text, loose, unconfirmed=tuple(unconfirmed), failed=failed)


def recorded_precheck(run: RecordedRun) -> ProcessResult:
    """How its precheck ended. One of which only the skip is known printed that there is nothing to do."""
    output = "NO_WORK" if run.precheck_output is None or run.why == Skip.PRECHECK else run.precheck_output
    code = 1 if run.precheck_error and not run.precheck_exit else run.precheck_exit or 0
    return ended(output, exit_code=code, errors=run.precheck_error or "")


def recorded_command(run: RecordedRun) -> ProcessResult:
    """How the command of a job ended."""
    code = run.exit_code if run.exit_code is not None else int(run.outcome in FAILURES)
    return ended(run.text or "", exit_code=code, errors=run.error or "")


def ended(output: str, *, exit_code: int = 0, errors: str = "") -> ProcessResult:
    """A program that has ended with this output."""
    data = output.encode()
    return ProcessResult(exit_code, data, errors.encode(), size=len(data))
