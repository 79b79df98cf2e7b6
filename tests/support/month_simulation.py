"""A simulated month of one host with forty events, watched by an agent of average quality, and what its users were sent.

The agent describes what still holds in ever new words and with new figures, forgets it now and then, is cut off, fails, and puts
prose around its answers. Each event has a number in the texts, so that messages about it are recognized.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from checkout import HOME
from servers.messages import Models, error_answer, message, text, tool
from servers.scripted import Act, Request, reply
from world import AgentCall, World, utc

from heartbeat.runners import ProcessResult

DAYS, EVENTS, INTERVAL = 30, 40, timedelta(minutes=15)
START = "2026-10-10 00:00"  # the clocks of Berlin go back on the 25th
JOB_NIGHTS = ((3, 1), (9, 2), (16, 1), (21, 3), (27, 1))  # failures of the nightly job: the first night, and how many in a row

# The things that can go wrong on the host: key, line of the precheck, words, severity.
KINDS = (
    ("disk:/var", "disk /var is above 90 %", "/var is {} % full", "warning"),
    ("disk:/", "disk / is above 90 %", "the root file system has only {} % left", "critical"),
    ("disk:/home", "disk /home is above 90 %", "/home is filling up, {} GB remain", "warning"),
    ("memory", "memory is low", "only {} MB of memory are free", "warning"),
    ("load", "load is high", "the load average is {}", "info"),
    ("service:nginx", "service nginx is down", "nginx is not running, {} restarts failed", "critical"),
    ("service:postgres", "service postgres is down", "postgres refuses connections, {} clients wait", "critical"),
    ("queue:mail", "the mail queue is long", "{} mails wait in the queue", "warning"),
    ("cert:shop", "the certificate of shop ends soon", "the certificate of the shop ends in {} days", "warning"),
    ("raid:md0", "raid md0 is degraded", "md0 runs without a disk, rebuilt to {} %", "critical"),
    ("login:ssh", "many failed logins", "{} failed logins by ssh", "warning"),
    ("clock", "the clock is off", "the clock is {} s off", "info"),
    ("replica:lag", "the replica is behind", "the replica is {} s behind", "warning"),
    ("temperature", "the temperature is high", "a sensor shows {} degrees", "warning"),
)
OPENERS = (
    "",
    "Note: ",
    "Heads up - ",
    "As of now, ",
    "Currently ",
    "It seems that ",
    "I see that ",
    "Attention: ",
    "Still: ",
    "FYI, ",
)
ENDINGS = (
    "", ".", " Please have a look.", " This needs attention.", " (measured just now)", " It may get worse.", " - check soon",
    " I would look at it today.", " Nothing else changed.", " The trend is unclear.", " See the dashboard.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something that is wrong on the host from `begins` to `ends`. Without a `line`, only the output of the job shows it."""

    number: int
    key: str
    line: str
    words: str
    severity: str
    begins: datetime
    ends: datetime

    @property
    def tag(self) -> str:
        return f"#{self.number}#"

    def holds(self, now: datetime) -> bool:
        return self.begins <= now < self.ends


def _at_three(night: int) -> datetime:
    """03:00 in Berlin on a day of the month."""
    day = datetime.fromisoformat(START).replace(hour=3, tzinfo=ZoneInfo("Europe/Berlin")) + timedelta(days=night)
    return day.astimezone(UTC)


def make_events(chance: random.Random, days: int, number: int) -> list[HostEvent]:
    """Events of half an hour to a day, and the failures of the nightly job. The same thing does not go wrong twice within two hours."""
    found = [
        HostEvent(
            number, "backup:nightly", "", "the nightly backup failed with {} errors", "warning",
            _at_three(night), _at_three(night + nights),
        )
        for number, (night, nights) in enumerate(JOB_NIGHTS)
        if night + nights < days
    ]  # fmt: skip
    while len(found) < number:
        key, line, words, severity = chance.choice(KINDS)
        begins = utc(START) + INTERVAL + chance.random() * timedelta(days=days - 2)
        ends = begins + timedelta(hours=min(24, 0.5 * 1.25 ** chance.randrange(18)))
        near = timedelta(hours=2)
        if all(event.key != key or ends + near < event.begins or event.ends + near < begins for event in found):
            found.append(HostEvent(len(found), key, line, words, severity, begins, ends))
    return found


@dataclass
class HostModel:
    """The agent. `answer` gives its findings for a prompt; None means that the answer is cut off or that the call fails."""

    events: list[HostEvent]
    chance: random.Random

    def findings(self, prompt: str, now: datetime) -> list[dict[str, Any]]:
        """What the agent reports: new events nearly always, known ones often, and the end of an event half of the time."""
        labels = re.findall(r"^\[([^\]]+)\] (?:info|warning|critical), since", prompt, re.MULTILINE)
        listed = {label.replace(" ", "").lower() for label in labels}
        found = []
        for event in self.events:
            if event.line:
                is_visible = event.holds(now)
            else:
                is_visible = event.tag in prompt.partition("You were woken")[2] or (event.key in listed and event.holds(now))
            if is_visible and self.chance.random() < (0.7 if event.key in listed else 0.97):
                found.append(self._describe(event))
        holding = {event.key for event in self.events if event.holds(now)}
        over = [key for key in sorted(listed - holding) if self.chance.random() < 0.5]
        return [*found, *({"key": key, "text": "back to normal", "severity": "info", "resolved": True} for key in over)]

    def _describe(self, event: HostEvent) -> dict[str, Any]:
        words = event.words.format(self.chance.randrange(2, 98))
        text = f"{self.chance.choice(OPENERS)}{words} {event.tag}{self.chance.choice(ENDINGS)}"
        key = self.chance.choice([event.key, event.key, event.key, event.key.upper(), event.key.replace(":", ": ")])
        return {"key": key, "text": text, "severity": event.severity, "resolved": False}

    def quiet_text(self) -> str:
        forms = (
            "HEARTBEAT_OK",
            "**HEARTBEAT_OK**",
            "`HEARTBEAT_OK`",
            "heartbeat ok",
            '"HEARTBEAT_OK"',
            "HEARTBEAT_OK.",
            "HEARTBEAT_OK",
        )
        return self.chance.choice(forms)

    def text_answer(self, prompt: str, now: datetime) -> str:
        found = self.findings(prompt, now)
        lines = [
            f"[{one['key']}] resolved"
            if one["resolved"]
            else f"[{one['key']}{'!' * (one['severity'] == 'critical')}] {one['text']}"
            for one in found
        ]
        return "\n".join(lines) or self.quiet_text()

    def noise(self) -> str:
        """What goes wrong with this answer: `failure` 3 %, `cut` 2/64, `prose` 1/64, or nothing."""
        place = self.chance.random()
        for name, share in (("failure", 0.03), ("cut", 2 / 64), ("prose", 1 / 64)):
            if place < share:
                return name
            place -= share
        return ""


def readme_config() -> str:
    """The config that the README prints."""
    page = (HOME / "README.md").read_text("utf-8")
    return page.partition("```yaml\n")[2].partition("```")[0]


@dataclass
class Month:
    """`Month(folder, config, seed).play()`, then look at `score()`.

    `calls` are the calls of models; a program that is the agent is counted by the world.
    """

    folder: Path
    config: str
    seed: int
    days: int = DAYS
    number: int = EVENTS
    mails_per_day: int = 0
    wrong_skips: float = 0.05  # share of decisions to skip although something is new
    says_no_work: bool = True  # whether the precheck prints NO_WORK if all is well
    server: str | None = None  # of the database, as for a World

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.events = make_events(self.chance, self.days, self.number)
        self.model = HostModel(self.events, self.chance)
        self.calls: list[datetime] = []
        self.tokens = 0
        self.mails = sorted(
            utc(START) + self.chance.random() * timedelta(days=self.days) for _ in range(self.mails_per_day * self.days)
        )
        for agent in ("ops", "night"):
            workspace = self.folder / "agents" / agent
            workspace.mkdir(parents=True)
            (workspace / "HEARTBEAT.md").write_text("- Look at the host and report what needs attention.\n", "utf-8")
        with self._server() as url:
            settings = {
                "ANTHROPIC_API_KEY": "k",
                "HEARTBEATD_SET__providers__anthropic__base_url": url,
                "HEARTBEATD_SET__history__runs": "10000",
                "TG_TOKEN": "1",
                "TG_CHAT": "2",
            }
            self.world = World(
                self.folder, self.config, start=START, environ=settings,
                server=self.server, scripts={"ops": self._program, "nightly-backup": self._backup}, prechecks={"ops": self._precheck},
            )  # fmt: skip
            self.world.run(days=self.days)

    def close(self) -> None:
        self.world.store.close()

    def _precheck(self, call: AgentCall) -> str:
        lines = [event.line for event in self.events if event.line and event.holds(call.at)]
        unread = sum(mail <= call.at for mail in self.mails)
        lines += [f"mail {unread}: newsletter"] if unread else []
        return "\n".join(lines) or ("NO_WORK" if self.says_no_work else "all quiet")

    def _backup(self, call: AgentCall) -> Any:
        failed = [event for event in self.events if not event.line and event.holds(call.at)]
        if not failed:
            return ""
        output = f"tar: write error, backup incomplete {failed[0].tag}".encode()
        return ProcessResult(1, output, b"", truncated=False, timed_out=False, problem=None, ended_by=None)

    def _program(self, call: AgentCall) -> Any:
        """The agent as a program, which prints plain text."""
        self.calls.append(call.at)
        noise = self.model.noise()
        if noise == "failure":
            return 1
        answer = self.model.text_answer(call.stdin, call.at)
        if noise == "cut":
            return json.dumps({"text": answer[: self.chance.randrange(1, len(answer) + 1)], "truncated": True})
        return f"I looked at everything on the list.\n\n{answer}\n\nThat is all." if noise == "prose" else answer

    @contextmanager
    def _server(self) -> Iterator[str]:
        with Models(self._respond) as server:
            yield server.url

    def _respond(self, request: Request) -> Act:
        """The agent as a model behind the Messages API."""
        now, body = self.world.clock.now, request.json
        self.calls.append(now)
        prompt = body["messages"][-1]["content"]
        self.tokens += len(json.dumps(body)) // 4
        forced = body.get("tool_choice", {}).get("name")
        if forced == "decide":
            return self._decide(prompt, now)
        noise = self.model.noise()
        if noise == "failure":
            return error_answer(529, "overloaded_error", "Overloaded")
        if forced is None:
            answer = self.model.text_answer(prompt, now)
            if noise == "cut":
                return reply(message(text(answer[: self.chance.randrange(1, len(answer) + 1)]), stop_reason="max_tokens"))
            return reply(message(text(f"All done.\n\n{answer}" if noise == "prose" else answer)))
        found = self.model.findings(prompt, now)
        if noise == "cut":
            kept = found[: self.chance.randrange(len(found) + 1)]
            return reply(message(tool(forced, {"findings": kept} if kept else {}), stop_reason="max_tokens"))
        if noise == "prose":
            if self.chance.random() < 0.5:
                return reply(
                    message(
                        text(
                            self.model.quiet_text() if not found else "\n".join(f"[{one['key']}] {one['text']}" for one in found)
                        )
                    )
                )
            return reply(
                message(text("I looked at everything on the list."), tool(forced, {"findings": found}), stop_reason="tool_use")
            )
        return reply(message(tool(forced, {"findings": found}), stop_reason="tool_use"))

    def _decide(self, prompt: str, now: datetime) -> Act:
        known = prompt.replace(" ", "").lower()
        is_new = any(event.holds(now) and event.line and f"[{event.key}]" not in known for event in self.events)
        runs = (is_new and self.chance.random() >= self.wrong_skips) or self.chance.random() < 0.05
        given = {"action": "run", "tasks": "Look at the host and report."} if runs else {"action": "skip", "tasks": ""}
        return reply(message(tool("decide", given), stop_reason="tool_use"))

    def _events_of(self, line: str, at: datetime) -> set[int]:
        """The events that a line of a message is about, by their numbers, else by its key (the number may have been cut off)."""
        if numbers := set(map(int, re.findall(r"#(\d+)#", line))):
            return numbers
        label = line[1:].partition("]")[0].replace(" ", "").lower() if line.startswith("[") else ""
        return {event.number for event in self.events if event.key == label and event.holds(at)}

    def score(self) -> Score:
        """How often each event was reported, and what else was sent."""
        reported = {event.number: [] for event in self.events}
        resolved, reminded, false_ends, others = 0, 0, 0, []
        for at, _, words in self.world.delivered:
            kinds = [(line, self._events_of(line, at)) for line in _paragraphs(words)]
            for number in {number for line, numbers in kinds if not _is_follow_up(line) for number in numbers}:
                reported[number].append(at)
            for line, numbers in kinds:
                reminded += bool(numbers) and "still open, since" in line
                is_end = re.match(r"\[[^\]]+\] resolved", line) is not None
                resolved += is_end
                label = line[1:].partition("]")[0].replace(" ", "").lower()
                false_ends += is_end and any(event.key == label and event.holds(at) for event in self.events)
            if (
                not any(numbers or re.match(r"\[[^\]]+\] resolved", line) for line, numbers in kinds)
                and "nightly-backup works" not in words
            ):
                others.append((at, words))
        return Score(self, reported, resolved, reminded, false_ends, others)


def _paragraphs(words: str) -> list[str]:
    """The lines of a message, each with the lines below it that do not begin with a key."""
    return re.split(r"\n(?=\[)|\n\n", words)


def _is_follow_up(line: str) -> bool:
    """Whether a line is a reminder or the end of a condition."""
    return re.match(r"\[[^\]]+\] (resolved|still open)", line) is not None


@dataclass
class Score:
    """The result of a month. An event is late if its first message comes more than two intervals after its beginning."""

    month: Month
    reported: dict[int, list[datetime]]
    resolved: int
    reminded: int
    false_ends: int
    others: list[tuple[datetime, str]]

    @property
    def once(self) -> int:
        return sum(len(times) == 1 for times in self.reported.values())

    @property
    def repeated(self) -> int:
        return sum(len(times) > 1 for times in self.reported.values())

    @property
    def never(self) -> int:
        return sum(not times for times in self.reported.values())

    @property
    def late(self) -> int:
        begins = {event.number: event.begins for event in self.month.events}
        return sum(bool(times) and times[0] - begins[number] > 2 * INTERVAL for number, times in self.reported.items())

    @property
    def share(self) -> float:
        """The agent's calls, compared with a call at every slot."""
        return len(self.month.calls) / (self.month.days * 96)

    def __str__(self) -> str:
        return (
            f"once {self.once}, twice or more {self.repeated}, never {self.never}, late {self.late}; calls {self.share:.1%};"
            f" other messages {len(self.others) / self.month.days:.2f} a day; ends {self.resolved} ({self.false_ends} false),"
            f" reminders {self.reminded}; tokens {self.month.tokens // 1000} k"
        )
