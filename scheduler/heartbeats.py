"""A heartbeat carried through: look at the world, check, ask the agent, judge what it says."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from heartbeat import checklist, verdict
from heartbeat.checks import Situation, checklist_of, first_obstacle
from heartbeat.prompt import Facts, Prompt, compose, meta
from heartbeat.prompt import Wake as PromptWake
from heartbeat.runners import Answer, Run, command
from heartbeat.spec import Heartbeat
from scheduler import paces
from scheduler.entry import Claim, Start
from scheduler.outcome import WOKEN, Ending, Failure, Kind, Outcome, Skip, Suppression
from scheduler.wake import Wake


@dataclass(frozen=True, slots=True)
class HeartbeatEntry:
    """A heartbeat as the queue sees it."""

    spec: Heartbeat

    kind = Kind.HEARTBEAT
    catch_up = True
    again_after_crash = True
    starts_at_boot = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def enabled(self) -> bool:
        return self.spec.enabled

    @property
    def pace_text(self) -> str:
        return paces.of_heartbeat(self.spec)

    @property
    def grace(self) -> timedelta:
        return self.spec.grace

    @property
    def retries(self) -> int:
        return self.spec.retries

    @property
    def timeout(self) -> timedelta:
        return self.spec.timeout

    @property
    def model(self) -> str | None:
        return self.spec.model

    @property
    def deliver(self) -> tuple[str, ...]:
        return self.spec.deliver

    @property
    def dedup_window(self) -> timedelta:
        return self.spec.dedup_window

    def open_at(self, now: datetime) -> bool:
        return self.spec.hours.open_at(now)

    def closes(self, now: datetime) -> datetime | None:
        return self.spec.hours.closes(now)

    def digest(self, message: str) -> str:
        return verdict.digest(message, self.spec.dedup_normalize)

    def carry(self, claim: Claim, start: Start) -> Ending:
        return beat(self.spec, claim, start)

    def wakes(self, claim: Claim, ending: Ending) -> tuple[Wake, ...]:
        """A heartbeat wakes nobody."""
        return ()


def beat(spec: Heartbeat, claim: Claim, start: Start) -> Ending:
    """One attempt of a heartbeat: nothing is asked before every gate has been passed."""
    situation = look(spec, claim)
    obstacle = first_obstacle(situation)
    if obstacle is not None:
        _create_if_wished(spec, obstacle)
        return Ending(Outcome.SKIPPED, obstacle)
    facts = _facts(spec, claim, situation)
    prompt = compose(facts, spec)
    run = Run(spec.name, prompt.text, spec.model, spec.workspace, spec.timeout, {**meta(facts, spec), **_about(claim)})
    with suppress(OSError):  # where it cannot be made, the program says so better
        spec.workspace.mkdir(parents=True, exist_ok=True)
    answer = command.ask(run, spec.runner, start)
    return _failed(answer, prompt) if answer.failure is not None else _judged(spec, answer, prompt)


def look(spec: Heartbeat, claim: Claim) -> Situation:
    """All that the chain of checks wants to know, read at this beat."""
    return Situation(spec, claim.started_at, woken=_is_woken(claim), paused=claim.paused, checklist=checklist_of(spec))


def _is_woken(claim: Claim) -> bool:
    """A beat is woken when a wake started it, and also when one rides along with its slot: it wants to be heard."""
    return claim.trigger in WOKEN or bool(claim.wakes)


def _create_if_wished(spec: Heartbeat, obstacle: Skip) -> None:
    if obstacle is Skip.CHECKLIST_MISSING and spec.on_missing == "create":
        checklist.create(spec.workspace, spec.checklist)


def _facts(spec: Heartbeat, claim: Claim, situation: Situation) -> Facts:
    return Facts(
        now=claim.started_at,
        last_beat=claim.last_beat,
        failures=claim.failures,
        wakes=tuple(PromptWake(wake.source, wake.sender, wake.count, wake.text, wake.outcome) for wake in claim.wakes),
        checklist="" if isinstance(situation.checklist, Skip) else situation.checklist,
        context=() if spec.light_context else tuple(_context(spec)),
    )


def _context(spec: Heartbeat) -> list[tuple[str, str]]:
    """The context files that can be read; one that cannot is said to be missing, so that the agent does not wonder."""
    read = ((name, checklist.read(spec.workspace, name)) for name in spec.context)
    return [(name, text if isinstance(text, str) else f"(this file is {text.value})") for name, text in read]


def _about(claim: Claim) -> dict[str, object]:
    """What the run itself adds to the facts that a runner gets."""
    return {
        "run": claim.run_id,
        "trigger": claim.trigger.value,
        "attempt": claim.attempt,
        "scheduled_at": claim.slot.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _failed(answer: Answer, prompt: Prompt) -> Ending:
    return Ending(
        Outcome.TIMEOUT if answer.failure is Failure.TIMEOUT else Outcome.FAILED,
        answer.failure,
        error=answer.error,
        transient=answer.transient,
        model_used=answer.model_used,
        prompt_parts=dict(prompt.sizes),
        retry_after=answer.retry_after,
    )


def _judged(spec: Heartbeat, answer: Answer, prompt: Prompt) -> Ending:
    judged = verdict.judge(answer.text, spec.ok_match, spec.ack_max_chars)
    outcome = Outcome(judged.outcome)
    suppression = Suppression(judged.suppression) if judged.suppression else None
    message: str | None = judged.text if outcome is Outcome.ALERT else None
    if outcome is Outcome.ALERT and not spec.show_alerts:
        suppression, message = Suppression.NOT_SHOWN, None
    if outcome is Outcome.OK and spec.show_ok:
        suppression, message = None, judged.text or "HEARTBEAT_OK"
    return Ending(
        outcome,
        suppression=suppression,
        text=answer.text,
        message=message,
        model_used=answer.model_used,
        prompt_parts=dict(prompt.sizes),
    )
