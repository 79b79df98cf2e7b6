"""A simulated quarter of one host with 120 events, watched by a mediocre agent, and what its users were sent.

The agent names the same thing by several keys, forgets things, answers in prose, misjudges severities and invents findings, as
often as its `Habits` say. Each event has a number in the agent's texts, by which the messages about it are recognized. A message
without a number is recognized by the line of the precheck that it quotes.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from checkout import HOME
from servers.messages import message, text, tool
from world import AgentCall, World, utc

from heartbeat.runners import HttpReply, ProcessResult

DAYS, EVENTS, RISES, INTERVAL = 90, 120, 45, timedelta(minutes=15)
START = "2026-08-10 00:00"  # the clocks of Berlin go back on 25 October
JOB_NIGHTS = ((3, 1), (9, 2), (16, 1), (21, 3), (27, 1))  # failures of the nightly job in 30 days: the first night, and how many
SEVERITIES = ("info", "warning", "critical")
AGAIN_WITHIN = timedelta(hours=26)  # an event of severity info does not come back so soon: it would rightly be told once


@dataclass(frozen=True)
class Habits:
    """How often the agent and the host are not as one would like them: shares between 0 and 1."""

    other_key: float = 0.0  # of the findings have another key than last time
    forgets: float = 0.0  # of the findings are left out
    prose: float = 0.0  # of the answers are prose in place of findings
    wrong_severity: float = 0.05  # of the findings have a severity that is one step too high or too low
    invents: float = 0.01  # of the answers have a finding about nothing
    repeats: float = 0.0  # of the further answers of a run repeat the first one
    unrelated: float = 0.0  # of the events are described without any word of their line
    lost_lines: float = 0.0  # of the lines are missing at a look
    brief: float = 0.0  # of the events last 15 to 30 minutes
    returns: float = 0.0  # of the events come back within a day
    cut: float = 0.0  # of the answers are cut off
    fails: float = 0.0  # of the calls fail


HARD = {"repeats": 0.5, "unrelated": 0.1, "lost_lines": 0.01, "brief": 0.1, "returns": 0.1}


def habits_of_level(level: str, **more: float) -> Habits:
    """The habits for a level such as `5/5/10`: other key, forgotten, prose, in percent."""
    other_key, forgets, prose = (int(part) / 100 for part in level.split("/"))
    return Habits(other_key, forgets, prose, **more)


@dataclass(frozen=True, slots=True)
class KindOfEvent:
    """A thing that can go wrong. Its line is `fixed`, has a figure that changes in a `step`, or one that `moves` by itself."""

    key: str
    line: str
    words: str
    severity: str
    figure: str
    others: tuple[str, ...]  # other keys that the agent also uses
    unrelated: tuple[str, str]  # a key and a text without a word of the line


KINDS = (
    KindOfEvent("disk:/var", "nearly full: /var {} %", "/var is {} % full", "warning", "step",
                ("storage-var", "disk", "var:space"), ("uploads", "uploads will soon be refused")),
    KindOfEvent("disk:/", "nearly full: / {} %", "the root file system is nearly full, {} %", "warning", "step",
                ("rootfs", "disk", "disk:root"), ("updates", "updates can no longer be installed")),
    KindOfEvent("disk:/home", "nearly full: /home {} %", "/home is filling up, {} %", "warning", "step",
                ("home-space", "disk", "storage:home"), ("users", "people cannot save their work")),
    KindOfEvent("memory", "memory low: {} MB free", "only {} MB of memory are free", "warning", "moves",
                ("ram", "mem:low", "host:memory"), ("swapping", "programs are being swapped out")),
    KindOfEvent("load", "load is high", "the load average is {}", "info", "fixed",
                ("cpu", "load:high", "host"), ("slow", "everything reacts slowly")),
    KindOfEvent("service:nginx", "nginx.service failed", "nginx is not running, {} restarts", "critical", "fixed",
                ("nginx-down", "service", "web:nginx"), ("website", "the site cannot be reached")),
    KindOfEvent("service:postgres", "postgres.service failed", "postgres refuses connections, {} clients wait", "critical", "fixed",
                ("db", "service", "postgres-down"), ("shop", "orders cannot be stored")),
    KindOfEvent("queue:mail", "mail queue: {} messages", "{} mails wait in the queue", "warning", "moves",
                ("mailq", "mail-backlog", "postfix"), ("postfix", "sending is delayed")),
    KindOfEvent("cert:shop", "certificate of shop.example ends in {} days", "the certificate of the shop ends in {} days", "warning",
                "step", ("tls:shop", "certificate", "https-expiry"), ("https", "browsers will warn visitors")),
    KindOfEvent("raid:md0", "raid md0 is degraded", "md0 runs without a disk, rebuilt to {} %", "critical", "fixed",
                ("md0-degraded", "storage:raid", "array"), ("array", "one drive must be replaced")),
    KindOfEvent("login:ssh", "failed logins: {}", "{} failed logins by ssh", "warning", "moves",
                ("ssh-bruteforce", "security", "auth:ssh"), ("attack", "someone guesses passwords")),
    KindOfEvent("clock", "clock is off", "the clock is {} s off", "info", "fixed",
                ("ntp", "time-drift", "host"), ("ntp", "time drifts away")),
    KindOfEvent("replica:lag", "replica is {} s behind", "the replica is {} s behind", "warning", "moves",
                ("db-replica", "replication", "postgres:lag"), ("reports", "figures of today are missing")),
    KindOfEvent("temperature", "sensor shows {} degrees", "a sensor shows {} degrees", "warning", "step",
                ("heat", "sensor:temp", "hardware"), ("cooling", "the fan may be broken")),
)  # fmt: skip
JOB = KindOfEvent("job:nightly-backup", "", "the nightly backup failed with {} errors", "warning", "fixed",
                  ("backup:nightly", "backup", "nightly-backup-failed"), ("backup", "the nightly-backup left no archive"))  # fmt: skip
INVENTED = (("fan", "a fan seems to be loud"), ("dns", "names may be resolved slowly"), ("audit", "an unusual command was run"))
OPENERS = ("", "Note: ", "Heads up - ", "As of now, ", "Currently ", "It seems that ", "I see that ", "Still: ", "FYI, ")
ENDINGS = ("", ".", " Please have a look.", " This needs attention.", " It may get worse.", " The trend is unclear.")
QUIET = ("HEARTBEAT_OK", "**HEARTBEAT_OK**", "heartbeat ok", "HEARTBEAT_OK.")


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something that is wrong on the host from `begins` to `ends`. Without a line, only the output of the job shows it.

    `figures` are those of its line, each from a time on. From `rises` on, it is one step more severe.
    """

    number: int
    kind: KindOfEvent
    begins: datetime
    ends: datetime
    figures: tuple[tuple[datetime, int], ...] = ()
    rises: datetime | None = None
    is_unrelated: bool = False  # the agent describes it without a word of the line

    @property
    def tag(self) -> str:
        return f"#{self.number}#"

    def holds(self, now: datetime) -> bool:
        return self.begins <= now < self.ends

    def severity(self, now: datetime) -> str:
        has_risen = self.rises is not None and now >= self.rises
        return SEVERITIES[SEVERITIES.index(self.kind.severity) + has_risen]

    def line(self, now: datetime) -> str:
        """The line of the precheck at this time; empty if the precheck does not see it."""
        return self.kind.line.format([figure for since, figure in self.figures if since <= now][-1]) if self.kind.line else ""


def _at_three(night: int) -> datetime:
    """03:00 in Berlin on a day of the month."""
    day = datetime.fromisoformat(START).replace(hour=3, tzinfo=ZoneInfo("Europe/Berlin")) + timedelta(days=night)
    return day.astimezone(UTC)


@dataclass
class Host:
    """Makes the events: failures of the nightly job, events of a rising severity, and others of 15 minutes to a day."""

    habits: Habits
    chance: random.Random
    days: int
    events: list[HostEvent] = field(default_factory=list)

    def make_events(self, number: int) -> list[HostEvent]:
        for month in range(-(-self.days // 30)):
            for night, nights in JOB_NIGHTS:
                first = 30 * month + night
                if first + nights < self.days and len(self.events) < number // 8:
                    self._add(JOB, _at_three(first), _at_three(first + nights))
        for _ in range(number * RISES // EVENTS):
            self._add_random([kind for kind in KINDS if kind.figure != "fixed"], rises=True)
        while len(self.events) < number:
            self._add_random(KINDS)
            last = self.events[-1]
            if self._happens(self.habits.returns) and last.kind.severity != "info" and len(self.events) < number:
                begins = last.ends + self.chance.uniform(1, 20) * timedelta(hours=1)
                self._add(last.kind, begins, begins + timedelta(hours=self.chance.uniform(0.5, 6)), figures=last.figures)
        return self.events

    def _add_random(self, kinds: Iterable[KindOfEvent], *, rises: bool = False) -> None:
        before = len(self.events)
        while len(self.events) == before:
            kind = self.chance.choice(list(kinds))
            begins = utc(START) + INTERVAL + self.chance.random() * timedelta(days=self.days - 3)
            hours = min(24, 0.5 * 1.25 ** self.chance.randrange(6 * rises, 18))
            if not rises and self._happens(self.habits.brief):
                hours = self.chance.uniform(0.25, 0.5)
            ends = begins + timedelta(hours=hours)
            self._add(kind, begins, ends, begins + self.chance.uniform(0.4, 0.7) * (ends - begins) if rises else None)

    def _add(
        self, kind: KindOfEvent, begins: datetime, ends: datetime, rises: datetime | None = None,
        figures: tuple[tuple[datetime, int], ...] = (),
    ) -> None:  # fmt: skip
        """Add an event, unless the same thing is wrong at that time or shortly before or after."""
        near = AGAIN_WITHIN if kind.severity == "info" else timedelta(hours=2) if not figures else timedelta(minutes=45)
        if any(event.kind is kind and begins < event.ends + near and event.begins < ends + near for event in self.events):
            return
        changes = [] if rises is None else [rises]
        if kind.figure == "step" and rises is None and self._happens(0.3):
            changes.append(begins + 0.5 * (ends - begins))
        if kind.figure == "moves":
            changes += [begins + timedelta(hours=hours) for hours in range(2, 24, 2) if begins + timedelta(hours=hours) < ends]
        first = figures[-1][1] if figures else self.chance.randrange(20, 80)
        made = ((begins, first), *((at, first + step) for step, at in enumerate(sorted(changes), 1)))
        number, is_unrelated = len(self.events), self._happens(self.habits.unrelated)
        self.events.append(HostEvent(number, kind, begins, ends, made, rises, is_unrelated))

    def _happens(self, share: float) -> bool:
        return self.chance.random() < share


@dataclass
class MediocreAgent:
    """The agent: its answer to a prompt."""

    habits: Habits
    events: list[HostEvent]
    chance: random.Random

    def findings(self, prompt: str, now: datetime) -> list[dict[str, Any]]:
        """What the agent sees and does not forget. It never reports that something is over."""
        woken_by = prompt.partition("You were woken")[2]
        found = []
        for event in self.events:
            if not event.holds(now):
                continue
            known = self._known_key(event, prompt, now)
            is_visible = bool(event.kind.line) or event.tag in woken_by or known is not None
            if is_visible and not self._happens(self.habits.forgets):
                found.append(self._describe(event, known, now))
        if self._happens(self.habits.invents):
            key, words = self.chance.choice(INVENTED)
            found.append({"key": key, "text": words, "severity": "warning", "resolved": False})
        return found

    def _known_key(self, event: HostEvent, prompt: str, now: datetime) -> str | None:
        """The key by which the prompt lists the event as open."""
        lines = [line for line in prompt.splitlines() if re.match(r"\[[^\]]+\] (info|warning|critical), since", line)]
        quoted = event.line(now)
        found = [line for line in lines if event.tag in line or (quoted and quoted in line)]
        return found[0][1:].partition("]")[0] if found else None

    def _describe(self, event: HostEvent, known: str | None, now: datetime) -> dict[str, Any]:
        kind = event.kind
        key, words = kind.unrelated if event.is_unrelated else (kind.key, kind.words)
        key = known or key
        if self._happens(self.habits.other_key):
            key = self.chance.choice([other for other in (kind.key, *kind.others) if other != key])
        severity = event.severity(now)
        if self._happens(self.habits.wrong_severity):
            place = SEVERITIES.index(severity)
            severity = SEVERITIES[self.chance.choice([step for step in (place - 1, place + 1) if 0 <= step <= 2])]
        said = words.format(self.chance.randrange(2, 98))
        text = f"{self.chance.choice(OPENERS)}{said} {event.tag}{self.chance.choice(ENDINGS)}"
        return {"key": key, "text": text, "severity": severity, "resolved": False}

    def answers_in_prose(self) -> bool:
        return self._happens(self.habits.prose)

    def prose(self, found: list[dict[str, Any]]) -> str:
        """What was found, as one paragraph."""
        if not found:
            return self.chance.choice(QUIET)
        return " ".join(["I went through the list.", *(f"{one['text'].rstrip('.')}." for one in found), "The rest looks fine."])

    def _happens(self, share: float) -> bool:
        return self.chance.random() < share


NIGHTLY_BACKUP = """
cron:
  nightly-backup:
    schedule: "0 3 * * *"
    command: tar -czf backup.tar.gz agents
    wake_heartbeat: ops
    wake_on: failure
"""


def readme_config(*, precheck: bool = True) -> str:
    """The config that the README prints, with or without its precheck, and a job that wakes its agent."""
    page = (HOME / "README.md").read_text("utf-8")
    config = page.partition("```yaml\n")[2].partition("```")[0] + NIGHTLY_BACKUP
    return config if precheck else re.sub(r"^ {6}precheck:.*\n(?: {8}.*\n)*", "", config, count=1, flags=re.MULTILINE)


@dataclass
class Month:
    """Plays the events, then look at `score()`. `calls` are the times of the calls of the agent."""

    folder: Path
    config: str
    seed: int
    habits: Habits
    days: int = DAYS
    number: int = EVENTS
    server: str | None = None  # of the database, as for a World

    def __post_init__(self) -> None:
        self.events = Host(self.habits, random.Random(self.seed), self.days).make_events(self.number)
        self.chance = random.Random(self.seed + 1)
        self.agent = MediocreAgent(self.habits, self.events, self.chance)
        self.calls: list[datetime] = []
        self.tokens = 0
        self._last_message: dict[str, Any] = {}
        (self.folder / "agents" / "ops").mkdir(parents=True)
        settings = {"ANTHROPIC_API_KEY": "k", "HEARTBEATD_SET__history__runs": "100000", "TG_TOKEN": "1", "TG_CHAT": "2"}
        self.world = World(
            self.folder, self.config, start=START, environ=settings, server=self.server, http=self,
            scripts={"nightly-backup": self._backup}, prechecks={"ops": self._precheck},
        )  # fmt: skip
        self.world.run(days=self.days)

    def close(self) -> None:
        self.world.store.close()

    def __hash__(self) -> int:  # as a client of HTTP
        return id(self)

    def _precheck(self, call: AgentCall) -> str:
        holding = [event.line(call.at) for event in self.events if event.kind.line and event.holds(call.at)]
        lines = [line for line in holding if self.chance.random() >= self.habits.lost_lines]
        return "\n".join(lines) or "NO_WORK"

    def _backup(self, call: AgentCall) -> Any:
        failed = [event for event in self.events if not event.kind.line and event.holds(call.at)]
        if not failed:
            return ""
        output = f"tar: write error, backup incomplete {failed[0].tag}".encode()
        return ProcessResult(1, output)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
        """The agent as a model behind the Messages API."""
        now, request = self.world.clock.now, json.loads(body)
        is_further = bool(self.calls) and self.calls[-1] == now
        self.calls.append(now)
        self.tokens += len(body) // 4
        status = 529 if self.chance.random() < self.habits.fails else 200
        if status == 529:
            given: dict[str, Any] = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        elif is_further and self._last_message and self.chance.random() < self.habits.repeats:
            given = self._last_message
        else:
            given = self._last_message = self._answer("\n".join(texts_of(request)), now)
        return HttpReply(status, {"content-type": "application/json"}, json.dumps(given).encode())

    def _answer(self, prompt: str, now: datetime) -> dict[str, Any]:
        found = self.agent.findings(prompt, now)
        if self.agent.answers_in_prose():
            if self.chance.random() < 0.5:
                return message(text(self.agent.prose(found)))
            summary = {"key": "summary", "text": self.agent.prose(found), "severity": "info", "resolved": False}
            return message(tool("report_findings", {"findings": [summary] if found else []}), stop_reason="tool_use")
        if self.chance.random() < self.habits.cut:
            kept = found[: self.chance.randrange(len(found) + 1)]
            return message(tool("report_findings", {"findings": kept} if kept else {}), stop_reason="max_tokens")
        return message(tool("report_findings", {"findings": found}), stop_reason="tool_use")

    def score(self) -> Score:
        """How often each event was reported, and what else was sent."""
        score = Score(self)
        for at, _, words in self.world.delivered:
            for part in re.split(r"\n(?=(?:CRITICAL|warning|info|over) )|\n\n", words):
                score.count(at, part)
        return score


def texts_of(request: dict[str, Any]) -> Iterable[str]:
    """The texts of all messages of a request."""
    for each in request["messages"]:
        content = each["content"]
        yield content if isinstance(content, str) else "\n".join(str(block.get("text", "")) for block in content)


@dataclass
class Score:
    """What the users were sent. `opened` are the times at which each event was reported as new, by its number.

    An event is late if its first message comes more than an interval after its beginning. A rise is in time if, an interval
    after it, the users were told that severity. Needless are reports of things that never were, of a rise that never was, and
    the second message about an end.
    """

    month: Month
    opened: dict[int, list[datetime]] = field(default_factory=dict)
    told: dict[int, list[tuple[datetime, str]]] = field(default_factory=dict)  # the severities that were sent
    ended: set[int] = field(default_factory=set)
    wrong_ends: int = 0
    reminders: int = 0
    needless: list[tuple[datetime, str]] = field(default_factory=list)

    def count(self, at: datetime, part: str) -> None:
        """Count one paragraph of a message."""
        events = self._events_of(part, at)
        if re.match(r"over\s+cron/nightly-backup failed", part):
            return  # the daemon itself has seen that the job failed, and works again
        if "(reminder, " in part:
            self.reminders += 1
            return
        if re.match(r"over\s", part):
            self._count_end(at, part, events)
            return
        severity = "critical" if part.startswith("CRITICAL") else "info" if part.startswith("info ") else "warning"
        is_rise = re.search(r"\(was (info|warning), ", part) is not None
        is_true = any(SEVERITIES.index(event.severity(at)) >= SEVERITIES.index(severity) for event in events)
        if not events or (is_rise and not is_true):
            self.needless.append((at, part))
        for event in events:
            self.told.setdefault(event.number, []).append((at, severity))
            if not is_rise:
                self.opened.setdefault(event.number, []).append(at)

    def _count_end(self, at: datetime, part: str, events: list[HostEvent]) -> None:
        if any(event.holds(at) for event in events):
            self.wrong_ends += 1
        elif not events or all(event.number in self.ended for event in events):
            self.needless.append((at, part))
        self.ended |= {event.number for event in events}

    def _events_of(self, part: str, at: datetime) -> list[HostEvent]:
        """The events that a paragraph is about: by their numbers, or else by the line that it quotes, the latest with this line."""
        if numbers := set(map(int, re.findall(r"#(\d+)#", part))):
            return [event for event in self.month.events if event.number in numbers]
        words = without_figures(part)
        begun = [event for event in self.month.events if event.kind.line and event.begins <= at]
        quoted = {without_figures(event.line(at)): event for event in sorted(begun, key=lambda event: event.begins)}
        return [event for line, event in quoted.items() if line in words]

    @property
    def once(self) -> int:
        return sum(len(times) == 1 for times in self.opened.values())

    @property
    def repeated(self) -> int:
        return sum(len(times) > 1 for times in self.opened.values())

    @property
    def never(self) -> int:
        return len(self.month.events) - len(self.opened)

    @property
    def late(self) -> int:
        return sum(
            self.opened[event.number][0] - event.begins > INTERVAL for event in self.month.events if event.number in self.opened
        )

    @property
    def rises_in_time(self) -> int:
        rising = [event for event in self.month.events if event.rises is not None]
        return sum(
            any(at <= event.rises + INTERVAL and severity == event.severity(event.rises) for at, severity in self.told.get(event.number, []))
            for event in rising
            if event.rises is not None
        )  # fmt: skip

    @property
    def needless_a_day(self) -> float:
        return len(self.needless) / self.month.days

    @property
    def calls(self) -> float:
        """The agent's calls, in percent of a call at every slot."""
        return 100 * len(self.month.calls) / (self.month.days * timedelta(days=1) / INTERVAL)

    @property
    def further_calls(self) -> float:
        """The further calls in a run, in percent of the same."""
        again = len(self.month.calls) - len(set(self.month.calls))
        return 100 * again / (self.month.days * timedelta(days=1) / INTERVAL)


def without_figures(line: str) -> str:
    return re.sub(r"\d+", "0", " ".join(line.split())).casefold()
