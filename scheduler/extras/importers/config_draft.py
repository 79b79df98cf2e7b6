"""Collects the config that an import makes, together with the receipt of the values it was made from.

The module of a system says which value goes where. This module puts it there, and has the parts that all systems share: channels,
secrets, active hours, schedules and jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.import_receipt import NO_VALUE, Receipt
from scheduler.extras.importers.source_files import LONGEST_LINE, Node, PathStep, SourceFile
from scheduler.extras.importers.value_converters import Converter, NotUsable

SECTIONS = ("providers", "channels", "agents", "cron")
PHASE_MATTERS = 3600  # seconds; from this interval on, a job that was counted from an anchor keeps its times, or is disabled
MAX_NAME = 50  # characters, so that there is room for a number

Path = tuple[str, ...]

OVERRIDDEN = "overridden by a more specific value"

# The key of a job in the new config, by the kind of its schedule, and the keys of the other systems for it.
_SCHEDULE_KINDS = {"cron": "schedule", "every": "every", "interval": "every", "at": "at", "once": "at"}
_SCHEDULE_KEYS = {
    "schedule": ("expr", "cron", "expression"),
    "every": ("everyMs", "everySeconds", "minutes", "every"),
    "at": ("atMs", "atTime", "runAt", "at"),
}
_RESERVED = frozenset(("log", "last", "none"))
_TARGET = re.compile(r"@?[A-Za-z0-9_-]{1,60}(?::\d{1,20})?", re.ASCII)
_MARKS = re.compile(r"^(?:\s*(?:#{1,6}|[-*+]|\d+[.)])\s+|\s*\[[ xX]?\]\s+)+")


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a table: the key of the source, our key, and how the value is converted.

    `decides`: without the value, the agent or job would do something else than before. If it is unusable, that is disabled.
    """

    key: str
    to: str
    convert: Converter = value_converters.text
    why: str = ""
    decides: bool = False


@dataclass(frozen=True, slots=True)
class JobShape:
    """Where a job of a system has its parts. Each part lists keys of which the first with a value is used.

    A `prompt` is sent to the agent as a run of its own. An `event` is text for the agent's next heartbeat. A `command` is for the
    shell, and `command_form` converts it. A `message` is sent as it is, without an agent. `naive_zone` is the zone of a single
    time without an offset, and empty for the zone of the host. `fallback_name` is the name of a job without one.
    """

    prompt: Sequence[str] = ()
    event: Sequence[str] = ()
    command: Sequence[str] = ()
    message: Sequence[str] = ()
    command_form: Converter = value_converters.text
    agent: Sequence[str] = ("agentId", "agent")
    name: Sequence[str] = ("name", "id", "jobId")
    zone: Sequence[str] = ("timezone", "tz")
    rules: Sequence[Rule] = ()
    naive_zone: str = ""
    fallback_name: str = ""


class Draft:
    """The new config, and what happened to the old one.

    `zone` is the time zone of times that name none. It comes from the value `zone_source`, or else from the place that
    `zone_reason` names. `default_agent` gets the jobs that name no agent. `variables` are the environment variables that the new
    config refers to, with the keys whose secrets they replace.
    """

    def __init__(self, receipt: Receipt, zone: str, title: str, zone_reason: str) -> None:
        self.receipt = receipt
        self.zone = zone
        self.zone_reason = zone_reason
        self.zone_source: Node | None = None
        self._zone_problem = ""  # why the zone of the config as a whole is unusable
        self.title = title
        self.data: dict[str, dict[str, dict[str, Any]]] = {section: {} for section in SECTIONS}
        self.variables: dict[str, str] = {}
        self.default_agent = ""
        self.default_deliver = "log"
        self.telegram_token: Node | None = None
        self.wake_modes = {"now": "now", "next-heartbeat": "next", "next_heartbeat": "next", "next": "next"}
        self._agents_by_id: dict[str, str] = {}
        self._entries: dict[tuple[str, tuple[PathStep, ...]], tuple[Node, Path]] = {}  # by the file and steps of their nodes
        self._bots: dict[str, Node] = {}  # the token of each Telegram channel
        self._all_off: Node | None = None  # the setting that switches off all jobs
        self.secrets: dict[str, str] = {}  # the value of each variable that replaces a secret
        self._taken = {leaf.text[2:-1] for leaf in receipt.leaves if value_converters.is_reference(leaf.text)}

    # Values

    def put(self, node: Node, path: Path, value: object, why: str = "") -> None:
        """Set a key of the new config to a value made from a node, and record it as kept or changed."""
        target = ".".join(path)
        if self.has(path):
            self.receipt.withdraw(target, OVERRIDDEN, is_loss=False)
        self._set(path, value)
        if not node.is_container and (node.value == value or node.text == str(value)):
            self.receipt.keep(node, target, why)
        else:
            self.receipt.change(node, target, value, why)

    def add(self, path: Path, value: object, why: str) -> None:
        """Set a key of the new config that no source has."""
        self._set(path, value)
        self.receipt.add(".".join(path), value if not isinstance(value, dict) else _describe_map(value), why)

    def add_defaults(self, base: Path, values: Mapping[str, object]) -> None:
        """Set the keys that no source has to the defaults of the other system."""
        for key, value in values.items():
            if not self.has((*base, key)):
                self.add((*base, key), value, f"{self.title}'s default")

    def has(self, path: Path) -> bool:
        found: object = self.data
        for step in path:
            if not isinstance(found, Mapping) or step not in found:
                return False
            found = found[step]
        return True

    def apply(self, rules: Iterable[Rule], node: Node | None, base: Path) -> None:
        """Convert the values that a table lists, and set our keys below `base`. A value that cannot be used is dropped."""
        for rule in rules if node else ():
            found = node.get(rule.key) if node else None
            if found is None:
                continue
            if not found.is_container and found.value is None:
                self.receipt.drop(found, NO_VALUE, is_loss=False)
                continue
            try:
                self.put(found, (*base, *rule.to.split(".")), rule.convert(found), rule.why)
            except NotUsable as error:
                self.receipt.drop(found, str(error))
                if rule.decides:
                    self.disable(base, f"{found.key} {error}")

    def secret(self, node: Node, path: Path, variable: str, form: str = "{}") -> None:
        """Set a key to a reference to an environment variable in place of a secret. `form` is the text around the reference."""
        reference = self.reference(node, variable)
        self._set(path, form.replace("{}", reference, 1))
        if value_converters.is_reference(node.text):
            self.receipt.keep(node, ".".join(path))
        else:
            self.receipt.change(node, ".".join(path), reference, "set this environment variable", is_secret=True)

    def reference(self, node: Node | None, variable: str) -> str:
        """The reference to use for a secret: its own, if it is one already."""
        if node and value_converters.is_reference(node.text):
            self.variables.setdefault(node.text[2:-1], node.key)
            return node.text
        name = base = re.sub(r"[^A-Z0-9]+", "_", variable.upper()).strip("_") or "SECRET"
        number, value = 1, node.text if node else ""
        while name in self._taken or self.secrets.get(name, value) != value:
            number += 1
            name = f"{base}_{number}"
        self.secrets[name] = value
        if name not in self.variables and node:
            known = node.key in self.variables.values()
            self.variables[name] = f"{node.key} of {node.file}" if known else node.key
        self.variables.setdefault(name, "")
        return f"${{{name}}}"

    def rename_variable(self, name: str, new: str) -> None:
        """Use another variable for a secret."""
        self.data = replace_text(self.data, f"${{{name}}}", f"${{{new}}}")
        self.secrets[new] = self.secrets.pop(name)
        self.variables = {new if each == name else each: key for each, key in self.variables.items()}
        for entry in self.receipt.entries.values():
            if isinstance(entry.now, str):
                entry.now = entry.now.replace(f"${{{name}}}", f"${{{new}}}")

    def add_provider(self, name: str, key: Node | None, address: Node | None) -> str:
        """A provider of models with its key and address; its name. Raises NotUsable for an address that is none."""
        path = ("providers", self.free_name("providers", name, "provider"))
        if address and address.text:
            self.url(address, (*path, "base_url"), f"{name}_BASE_URL")
        self.add((*path, "kind"), "anthropic" if name == "anthropic" else "openai", "the kind of its API")
        if key and key.text:
            self.secret(key, (*path, "api_key"), f"{name}_API_KEY")
        return path[1]

    def url(self, node: Node, path: Path, variable: str) -> None:
        """Set a key to a URL, or to a reference if the URL may contain a secret."""
        address = value_converters.web_address(node)
        if value_converters.holds_secret(address):
            self.secret(node, path, variable)
        else:
            self.put(node, path, address)

    # Names

    def free_name(self, section: str, wanted: str, fallback: str) -> str:
        """A valid name that the section does not have yet."""
        name = base = re.sub(r"[^A-Za-z0-9_-]+", "-", wanted).strip("-_")[:MAX_NAME].strip("-_") or fallback
        number = 1
        while name in self.data[section] or name in _RESERVED:
            number += 1
            name = f"{base}-{number}"
        return name

    def name_entry(self, node: Node, path: Path) -> None:
        """Record that a value is the name of an entry, perhaps in another spelling."""
        if node.text == path[-1]:
            self.receipt.keep(node, ".".join(path))
        else:
            self.receipt.change(node, ".".join(path), path[-1])

    # Entries: agents and jobs

    def note_entry(self, node: Node, base: Path) -> None:
        """Note that the values below a node belong to an agent or job."""
        self._entries[node.file, node.steps] = (node, base[:2])

    def find_entry(self, leaf: Node) -> tuple[Path | None, int]:
        """The agent or job of the new config to which a value belongs, and how many steps above its keys are in the file."""
        for length in range(len(leaf.steps), -1, -1):
            found = self._entries.get((leaf.file, leaf.steps[:length]))
            if found is not None:
                return (found[1] if self.has(found[1]) else None), length
        return None, 0

    def disable(self, base: Path, why: str) -> None:
        """Disable the agent or job at or above `base`, because it would do something else than before."""
        entry = base[:2]
        path = (*entry, "enabled") if entry[0] == "cron" else (*entry, "heartbeat", "enabled")
        self._set(path, False)
        self.receipt.disable(".".join(entry), ".".join(path), self._node_of(entry), why)

    def leave_out(self, entry: Path, why: str, node: Node | None = None) -> None:
        """Take an agent or job out of the new config, because it would do something else than before."""
        self.receipt.leave_out(".".join(entry), node or self._node_of(entry), why)
        self.remove(entry, f"it was left out: {why}")

    def _node_of(self, entry: Path) -> Node | None:
        return next((node for node, base in self._entries.values() if base == entry), None)

    def keep_callable(self, agent: str) -> bool:
        """Let jobs call an agent whose heartbeat is off; False if it is on. `enabled: false` would disable the jobs too."""
        base = ("agents", agent, "heartbeat")
        beat = self.data["agents"].get(agent, {}).get("heartbeat", {})
        if beat.get("enabled", True):
            return bool(beat.get("interval") == "none")
        for key in ("enabled", "interval", "schedule", "backoff_on_failure"):
            if key in beat:
                self.remove((*base, key), "the heartbeat is off", is_loss=False)
        self.add((*base, "interval"), "none", "the heartbeat is off, and jobs call the agent")
        return True

    # Agents

    def add_agent(self, ident: str, runner: Mapping[str, object], why: str) -> Path:
        """A new agent for an agent of the other system; the path of the agent."""
        name = self.free_name("agents", ident, "main")
        self.data["agents"][name] = {}
        self._agents_by_id.setdefault(ident, name)
        self.default_agent = self.default_agent or name
        self.add(("agents", name, "runner"), runner, why)
        return ("agents", name)

    def find_agent(self, ident: str, runner: Mapping[str, object], why: str) -> str:
        """The name of the agent with this ID, or of the default agent. A missing agent is added, without scheduled runs."""
        if ident in self._agents_by_id:
            return self._agents_by_id[ident]
        if not ident and self.default_agent:
            return self.default_agent
        return self.add_agent(ident or "main", runner, why)[1]

    def put_hours(
        self, base: Path, start: Node | None, end: Node | None, zone: Node | None, *, default_zone: str | None = None
    ) -> None:
        """Active hours. Equal times mean that the agent never runs, and become `enabled: false`.

        `default_zone` is the other system's own zone for hours without a zone.
        """
        given = [node for node in (start, end) if node and node.text]
        zone = zone if zone and zone.text else None
        if not given:
            for node in (start, end, zone):
                if node:
                    self.receipt.drop(node, NO_VALUE if node.value is None else "has no effect without a start and an end")
            return
        try:
            times = [
                value_converters.clock_time(node) if node else default for node, default in ((start, "00:00"), (end, "24:00"))
            ]
            name = value_converters.zone(zone) if zone else default_zone or self.zone
        except NotUsable as error:
            for node in (start, end, zone):
                if node:
                    self.receipt.drop(node, f"active hours: a value {error}")
            self.disable(base, f"active hours: a value {error}")
            return
        if times[0] == "24:00":
            times[0] = "00:00"
        if times[0] == times[1]:
            self._set((*base, "enabled"), False)
            for node in (*given, *([zone] if zone else [])):
                self.receipt.change(node, ".".join((*base, "enabled")), False, "a window of no length, so the agent never ran")
            return
        hours = (*base, "active_hours")
        for node, key, value in ((start, "start", times[0]), (end, "end", times[1]), (zone, "timezone", name)):
            if node:
                self.put(node, (*hours, key), value)
            elif key != "timezone":
                self.add((*hours, key), value, f"{self.title}'s default")
        if zone is None and default_zone:
            self.add((*hours, "timezone"), default_zone, f"{self.title}'s default")
        elif zone is None or name == self.zone:
            self._add_zone((*hours, "timezone"))

    def put_range(self, base: Path, hours: Node, zone: Node | None, *, default_zone: str | None = None) -> None:
        """Active hours that are written as one text: 08:00-22:00."""
        parts = hours.text.split("-")
        if len(parts) != 2:
            self.receipt.drop(hours, "is no range of times")
            self.disable(base, f"{hours.key} is no range of times")
            return
        start, end = (hours.with_text(part.strip()) for part in parts)
        self.put_hours(base, start, end, zone, default_zone=default_zone)
        if self.has((*base, "active_hours")):
            self.receipt.keep(hours, ".".join((*base, "active_hours")))
        elif not self.receipt.is_decided(hours):
            self.receipt.drop(hours, "is no window of time")

    def take_zone(self, node: Node | None) -> None:
        """Use the time zone of a config for times that name none."""
        if node and node.text:
            try:
                self.zone, self.zone_source = value_converters.zone(node), node
            except NotUsable as error:
                self.receipt.drop(node, str(error))
                self._zone_problem = f"{node.key} {error}"

    def _add_zone(self, path: Path) -> None:
        """Set a time zone that comes from the config as a whole, or else from the command or the host."""
        if self._zone_problem:
            self.disable(path, self._zone_problem)
        self.receipt.withdraw(".".join(path), OVERRIDDEN, is_loss=False)
        if self.zone_source:
            self.receipt.keep(self.zone_source, ".".join(path))
            self._set(path, self.zone)
        else:
            self.add(path, self.zone, self.zone_reason)

    # Channels

    def telegram(self, to: str, token: Node | None = None) -> str:
        """The name of the channel for a Telegram chat; for an empty text, of the channel for `deliver: last`.

        `token` is the token of the bot, if it is not the config's only one.
        """
        token = token or self.telegram_token
        chat = re.sub(r"^(?:telegram:)?(?:group:|user:|channel:)?", "", to).replace(":topic:", ":")
        if to and not _TARGET.fullmatch(chat):
            raise NotUsable("is no Telegram chat")
        name = "telegram" if not to else f"telegram-{re.sub(r'[^A-Za-z0-9_]+', '-', chat).strip('-') or 'chat'}"
        reference = self.reference(token, "TELEGRAM_BOT_TOKEN")
        url = f"tgram://{reference}/{chat if to else '{target}'}"
        if same := [known for known, keys in self.data["channels"].items() if keys == {"url": url}]:
            return same[0]
        name = self.free_name("channels", name, "telegram")
        self.data["channels"][name] = {"url": url}
        if token:
            self._bots[name] = token
        return name

    def webhook(self, node: Node) -> str:
        """The name of the channel for a URL, which is kept secret."""
        if not value_converters.is_reference(node.text):
            value_converters.web_address(node)
        name = self.free_name("channels", "webhook", "webhook")
        self.add(("channels", name, "kind"), "webhook", "the way in which messages are sent there")
        self.secret(node, ("channels", name, "url"), "WEBHOOK_URL")
        return name

    def put_deliver(
        self, base: Path, channel: Node | None, to: Node | None, *, has_agent: bool = True, token: Node | None = None
    ) -> None:
        """`deliver` of an agent or job, from the name of a channel and a recipient there.

        Without an agent, there is no last chat to send to. `token` is that of another bot than the config's own.
        """
        path = (*base, "deliver")
        for node in (channel, to):
            if node and not node.text:
                self.receipt.drop(node, NO_VALUE, is_loss=False)
        channel, to = (node if node and node.text else None for node in (channel, to))
        word = channel.text.lower() if channel else ""
        try:
            name, why = self.find_channel(word, to.text if to else "", token)
            if name == "last" and not has_agent:
                raise NotUsable("a job without an agent has no last chat; declare a channel, and set deliver")
        except NotUsable as error:
            for node in (channel, to):
                if node:
                    self.receipt.drop(node, str(error))
            self.add(path, "log", "no channel could be imported for its messages")
            self.disable(base, str(error))
            return
        if channel:
            self.put(channel, path, name, why)
        else:
            self.add(path, name, why or "the channel of the recipient")
        if to and name not in ("none", "last"):
            target = f"channels.{name}.url"
            if to.text in self.data["channels"][name]["url"]:
                self.receipt.keep(to, target)
            else:
                self.receipt.change(to, target, self.data["channels"][name]["url"])
        elif to:
            self.receipt.drop(to, "the recipient is the last one who wrote to the agent" if name == "last" else "nothing is sent")

    def find_channel(self, word: str, to: str, token: Node | None = None) -> tuple[str, str]:
        """The value of `deliver` for a channel and a recipient, and a note.

        Raises NotUsable for channels that heartbeatd cannot send to.
        """
        if word in ("none", "local", "off", "cli", "internal"):
            return "none", ""
        if word in ("last", "origin", "owner", ""):
            if not (token or self.telegram_token) and not to.startswith("telegram:"):
                raise NotUsable("there is no Telegram bot to send with; declare a channel, and set deliver")
            if to:
                return self.telegram(to, token), ""
            self.telegram("", token)
            return "last", "your gateway reports the last chat by POST /api/v1/agents/NAME/activity"
        if word.startswith("telegram"):
            inline = word.partition(":")[2]
            if not to and not inline:
                self.telegram("", token)
                return "last", "your gateway reports the last chat by POST /api/v1/agents/NAME/activity"
            return self.telegram(to or inline, token), ""
        raise NotUsable(f"heartbeatd cannot use this bot of {word[:30]}; declare a webhook or an Apprise URL, and set deliver")

    # Jobs

    def add_job(self, job: Node, shape: JobShape, runner: tuple[Mapping[str, object], str], deliver: tuple[str, ...] = ()) -> str:
        """A job for a job of the other system; its name, or an empty text if the job was dropped.

        `deliver` are the keys of the channel and of the recipient.
        """
        named = job.first(*shape.name)
        name = self.free_name("cron", named.text if named else shape.fallback_name, "job")
        base = ("cron", name)
        self.data["cron"][name] = {}
        self.note_entry(job, base)
        if self._all_off:
            self.put(self._all_off, (*base, "enabled"), False)
        self.apply((Rule("enabled", "enabled", value_converters.boolean, decides=True),), job, base)
        try:
            self._put_schedule(job, base, shape)
            self._put_action(job, base, shape, runner)
        except NotUsable as error:
            self.leave_out(base, str(error), job)
            self.receipt.drop(job, f"it was left out: {error}")
            return ""
        if named:
            self.name_entry(named, base)
        self.apply(shape.rules, job, base)
        has_prompt = "prompt" in self.data["cron"][name]
        if not has_prompt and "model" in self.data["cron"][name]:
            self.remove((*base, "model"), "only jobs with a prompt have this setting")
        if deliver and (has_prompt or "command" in self.data["cron"][name]):
            self.put_deliver(base, job.get(deliver[0]), job.get(deliver[1]), has_agent=has_prompt)
        return name

    def switch_jobs(self, node: Node | None) -> None:
        """A setting of the config that switches all jobs on or off."""
        if node and node.value is False:
            self._all_off = node
        elif node:
            self.receipt.drop(node, "true, as here", is_loss=False)

    def _put_schedule(self, job: Node, base: Path, shape: JobShape) -> None:
        schedule = job.get("schedule") or (job if job.first("cron", "at") else None)
        if schedule is None or (not schedule.children and not schedule.text):
            raise NotUsable("it has no schedule")
        zone = schedule.first(*shape.zone) or job.first(*shape.zone)
        zone_name = value_converters.zone(zone) if zone and zone.text else self.zone
        kind = schedule.first("kind", "type")
        if not schedule.is_container:
            self._put_schedule_text(schedule, base, zone_name, shape)
        else:
            word = kind.text.lower() if kind else ""
            if word not in ("", *_SCHEDULE_KINDS):
                raise NotUsable(f"a schedule of the kind {word[:30]} has no times that heartbeatd could keep")
            ways = [_SCHEDULE_KINDS[word]] if word else list(dict.fromkeys(_SCHEDULE_KINDS.values()))
            way, found = next(((way, found) for way in ways if (found := schedule.first(*_SCHEDULE_KEYS[way]))), ("", None))
            if found is None:
                raise NotUsable("its schedule has no expression, interval or time")
            if way == "schedule":
                self.put(found, (*base, "schedule"), value_converters.cron_expression(found, zone_name))
            elif way == "at":
                self.put(found, (*base, "at"), value_converters.moment(found, shape.naive_zone or zone_name))
            else:
                self._put_interval(found, schedule.first("anchorMs", "anchor"), base, shape.naive_zone or zone_name)
        used = _schedule_key(self.data["cron"][base[1]])
        for key in (key for way, keys in _SCHEDULE_KEYS.items() if way != used for key in keys):
            if (other := schedule.get(key)) and schedule is not job and not self.receipt.is_decided(other):
                self.receipt.drop(other, "the schedule is of another kind", is_loss=False)
        if kind:
            self.receipt.keep(kind, ".".join((*base, _schedule_key(self.data["cron"][base[1]]))))
        if "schedule" in self.data["cron"][base[1]] and "timezone" not in self.data["cron"][base[1]]:
            if zone:
                self.put(zone, (*base, "timezone"), zone_name)
            else:
                self._add_zone((*base, "timezone"))
        elif zone:
            self.receipt.keep(zone, ".".join(base), "needed only to read the time")
        if (stagger := schedule.get("staggerMs")) and stagger.value:
            self.apply((Rule("staggerMs", "stagger", value_converters.duration("ms", zero="0s")),), schedule, base)

    def _put_interval(self, node: Node, anchor: Node | None, base: Path, naive_zone: str) -> None:
        """An interval. With the time of one run (`anchor`), it becomes a schedule, if one has the same times."""
        unit = {"everyms": "ms", "minutes": "m"}.get(str(node.steps[-1]).replace("_", "").lower(), "s")
        every = value_converters.positive_duration(unit)(node)
        schedule = value_converters.anchored_schedule(node, unit, anchor, naive_zone) if anchor else None
        if not anchor or not schedule:
            self.put(node, (*base, "every"), every)
            if anchor and value_converters.to_seconds(node, unit) >= PHASE_MATTERS:
                self.disable(base, f"no cron expression has the times of {every} from {anchor.text} on")
            return
        self.put(node, (*base, "schedule"), schedule, "the same times")
        self.receipt.change(anchor, ".".join((*base, "schedule")), schedule)
        self.add((*base, "timezone"), "UTC", "the zone of these times")

    def _put_schedule_text(self, node: Node, base: Path, zone: str, shape: JobShape) -> None:
        """A schedule written as text: a cron expression, `every 2h`, or a time."""
        written = node.text
        if value_converters.looks_like_cron(node):
            self.put(node, (*base, "schedule"), value_converters.cron_expression(node, zone))
        elif written.lower().startswith(("every ", "@every ")):
            short = node.with_text(written.partition(" ")[2])
            self.put(node, (*base, "every"), value_converters.positive_duration("m")(short))
        else:
            self.put(node, (*base, "at"), value_converters.moment(node, shape.naive_zone or zone))

    def _put_action(self, job: Node, base: Path, shape: JobShape, runner: tuple[Mapping[str, object], str]) -> None:
        parts = (shape.command, shape.event, shape.prompt, shape.message)
        command, event, prompt, message = (job.first(*keys) if keys else None for keys in parts)
        wanted = job.first(*shape.agent)
        key = "wake_text" if event else "prompt"
        if command and (command.text or command.children):
            key = "command"
            self.put(command, (*base, key), shape.command_form(command))
        elif message and message.text:
            key = "command"
            self.put(
                message, (*base, key), ["printf", "%s\n", value_converters.text(message)], "the text is sent without an agent"
            )
        for path in ("payload.kind", "sessionTarget"):
            if (node := job.get(path)) and node.text.lower() not in ("current", "") and not node.text.startswith("session:"):
                self.receipt.keep(node, ".".join((*base, key)))
        if key == "command":
            if wanted:
                self.receipt.drop(wanted, "a command needs no agent", is_loss=False)
            return
        found = event or prompt
        if not found or not found.text:
            raise NotUsable("it has no prompt, event or command that heartbeatd could run")
        agent = self.find_agent(wanted.text if wanted else "", *runner)
        if event:
            self._set((*base, "wake_heartbeat"), agent)
            self.put(event, (*base, "wake_text"), value_converters.text(event))
            if mode := job.get("wakeMode"):
                word = self.wake_modes.get(mode.text.lower())
                if word:
                    self.put(mode, (*base, "wake_mode"), word)
        else:
            self.put(found, (*base, "prompt"), value_converters.text(found))
            self._set((*base, "agent"), agent)
        target = ".".join((*base, "wake_heartbeat" if event else "agent"))
        if wanted and wanted.text:
            self.put(wanted, tuple(target.split(".")), agent)
        else:
            self.receipt.add(target, agent, "the default agent")

    # Checklists

    def put_checklist(self, source: SourceFile, agent: str, *, is_in_workspace: bool) -> None:
        """A HEARTBEAT.md: a `tasks:` block becomes items with `[every ...]` in the config; any other file is left where it is."""
        base = ("agents", agent, "heartbeat", "checklist")
        tasks, lines = source.root.get("tasks"), source.root.get("lines")
        if not tasks:
            why = "heartbeatd reads the file itself" if is_in_workspace else "copy the file into the workspace of the agent"
            self.receipt.keep(source.root, f"agents.{agent}.workspace", why)
            return
        items = []
        for task in tasks.children.values():
            every, what = task.get("interval"), task.get("prompt") or task.get("name")
            mark = ""
            if every:
                try:
                    mark = f"[every {value_converters.positive_duration('m')(every)}] "
                    self.receipt.change(every, ".".join(base), mark.strip())
                except NotUsable as error:
                    self.receipt.drop(every, f"{error}; the item is due at every run")
            label = task.get("name")
            words = ": ".join(node.text for node in (label, task.get("prompt")) if node and node.text)
            items.append(f"- {mark}{words}")
            for node in (label, what):
                if node:
                    self.receipt.keep(node, ".".join(base))
        for line in lines.children.values() if lines else ():
            plain = _MARKS.sub("", line.text) if len(line.text) <= LONGEST_LINE else line.text
            items.append(plain)
            why = "plain text outside the items, so that it makes no item due"
            if plain == line.text:
                self.receipt.keep(line, ".".join(base))
            else:
                self.receipt.change(line, ".".join(base), plain, why)
        self._set(base, "\n".join(items) + "\n")

    # The end

    def finish(self) -> None:
        """Add what every agent needs, and record which channels hold the bot token."""
        for name, agent in self.data["agents"].items():
            beat = agent.setdefault("heartbeat", {})
            base = ("agents", name, "heartbeat")
            if not {"interval", "schedule"} & beat.keys():
                self.add((*base, "interval"), "none", "the agent has no heartbeat, only jobs call it")
            if "deliver" not in beat:
                self.add((*base, "deliver"), self.default_deliver, "no channel is set for its messages")
        for name, token in self._bots.items():
            reference = self.reference(token, "TELEGRAM_BOT_TOKEN")
            if value_converters.is_reference(token.text):
                self.receipt.keep(token, f"channels.{name}.url")
            else:
                self.receipt.change(token, f"channels.{name}.url", reference, "set this environment variable", is_secret=True)

    def remove(self, path: Path, why: str, *, is_loss: bool = True) -> None:
        """Take a key out of the new config again."""
        found: Any = self.data
        for step in path[:-1]:
            found = found.get(step, {})
        found.pop(path[-1], None)
        self.receipt.withdraw(".".join(path), why, is_loss=is_loss)

    @property
    def is_empty(self) -> bool:
        """Whether there is no agent and no job, or nothing of the files is in them: then the files are of another system."""
        return not (self.data["agents"] or self.data["cron"]) or not self.receipt.has_any_used

    def _set(self, path: Path, value: object) -> None:
        found: Any = self.data
        for step in path[:-1]:
            found = found.setdefault(step, {})
        found[path[-1]] = value


def _schedule_key(job: Mapping[str, object]) -> str:
    return next(key for key in ("schedule", "every", "at") if key in job)


def replace_text(data: Any, old: str, new: str) -> Any:
    """The data with a text replaced in all its values."""
    if isinstance(data, dict):
        return {key: replace_text(value, old, new) for key, value in data.items()}
    if isinstance(data, list):
        return [replace_text(value, old, new) for value in data]
    return data.replace(old, new) if isinstance(data, str) else data


def _describe_map(value: Mapping[str, object]) -> str:
    return ", ".join(f"{key}: {' '.join(inner) if isinstance(inner, list) else inner}" for key, inner in value.items())
