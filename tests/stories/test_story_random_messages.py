"""Random looks, failures, refusals, mutes, acknowledgements, reloads, crashes and clock changes: each recipient gets what the rules say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from message_rules import HOUR, LOG, NOTHING, OPENS, OVER, REMINDS, RISES, UNSTABLE, Expected, Place, Rules
from servers.postgres import delete_all_rows
from simulation import IS_LONG, seeds, size
from world import ON_SERVER, AgentCall, CachingWorld, DatabaseOf, utc

from heartbeatd.verbs import Ack, CloseProblem, Mute, Unack, Unmute
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind, Trigger

CONFIG = """
limits: {{wake_gap: 1s, wake_flood: 1000 per 1m, new_problems: 1000}}
channels:
  phone: {{kind: webhook, url: "http://127.0.0.1:9/phone", allow_private: true}}
  mail: {{kind: webhook, url: "http://127.0.0.1:9/mail", allow_private: true}}
defaults:
  runner: {{kind: command, argv: [agent]}}
  heartbeat: {{interval: none, checklist: "- look\\n", retries: 0, problems: {{remind: {remind}}}}}
agents:
  ops: {{heartbeat: {{deliver: [{ops}]}}}}
  host: {{heartbeat: {{deliver: phone, precheck: {{command: ./check.sh}}}}}}
cron:
  backup: {{schedule: "0 0 1 1 *", command: backup, deliver: mail, problems: {{remind: {remind}}}}}
"""
STEPS = 500  # of an example
SEVERITIES = ("info", "warning", "critical")
TEXTS = {"disk:/var": "the volume fills up", "cert": "certificate expires", "queue": "letters pile up"}  # without a common word
LINES = {"nginx": "nginx.service died", "raid": "degraded array md0", "clock": "time drifts"}
PREFIXES = ("info: ", "", "critical: ")  # of a line, by its severity
WAITS = (timedelta(minutes=7), HOUR, 5 * HOUR, 13 * HOUR, 25 * HOUR)

FORM = re.compile(r"(?P<word>CRITICAL|warning|info|over) +(?P<subject>channel \w+|[\w/]+) (?P<key>[\w:/-]+): (?P<rest>.*)")
KINDS = {r".*\(unstable": UNSTABLE, r".*\(reminder": REMINDS, r".*\(was ": RISES, "": OPENS}


@dataclass(frozen=True)
class Attempt:
    """One attempt to send a message. `is_first`: it was not tried before."""

    channel: str
    key: str
    name: str
    text: str
    state: str
    waits: timedelta
    is_first: bool

    def items(self) -> Iterator[tuple[str, str, str]]:
        """What the message says: subject, key, and what happens."""
        for line in self.text.splitlines():
            if found := FORM.fullmatch(line):
                kind = next(KINDS[each] for each in KINDS if re.match(each, found["rest"]))
                yield found["subject"], found["key"], OVER if found["word"] == "over" else kind


class Watched(CachingWorld):
    """A world that records the attempts to send a message, to channels that refuse some."""

    def __post_init__(self) -> None:
        self.states = {"phone": "delivered", "mail": "delivered"}
        self.attempts: list[list[Attempt]] = []  # of each tick
        self.tried: set[str] = set()
        super().__post_init__()

    def _send(self, outgoing: Delivery) -> tuple[DeliveryResult, timedelta]:
        message, name = outgoing.message, outgoing.channel.name
        key = f"{name} {message.key}"
        state = self.states.get(name, "delivered")
        waits = self.clock.now - message.created_at
        if not self.deliveries.results():
            self.attempts.append([])
        self.attempts[-1].append(Attempt(name, key, message.name, message.text, state, waits, key not in self.tried))
        self.tried.add(key)
        return DeliveryResult(state, "" if state == "delivered" else "refused"), timedelta()


class Messages(RuleBasedStateMachine):
    """Plays the same events in the daemon and by the rules."""

    begin: Callable[[], Watched]

    def __init__(self) -> None:
        super().__init__()
        self.remind, self.ops = timedelta(days=1), ["phone", "mail"]
        self.world = type(self).begin()
        self.rules = Rules({"ops": self.ops, "host": ["phone"], "cron/backup": ["mail"]})
        self.elapsed_from = self.world.clock.monotonic
        self.answers: dict[str, Any] = {"ops": "", "host": "", "backup": ""}
        self.plays: dict[str, Callable[[], Expected]] = {}
        self.ran: list[str] = []  # the agents and jobs that ran, and what they did is not played by the rules yet
        self.lines: dict[str, int] = {}
        self.items: dict[str, list[tuple[Place, str]]] = {}  # what each message said
        self.pending: set[str] = set()
        self.refused_since = timedelta()
        self.world.scripts |= {"ops": self._execute, "host": self._execute, "backup": self._execute}
        self.world.prechecks["host"] = lambda _: (
            "\n".join(PREFIXES[severity] + LINES[key] for key, severity in self.lines.items()) or "none of the lines below"
        )

    @initialize(number=st.integers(0, 2**32))
    def leave_out_the_simplest_steps(self, number: int) -> None:
        """Hypothesis begins with an example that only repeats the simplest step. It is rejected, so it does not count."""
        hypothesis.assume(number)

    def _execute(self, call: AgentCall) -> Any:
        self.ran.append(call.name)
        return self.answers[call.name]

    def teardown(self) -> None:
        self.world.store.close()

    # --- looks and runs -------------------------------------------------------------------------------------------------

    @rule(
        mentioned=st.dictionaries(st.sampled_from(tuple(TEXTS)), st.integers(0, 2)),
        resolved=st.sets(st.sampled_from(tuple(TEXTS))),
    )
    def ops_answers(self, mentioned: dict[str, int], resolved: set[str]) -> None:
        mentioned = {key: severity for key, severity in mentioned.items() if not self.rules.is_return_in_doubt("ops", key)}
        resolved -= mentioned.keys()
        found = [_finding(key, TEXTS[key], severity) for key, severity in mentioned.items()]
        answer = json.dumps({"findings": [*found, *(_finding(key, "", 1, is_over=True) for key in resolved)]})
        self._run("ops", answer, lambda: self.rules.look("ops", mentioned, resolved))

    @rule(lines=st.dictionaries(st.sampled_from(tuple(LINES)), st.integers(0, 2)), omits=st.booleans())
    def host_answers(self, lines: dict[str, int], omits: bool) -> None:
        named = set(list(lines)[omits:])
        self.lines = lines
        answer = json.dumps({"findings": [_finding(key, LINES[key], 1) for key in named]})
        self._run("host", answer, lambda: self.rules.look_at_lines("host", lines, named))

    @rule()
    def ops_fails(self) -> None:
        self._run("ops", 3, lambda: self.rules.fail("ops"))

    @rule(lines=st.dictionaries(st.sampled_from(tuple(LINES)), st.integers(0, 2)))
    def host_fails(self, lines: dict[str, int]) -> None:
        self.lines = lines
        self._run("host", 3, lambda: self.rules.look_at_lines("host", lines, (), fails=True))

    @rule(fails=st.booleans())
    def backup_runs(self, fails: bool) -> None:
        job = "cron/backup"
        self._run("backup", 1 if fails else "", lambda: self.rules.fail(job) if fails else self.rules.work(job))

    # --- what else happens ----------------------------------------------------------------------------------------------

    @rule(channel=st.sampled_from(("phone", "mail")), state=st.sampled_from(("delivered", "dead", "retry")))
    def a_channel_changes(self, channel: str, state: str) -> None:
        if state == "retry" and self.rules.has_passed(2 * HOUR, self.rules.now - 2 * HOUR) is None:
            return  # nothing is called late while the clock was set
        if state == "retry" and not self.pending:
            self.refused_since = self.rules.now
        self.world.states[channel] = state

    @rule(wait=st.sampled_from(WAITS))
    def time_passes(self, wait: timedelta) -> None:
        if self.pending:  # do not let a message be given up because of its age
            wait = min(wait, HOUR)
            if self.rules.now - self.refused_since > 15 * HOUR:
                self.world.states = dict.fromkeys(self.world.states, "delivered")
        self.world.clock.advance(wait)
        self._check()

    @precondition(lambda self: not (self.pending or "retry" in self.world.states.values() or self.rules.was_muted_within(HOUR)))
    @rule(by=st.sampled_from((-50, -5, 5, 50)))
    def the_clock_is_set(self, by: int) -> None:
        self.world.clock.now += timedelta(minutes=by)
        self.rules.set_clock(timedelta(minutes=by))
        self._check()

    @rule()
    def the_daemon_crashes(self) -> None:
        self.rules.restart()
        self.world.downtime(seconds=30)
        self._check()

    @rule(remind=st.sampled_from((12, 24)), ops=st.sampled_from((["phone", "mail"], ["mail"])))
    def the_config_is_reloaded(self, remind: int, ops: list[str]) -> None:
        self.rules.reload("ops", ops, timedelta(hours=remind))
        self.world.reload(config(remind, ops))
        self._check()

    @rule(subject=st.sampled_from(("ops", "host", "cron/backup")), hours=st.sampled_from((1, 30)))
    def a_user_mutes(self, subject: str, hours: int) -> None:
        self.world.request(VerbRequest(Mute.of(until=self.world.clock.now + timedelta(hours=hours)), _entry(subject)))
        self.rules.muted_until[subject] = self.world.clock.now - utc(self.world.start) + timedelta(hours=hours)

    @rule(subject=st.sampled_from(("ops", "host", "cron/backup")))
    def a_user_unmutes(self, subject: str) -> None:
        self.world.request(VerbRequest(Unmute(), _entry(subject)))
        if self.rules.is_muted(subject):
            del self.rules.muted_until[subject]

    @rule(key=st.sampled_from(tuple(TEXTS)), again=st.booleans())
    def a_user_acknowledges(self, key: str, again: bool) -> None:
        if self._is_open("ops", key):
            problem = self.world.problem(key)
            if again and problem.acknowledgement is None:
                return
            self.world.request(VerbRequest(Unack() if again else Ack(), problem.id, Sender("Mary")))
            self.rules.unacknowledge("ops", key) if again else self.rules.acknowledge("ops", key)

    @rule(subject=st.sampled_from(("ops", "host")), key=st.sampled_from((*TEXTS, *LINES)))
    def a_user_closes(self, subject: str, key: str) -> None:
        if self._is_open(subject, key):
            self.world.request(VerbRequest(CloseProblem(), self.world.problem(key, subject).id, Sender("Mary")))
            self.rules.close(subject, key)

    # --- comparing ------------------------------------------------------------------------------------------------------

    def _is_open(self, subject: str, key: str) -> bool:
        problem = self.rules.problems.get((subject, key))
        return problem is not None and problem.is_open

    def _run(self, name: str, answer: Any, played: Callable[[], Expected]) -> None:
        """Run an agent or the job, with this answer now and whenever it is repeated."""
        self.answers[name], self.plays[name] = answer, played
        self.world.run_job(name) if name == "backup" else self.world.wake(name, source=Trigger.MANUAL)
        self._check()

    def _check(self) -> None:
        """Let the daemon do what is due, and compare what it sends with what it must send."""
        self.world.clock.advance(timedelta(seconds=2))
        self.world.settle()
        self.rules.now = timedelta(seconds=self.world.clock.monotonic - self.elapsed_from)
        self.rules.clock = self.world.clock.now - utc(self.world.start)
        expected: Expected = {}
        for name in self.ran:
            expected |= self.plays[name]()
        self.ran.clear()
        attempts, self.world.attempts = self.world.attempts, []
        for of_tick in attempts:  # their results are recorded together, before the daemon looks what follows from them
            for attempt in of_tick:
                self._compare(attempt, expected)
            for number, attempt in enumerate(of_tick):
                given_up = {later.key for later in of_tick[number:] if later.state == "dead"}
                expected = self._outcome(attempt, given_up) | expected  # a message that is queued already stays with its channel
        missing = {place: chance for place, chance in expected.items() if NOTHING not in chance.kinds}
        assert not missing, f"not sent: {missing}"

    def _compare(self, attempt: Attempt, expected: Expected) -> None:
        if attempt.is_first:
            self.items[attempt.key] = list(self._new_items(attempt, expected))
        if attempt.state == "delivered":
            self.rules.delivered_at[attempt.channel] = self.rules.now
        for place, kind in self.items[attempt.key] if attempt.state != "retry" else ():
            self.rules.settle(place, attempt.key, kind if attempt.state == "dead" else "")

    def _new_items(self, attempt: Attempt, expected: Expected) -> Iterator[tuple[Place, str]]:
        """What a message says, if it has to be said."""
        for subject, key, kind in attempt.items():
            about = [place for place in expected if (place.subject, place.key) == (subject, key)]
            found = [place for place in about if expected[place].channel == attempt.channel]
            rightful = [place for place in found if kind in expected.pop(place).kinds]
            assert rightful, f"wrongly sent to {attempt.channel}: {subject} {key} {kind}: {attempt.text}"
            for place in rightful:
                self.rules.note(place, kind, attempt.key)
                yield place, kind

    def _outcome(self, attempt: Attempt, given_up: Set[str]) -> Expected:
        """What the result of an attempt causes to be sent, and of those after it, of which some are given up."""
        self.pending.discard(attempt.key)
        if attempt.channel == LOG:
            return {}
        if attempt.state == "delivered":
            return self.rules.channel_takes(attempt.channel, given_up)
        if attempt.state == "dead":
            return self.rules.channel_refuses(attempt.channel, given_up)
        self.pending.add(attempt.key)
        return self.rules.channel_is_late(attempt.channel, attempt.waits, given_up)


def config(remind: int = 24, ops: list[str] | None = None) -> str:
    return CONFIG.format(remind=f"{remind}h", ops=", ".join(ops or ["phone", "mail"]))


def _entry(subject: str) -> Any:
    name = subject.removeprefix("cron/")
    return (Kind.HEARTBEAT if name == subject else Kind.CRON, name)


def _finding(key: str, text: str, severity: int, *, is_over: bool = False) -> dict[str, Any]:
    return {"key": key, "text": text, "severity": SEVERITIES[severity], "resolved": is_over}


@pytest.mark.simulation
@seeds(2, 200, in_ci=4)
def test_each_recipient_gets_what_the_rules_say(tmp_path: Path, database_of: DatabaseOf, seed: int) -> None:
    """Some 4,000 steps, 20,000 in CI, and a million in `make simulate`, which also looks for fewer steps that fail."""
    server, number = database_of(tmp_path), count()

    @hypothesis.seed(seed)
    class Played(Messages):
        @staticmethod
        def begin() -> Watched:
            if server:
                delete_all_rows(server)
            (folder := tmp_path / str(next(number))).mkdir()
            return Watched(folder, config(), server=server)

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Played,
        settings=settings(
            max_examples=size(2, 1) if ON_SERVER else size(4, 10, in_ci=10),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink) if IS_LONG else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
