"""A heartbeat carried through: look at the world, check, ask the agent, judge what it says."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from heartbeat import checklist, precheck, verdict
from heartbeat.checks import Situation, checklist_of, first_obstacle, late_obstacle
from heartbeat.decision import Action, Decision, question
from heartbeat.items import Selection
from heartbeat.precheck import Found
from heartbeat.prompt import Facts, Prompt, compose, estimate, meta
from heartbeat.prompt import Wake as PromptWake
from heartbeat.runners import Answer, Run, Tokens
from heartbeat.runners import ask as runners
from heartbeat.spec import Decide, Heartbeat, ModelRunner, Runner
from scheduler import paces
from scheduler.outcome import WOKEN, Call, Ending, Failure, Kind, Outcome, Skip, Suppression
from scheduler.wake import Wake
from scheduler.work.entry import Claim, Elapsed, Start

A_MOMENT = timedelta(seconds=1)  # what is left at least for the run once a decision has been made


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
    def zone(self) -> ZoneInfo:
        return self.spec.zone

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
    def providers(self) -> tuple[str, ...]:
        asked = (self.spec.decide.runner if self.spec.decide else None, self.spec.runner)
        return tuple(dict.fromkeys(runner.provider.name for runner in asked if isinstance(runner, ModelRunner)))

    @property
    def lane(self) -> str:
        return self.spec.name

    @property
    def session_keep(self) -> int:
        return self.spec.session_keep

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

    def judge(self, text: str) -> Ending:
        return _judged(self.spec, text)

    def carry(self, claim: Claim, start: Start, elapsed: Elapsed) -> Ending:
        return beat(self.spec, claim, start, elapsed)

    def wakes(self, claim: Claim, ending: Ending) -> tuple[Wake, ...]:
        """A heartbeat wakes nobody."""
        return ()


def beat(spec: Heartbeat, claim: Claim, start: Start, elapsed: Elapsed) -> Ending:
    """One attempt of a heartbeat: nothing is asked before every gate has been passed."""
    situation = look(spec, claim)
    obstacle = first_obstacle(situation)
    if obstacle is not None:
        _create_if_wished(spec, obstacle)
        return Ending(Outcome.SKIPPED, obstacle)
    with suppress(OSError):  # where it cannot be made, the runner says so better
        spec.workspace.mkdir(parents=True, exist_ok=True)
    if spec.precheck is None:
        return _go_on(spec, claim, situation, start, elapsed)
    checked = precheck.look(spec, spec.precheck, claim.last_precheck, start)
    return replace(_checked(spec, claim, replace(situation, precheck=checked), start, elapsed), precheck=checked)


def _checked(spec: Heartbeat, claim: Claim, situation: Situation, start: Start, elapsed: Elapsed) -> Ending:
    """A beat whose precheck has been made."""
    checked = situation.precheck
    assert checked is not None
    if checked.found is Found.CUT or elapsed() >= spec.timeout:
        return Ending(Outcome.TIMEOUT, Failure.TIMEOUT, error="the run was ended during its precheck", transient=True)
    obstacle = late_obstacle(situation)
    if obstacle is not None:
        return Ending(Outcome.SKIPPED, obstacle, error=checked.error or None)
    return _go_on(spec, claim, situation, start, elapsed)


def _go_on(spec: Heartbeat, claim: Claim, situation: Situation, start: Start, elapsed: Elapsed) -> Ending:
    """What is to be asked is put together, measured and asked."""
    selection = situation.selection
    facts = _facts(spec, claim, situation, selection)
    prompt = compose(facts, spec)
    said = (text for _, text in claim.messages)
    if late_obstacle(replace(situation, tokens=estimate(prompt.text, *said))) is not None:
        return Ending(Outcome.SKIPPED, Skip.PROMPT_TOO_LARGE, prompt_parts=dict(prompt.sizes))
    return replace(_answered(spec, claim, facts, start, elapsed), selection=selection)


def _answered(spec: Heartbeat, claim: Claim, facts: Facts, start: Start, elapsed: Elapsed) -> Ending:
    """The agent's answer, or where a decision comes first and is to skip, that."""
    if spec.decide is None:
        return _asked(spec, claim, facts, start, _time_left(spec, elapsed) if spec.precheck else spec.timeout)
    decided = _decided(spec, spec.decide, claim, facts)
    if isinstance(decided, Ending):
        return decided
    ending = _asked(spec, claim, replace(facts, tasks=decided.tasks), start, _time_left(spec, elapsed))
    return replace(ending, calls=(_decision_call(spec.decide, decided.model_used, decided.tokens), *ending.calls))


def _time_left(spec: Heartbeat, elapsed: Elapsed) -> timedelta:
    return max(spec.timeout - elapsed(), A_MOMENT)


def _decided(spec: Heartbeat, decide: Decide, claim: Claim, facts: Facts) -> Ending | Decision:
    """What a model decides; the end of the run if that is to skip, or no decision at all."""
    prompt = question(facts, spec)
    answer = runners.decide(_run(spec, claim, facts, prompt, decide.model), decide.runner)
    if isinstance(answer, Answer):
        return _failed(answer, prompt, _call(decide.runner, decide.model, answer))
    if answer.action is Action.RUN:
        return answer
    return Ending(
        Outcome.OK,
        suppression=Suppression.DECIDED_SKIP,
        model_used=answer.model_used,
        prompt_parts=dict(prompt.sizes),
        calls=(_decision_call(decide, answer.model_used, answer.tokens),),
    )


def _decision_call(decide: Decide, model_used: str | None, tokens: Tokens | None) -> Call:
    return Call(decide.runner.provider.name, decide.model, model_used, tokens)


def _asked(spec: Heartbeat, claim: Claim, facts: Facts, start: Start, timeout: timedelta) -> Ending:
    prompt = compose(facts, spec)
    run = replace(_run(spec, claim, facts, prompt, spec.model), messages=claim.messages, timeout=timeout)
    answer = runners.ask(run, spec.runner, start)
    call = _call(spec.runner, spec.model, answer)
    if answer.failure is not None:
        return _failed(answer, prompt, call)
    ending = Ending(Outcome.ASYNC) if answer.later else _judged(spec, answer.text)
    return replace(ending, prompt_parts=dict(prompt.sizes), model_used=answer.model_used, calls=(call,))


def _call(runner: Runner, model: str | None, answer: Answer) -> Call:
    return Call(
        provider=runner.provider.name if isinstance(runner, ModelRunner) else None,
        model=model,
        model_used=answer.model_used,
        tokens=answer.tokens,
        cost_usd=answer.cost_usd,
        failure=answer.failure,
        retry_after=answer.retry_after,
        tools_ignored=answer.tools_ignored,
    )


def _run(spec: Heartbeat, claim: Claim, facts: Facts, prompt: Prompt, model: str | None) -> Run:
    about = {**meta(facts, spec), **_about(claim)}
    return Run(spec.name, prompt.text, model, spec.workspace, spec.timeout, about)


def look(spec: Heartbeat, claim: Claim) -> Situation:
    """All that the chain of checks wants to know, read at this beat."""
    return Situation(
        spec,
        claim.started_at,
        woken=_is_woken(claim),
        paused=claim.paused,
        busy=claim.busy,
        checklist=checklist_of(spec),
        breaker_open=claim.breaker_open,
        slot=claim.slot,
        asked=claim.asked,
    )


def _is_woken(claim: Claim) -> bool:
    """A beat is woken when a wake started it, and also when one rides along with its slot: it wants to be heard."""
    return claim.trigger in WOKEN or bool(claim.wakes)


def _create_if_wished(spec: Heartbeat, obstacle: Skip) -> None:
    if obstacle is Skip.CHECKLIST_MISSING and spec.on_missing == "create":
        checklist.create(spec.workspace, spec.checklist)


def _facts(spec: Heartbeat, claim: Claim, situation: Situation, selection: Selection) -> Facts:
    whole = "" if isinstance(situation.checklist, Skip) else situation.checklist
    memory = _read(spec, spec.memory) if situation.beats_without_a_list else ()
    return Facts(
        now=claim.started_at,
        last_beat=claim.last_beat,
        failures=claim.failures,
        wakes=tuple(PromptWake(wake.source, wake.sender, wake.count, wake.text, wake.outcome) for wake in claim.wakes),
        checklist=selection.text,
        context=() if spec.light_context else _read(spec, spec.context),
        precheck=situation.precheck,
        memory=memory,
        progress=checklist.progress(whole, *(text for _, text in memory)),
    )


def _read(spec: Heartbeat, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Files of the workspace by name; one that cannot be read is said to be missing, so that the agent does not wonder."""
    read = ((name, checklist.read(spec.workspace, name)) for name in names)
    return tuple((name, text if isinstance(text, str) else f"(this file is {text.value})") for name, text in read)


def _about(claim: Claim) -> dict[str, object]:
    """What the run itself adds to the facts that a runner gets."""
    return {
        "run": claim.run_id,
        "trigger": claim.trigger.value,
        "attempt": claim.attempt,
        "scheduled_at": claim.slot.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _failed(answer: Answer, prompt: Prompt, call: Call) -> Ending:
    return Ending(
        Outcome.TIMEOUT if answer.failure is Failure.TIMEOUT else Outcome.FAILED,
        answer.failure,
        error=answer.error,
        transient=answer.transient,
        model_used=answer.model_used,
        prompt_parts=dict(prompt.sizes),
        retry_after=answer.retry_after,
        calls=(call,),
    )


def _judged(spec: Heartbeat, text: str) -> Ending:
    judged = verdict.judge(text, spec.ok_match, spec.ack_max_chars)
    outcome = Outcome(judged.outcome)
    message: str | None = judged.text if outcome is Outcome.ALERT else None
    suppression = judged.suppression
    if outcome is Outcome.ALERT and not spec.show_alerts:
        suppression, message = Suppression.NOT_SHOWN, None
    if outcome is Outcome.OK and spec.show_ok:
        suppression, message = None, judged.text or verdict.TOKEN
    return Ending(outcome, suppression=suppression, text=text, message=message)
