"""Collects the config that an import makes, together with the receipt of the values it was made from.

The module of a system says which value goes where. This module puts it there, and has the parts that all systems share: names,
secrets, agents, active hours and channels. `job_conversion` has those of jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.config.file.marked_yaml import value_at
from scheduler.extras.importers import value_converters
from scheduler.extras.importers.import_receipt import NO_VALUE, Receipt
from scheduler.extras.importers.source_files import MISSING, Files, Node, PathStep
from scheduler.extras.importers.value_converters import Converter, NotUsable

SECTIONS = ("providers", "channels", "agents", "cron")
MAX_NAME = 50  # characters, so that there is room for a number

OVERRIDDEN = "overridden by a more specific value"
NO_BOT = "there is no Telegram bot to send with; declare a channel, and set deliver"
NO_CHANNEL = "no channel could be imported for its messages"
LAST_CHAT = "your gateway reports the last chat by POST /api/v1/agents/NAME/activity"

_RESERVED = frozenset(("log", "last", "none"))
_NOWHERE = ("none", "local", "off", "cli", "internal")
_LAST = ("last", "origin", "owner", "")
_TARGET = re.compile(r"@?[A-Za-z0-9_-]{1,60}(?::\d{1,20})?", re.ASCII)


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
class Part:
    """A map of the new config, such as an agent, its heartbeat or a job, by its dotted path. Keys in it may be dotted too."""

    draft: Draft
    path: str

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def below(self, key: str) -> Part:
        return Part(self.draft, f"{self.path}.{key}")

    def get(self, key: str) -> Any:
        """The value of a key; None if it is not set."""
        return value_at(self.draft.data, f"{self.path}.{key}".split("."))

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def put(self, key: str, node: Node, value: object, why: str = "") -> None:
        """Set a key to a value made from a node, and record the node as kept or changed."""
        if key in self:
            self.draft.receipt.withdraw(f"{self.path}.{key}", OVERRIDDEN, is_loss=False)
        self.draft.set_value(f"{self.path}.{key}", value)
        if not node.is_container and (node.value == value or node.text == str(value)):
            self.keep(node, key, why)
        else:
            self.change(node, key, why)

    def add(self, key: str, value: object, why: str) -> None:
        """Set a key that no source has."""
        self.draft.set_value(f"{self.path}.{key}", value)
        shown = _describe_map(value) if isinstance(value, dict) else value
        self.draft.receipt.add(f"{self.path}.{key}", shown, why)

    def add_defaults(self, values: Mapping[str, object]) -> None:
        """Set the keys that no source has to the defaults of the other system."""
        for key, value in values.items():
            if key not in self:
                self.add(key, value, f"{self.draft.title}'s default")

    def keep(self, node: Node, key: str, why: str = "") -> None:
        """Record that a key says what a node says."""
        self.draft.receipt.keep(node, f"{self.path}.{key}", why)

    def change(self, node: Node, key: str, why: str = "") -> None:
        """Record that a node became the value of a key."""
        self.draft.receipt.change(node, f"{self.path}.{key}", self.get(key), why)

    def apply(self, rules: Iterable[Rule], node: Node) -> None:
        """Convert the values that a table lists, and set our keys. A value that cannot be used is dropped."""
        for rule in rules:
            found = node.get(rule.key)
            if not found.is_container and found.value is None:
                self.draft.receipt.drop(found, NO_VALUE, is_loss=False)
                continue
            try:
                self.put(rule.to, found, rule.convert(found), rule.why)
            except NotUsable as error:
                self.draft.receipt.drop(found, str(error))
                if rule.decides:
                    self.disable(f"{found.key} {error}")

    def put_secret(self, key: str, node: Node, variable: str) -> None:
        """Set a key to a reference to an environment variable in place of a secret."""
        self.draft.set_value(f"{self.path}.{key}", self.draft.make_reference(node, variable))
        self.note_secret(node, key, self.get(key))

    def note_secret(self, node: Node, key: str, reference: str) -> None:
        """Record that a key refers to the secret in a node."""
        if value_converters.is_reference(node.text):
            self.keep(node, key)
        else:
            self.draft.receipt.change(node, f"{self.path}.{key}", reference, "set this environment variable", is_secret=True)

    def put_url(self, key: str, node: Node, variable: str, short: str = "") -> None:
        """Set a key to a URL, or its `short` form; or to a reference if the URL may contain a secret."""
        address = value_converters.web_address(node)
        if value_converters.holds_secret(address):
            self.put_secret(key, node, variable)
        else:
            self.put(key, node, short or address)

    def put_name(self, node: Node) -> None:
        """Record that a node has the name of this entry, perhaps in another spelling."""
        if node.text == self.name:
            self.draft.receipt.keep(node, self.path)
        else:
            self.draft.receipt.change(node, self.path, self.name)

    def disable(self, why: str) -> None:
        """Disable the agent or job that this part belongs to, because it would do something else than before."""
        self.draft.disable(self.path, why)

    def put_hours(self, start: Node, end: Node, zone: Node = MISSING, *, default_zone: str = "") -> None:
        """Active hours. Equal times mean that the agent never runs, and become `enabled: false`.

        `default_zone` is the other system's own zone for hours without a zone.
        """
        receipt = self.draft.receipt
        given = [node for node in (start, end) if node.text]
        zone = zone if zone.text else MISSING
        if not given:
            for node in (start, end, zone):
                receipt.drop(node, NO_VALUE if node.value is None else "has no effect without a start and an end")
            return
        try:
            first, last = (value_converters.clock_time(node) if node else "" for node in (start, end))
            name = value_converters.zone(zone) if zone else default_zone or self.draft.zone
        except NotUsable as error:
            for node in (start, end, zone):
                receipt.drop(node, f"active hours: a value {error}")
            self.disable(f"active hours: a value {error}")
            return
        first, last = "00:00" if first in ("", "24:00") else first, last or "24:00"
        if first == last:
            self.draft.set_value(f"{self.path}.enabled", False)
            for node in (*given, zone):
                self.change(node, "enabled", "a window of no length, so the agent never ran")
            return
        hours = self.below("active_hours")
        for node, key, value in ((start, "start", first), (end, "end", last)):
            if node:
                hours.put(key, node, value)
            hours.add_defaults({key: value})
        if zone:
            hours.put("timezone", zone, name)
        elif default_zone:
            hours.add_defaults({"timezone": default_zone})
        if name == self.draft.zone and (zone or not default_zone):
            hours.add_zone()

    def put_range(self, hours: Node, zone: Node, *, default_zone: str = "") -> None:
        """Active hours that are written as one text: 08:00-22:00."""
        parts = hours.text.split("-")
        if len(parts) != 2:
            self.draft.receipt.drop(hours, "is no range of times")
            self.disable(f"{hours.key} is no range of times")
            return
        start, end = (hours.with_text(part.strip()) for part in parts)
        self.put_hours(start, end, zone, default_zone=default_zone)
        if "active_hours" in self:
            self.keep(hours, "active_hours")
        elif not self.draft.receipt.is_decided(hours):
            self.draft.receipt.drop(hours, "is no window of time")

    def add_zone(self) -> None:
        """Set the time zone that comes from the config as a whole, or else from the command or the host."""
        draft = self.draft
        if draft.zone_problem:
            self.disable(draft.zone_problem)
        draft.receipt.withdraw(f"{self.path}.timezone", OVERRIDDEN, is_loss=False)
        if draft.zone_source:
            draft.set_value(f"{self.path}.timezone", draft.zone)
            self.keep(draft.zone_source, "timezone")
        else:
            self.add("timezone", draft.zone, draft.zone_reason)

    def put_deliver(self, channel: Node = MISSING, to: Node = MISSING, token: Node = MISSING) -> None:
        """`deliver` of an agent or job, from the name of a channel and a recipient there.

        A job without an agent has no last chat to send to. `token` is that of another bot than the config's own.
        """
        receipt = self.draft.receipt
        for node in (channel, to):
            if not node.text:
                receipt.drop(node, NO_VALUE, is_loss=False)
        try:
            name, why = self.draft.find_channel(channel.text.lower(), to.text, token)
            if name == "last" and self.path.startswith("cron.") and "prompt" not in self:
                raise NotUsable("a job without an agent has no last chat; declare a channel, and set deliver")
        except NotUsable as error:
            for node in (channel, to):
                receipt.drop(node, str(error))
            self.deliver_to_log(str(error))
            return
        if channel.text:
            self.put("deliver", channel, name, why)
        else:
            self.add("deliver", name, why or "the channel of the recipient")
        if name in ("none", "last"):
            receipt.drop(to, "the recipient is the last one who wrote to the agent" if name == "last" else "nothing is sent")
        elif to.text:
            self.draft.note_recipient(name, to)

    def deliver_to_log(self, why: str) -> None:
        """Disable an agent or job whose recipient cannot be kept."""
        self.add("deliver", "log", NO_CHANNEL)
        self.disable(why)


class Draft:
    """The new config, and what happened to the old one.

    `zone` is the time zone of times that name none. It comes from the value `zone_source`, or else from the place that
    `zone_reason` names. `default_agent` gets the jobs that name no agent. `start_agent` sets the runner of a new agent, from its
    name in the other system. `variables` are the environment variables that the new config refers to, with the keys whose secrets
    they replace.
    """

    def __init__(
        self, receipt: Receipt, title: str, files: Files, zone: str, zone_reason: str, start_agent: Callable[[Part, str], None]
    ) -> None:
        self.receipt = receipt
        self.title = title
        self.files = files
        self.zone = zone
        self.zone_reason = zone_reason
        self.zone_source = MISSING
        self.zone_problem = ""  # why the zone of the config as a whole is unusable
        self.data: dict[str, dict[str, dict[str, Any]]] = {section: {} for section in SECTIONS}
        self.variables: dict[str, str] = {}
        self.secrets: dict[str, str] = {}  # the value of each variable that replaces a secret
        self.default_agent = ""
        self.telegram_token = MISSING
        self.jobs_off = MISSING  # the setting that switches off all jobs
        self._start_agent = start_agent
        self._agents_by_id: dict[str, str] = {}
        self._entries: dict[tuple[str, tuple[PathStep, ...]], tuple[Node, str]] = {}  # by the file and steps of their nodes
        self._bots: dict[str, Node] = {}  # the token of each Telegram channel
        self._taken = {leaf.text[2:-1] for leaf in receipt.leaves if value_converters.is_reference(leaf.text)}

    def part(self, path: str) -> Part:
        return Part(self, path)

    def set_value(self, path: str, value: object) -> None:
        *above, last = path.split(".")
        found: Any = self.data
        for step in above:
            found = found.setdefault(step, {})
        found[last] = value

    def remove(self, path: str, why: str, *, is_loss: bool = True) -> None:
        """Take a key out of the new config again."""
        *above, last = path.split(".")
        if isinstance(found := value_at(self.data, above), dict):
            found.pop(last, None)
        self.receipt.withdraw(path, why, is_loss=is_loss)

    @property
    def is_empty(self) -> bool:
        """Whether there is no agent and no job, or nothing of the files is in them: then the files are of another system."""
        return not (self.data["agents"] or self.data["cron"]) or all(
            entry.status == "dropped" for entry in self.receipt.entries.values()
        )

    # Names and secrets

    def free_name(self, section: str, wanted: str, fallback: str) -> str:
        """A valid name that the section does not have yet."""
        name = base = re.sub(r"[^A-Za-z0-9_-]+", "-", wanted).strip("-_")[:MAX_NAME].strip("-_") or fallback
        number = 1
        while name in self.data[section] or name in _RESERVED:
            number += 1
            name = f"{base}-{number}"
        return name

    def make_reference(self, node: Node, variable: str) -> str:
        """The reference to use for a secret: its own, if it is one already."""
        if value_converters.is_reference(node.text):
            self.variables.setdefault(node.text[2:-1], node.key)
            return node.text
        name = base = re.sub(r"[^A-Z0-9]+", "_", variable.upper()).strip("_") or "SECRET"
        number = 1
        while name in self._taken or self.secrets.get(name, node.text) != node.text:
            number += 1
            name = f"{base}_{number}"
        self.secrets[name] = node.text
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

    def add_provider(self, name: str, key: Node, address: Node = MISSING) -> str:
        """A provider of models with its key and address; its name. Raises NotUsable for an address that is none."""
        provider = self.part(f"providers.{self.free_name('providers', name, 'provider')}")
        if address.text:
            provider.put_url("base_url", address, f"{name}_BASE_URL")
        provider.add("kind", "anthropic" if name == "anthropic" else "openai", "the kind of its API")
        if key.text:
            provider.put_secret("api_key", key, f"{name}_API_KEY")
        return provider.name

    def take_zone(self, node: Node) -> None:
        """Use the time zone of a config for times that name none."""
        if node.text:
            try:
                self.zone, self.zone_source = value_converters.zone(node), node
            except NotUsable as error:
                self.receipt.drop(node, str(error))
                self.zone_problem = f"{node.key} {error}"

    # Entries: agents and jobs

    def note_entry(self, node: Node, entry: Part) -> None:
        """Note that the values below a node belong to an agent or job."""
        if node:
            self._entries[node.file, node.steps] = (node, entry.path)

    def find_entry(self, leaf: Node) -> tuple[str, int]:
        """The agent or job of the new config to which a value belongs, and how many steps above its keys are in the file."""
        for length in range(len(leaf.steps), -1, -1):
            if found := self._entries.get((leaf.file, leaf.steps[:length])):
                return (found[1] if value_at(self.data, found[1].split(".")) is not None else ""), length
        return "", 0

    def disable(self, path: str, why: str) -> None:
        """Disable the agent or job at or above `path`, because it would do something else than before."""
        entry = ".".join(path.split(".")[:2])
        key = f"{entry}.enabled" if entry.startswith("cron.") else f"{entry}.heartbeat.enabled"
        self.set_value(key, False)
        self.receipt.disable(entry, key, self._node_of(entry), why)

    def leave_out(self, entry: str, why: str, node: Node = MISSING) -> None:
        """Take an agent or job out of the new config, because it would do something else than before."""
        self.receipt.leave_out(entry, node or self._node_of(entry), why)
        self.remove(entry, f"it was left out: {why}")

    def _node_of(self, entry: str) -> Node:
        return next((node for node, path in self._entries.values() if path == entry), MISSING)

    def find_agent(self, ident: str) -> Part:
        """The agent with this ID, or the default agent. A missing agent is added."""
        name = self._agents_by_id.get(ident) or ("" if ident else self.default_agent)
        return self.part(f"agents.{name}") if name else self.add_agent(ident)

    def add_agent(self, ident: str) -> Part:
        """A new agent for an agent of the other system."""
        name = self.free_name("agents", ident, "main")
        self.data["agents"][name] = {}
        self._agents_by_id.setdefault(ident or name, name)
        self.default_agent = self.default_agent or name
        agent = self.part(f"agents.{name}")
        self._start_agent(agent, ident)
        return agent

    def note_agent_id(self, node: Node, agent: Part) -> None:
        """Note another ID of an agent, by which jobs may name it."""
        if node.text:
            self._agents_by_id.setdefault(node.text, agent.name)

    def convert_agent(self, config: Node, rules: Iterable[Rule], beat: str = "heartbeat", ident: str = "") -> Part:
        """The agent of a config that has one. `beat` is the key of its heartbeat there."""
        agent = self.find_agent(ident)
        self.note_entry(config.get(beat), agent)
        agent.apply(rules, config)
        return agent

    def keep_callable(self, agent: str) -> bool:
        """Let jobs call an agent whose heartbeat is off; False if it is on. `enabled: false` would disable the jobs too."""
        beat = self.part(f"agents.{agent}.heartbeat")
        if beat.get("enabled") in (None, True):
            return bool(beat.get("interval") == "none")
        for key in ("enabled", "interval", "schedule", "backoff_on_failure"):
            if key in beat:
                self.remove(f"{beat.path}.{key}", "the heartbeat is off", is_loss=False)
        beat.add("interval", "none", "the heartbeat is off, and jobs call the agent")
        return True

    def finish(self) -> None:
        """Add what every agent needs, and record which channels hold the bot token."""
        for name in self.data["agents"]:
            beat = self.part(f"agents.{name}.heartbeat")
            if not ("interval" in beat or "schedule" in beat):
                beat.add("interval", "none", "the agent has no heartbeat, only jobs call it")
            if "deliver" not in beat:
                beat.add("deliver", "log", "no channel is set for its messages")
        for name, token in self._bots.items():
            reference = self.make_reference(token, "TELEGRAM_BOT_TOKEN")
            self.part(f"channels.{name}").note_secret(token, "url", reference)

    # Channels

    def find_channel(self, word: str, to: str, token: Node = MISSING) -> tuple[str, str]:
        """The value of `deliver` for a channel and a recipient, and a note.

        Raises NotUsable for channels that heartbeatd cannot send to.
        """
        if word in _NOWHERE:
            return "none", ""
        kind, _, inline = word.partition(":")
        if word in _LAST:
            if not (token or self.telegram_token) and not to.startswith("telegram:"):
                raise NotUsable(NO_BOT)
        elif not kind.startswith("telegram"):
            advice = "declare a webhook or an Apprise URL, and set deliver"
            raise NotUsable(f"heartbeatd cannot use this bot of {word[:30]}; {advice}")
        name = self.add_telegram(to or inline, token)
        return (name, "") if to or inline else ("last", LAST_CHAT)

    def add_telegram(self, to: str, token: Node = MISSING) -> str:
        """The name of the channel for a Telegram chat; for an empty text, of the channel for `deliver: last`.

        `token` is the token of the bot, if it is not the config's only one.
        """
        token = token or self.telegram_token
        chat = re.sub(r"^(?:telegram:)?(?:group:|user:|channel:)?", "", to).replace(":topic:", ":")
        if to and not _TARGET.fullmatch(chat):
            raise NotUsable("is no Telegram chat")
        name = "telegram" if not to else f"telegram-{re.sub(r'[^A-Za-z0-9_]+', '-', chat).strip('-') or 'chat'}"
        url = f"tgram://{self.make_reference(token, 'TELEGRAM_BOT_TOKEN')}/{chat if to else '{target}'}"
        if same := [known for known, keys in self.data["channels"].items() if keys == {"url": url}]:
            return same[0]
        name = self.free_name("channels", name, "telegram")
        self.data["channels"][name] = {"url": url}
        if token:
            self._bots[name] = token
        return name

    def add_webhook(self, node: Node) -> str:
        """The name of the channel for a URL, which is kept secret."""
        if not value_converters.is_reference(node.text):
            value_converters.web_address(node)
        channel = self.part(f"channels.{self.free_name('channels', 'webhook', 'webhook')}")
        channel.add("kind", "webhook", "the way in which messages are sent there")
        channel.put_secret("url", node, "WEBHOOK_URL")
        return channel.name

    def note_recipient(self, name: str, to: Node) -> None:
        """Record that a node is the recipient in the URL of a channel."""
        channel = self.part(f"channels.{name}")
        (channel.keep if to.text in channel.get("url") else channel.change)(to, "url")


def replace_text(data: Any, old: str, new: str) -> Any:
    """The data with a text replaced in all its values."""
    if isinstance(data, dict):
        return {key: replace_text(value, old, new) for key, value in data.items()}
    if isinstance(data, list):
        return [replace_text(value, old, new) for value in data]
    return data.replace(old, new) if isinstance(data, str) else data


def _describe_map(value: Mapping[str, object]) -> str:
    return ", ".join(f"{key}: {' '.join(inner) if isinstance(inner, list) else inner}" for key, inner in value.items())
