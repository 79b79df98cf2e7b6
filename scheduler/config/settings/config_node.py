"""One part of the config while the settings are built: its values, their source positions, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from heartbeat.hours import Calendar, make_calendar
from heartbeatd.secret import Secret
from heartbeatd.state_folder import resolve_path
from scheduler.channels.url_template import PLACEHOLDER, is_web_address
from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import NO_POSITION, Diagnostics, Position
from scheduler.config.file.marked_yaml import MarkedMap
from scheduler.config.file.message_parts import undeclared_name
from scheduler.config.keys import models
from scheduler.config.settings.config_data import ConfigData, map_at
from scheduler.config.settings.secrets import SecretResolver, UnsetSecret, has_reference, is_secret_variable
from scheduler.model.settings import LOG_CHANNEL
from scheduler.net.address_guard import AddressRefused, check_literal

Fault = tuple[str, str, tuple[str | int, ...], str]
"""What is wrong with an entry: its section, its name, the steps to the key in it, and the message."""

WRITE_ADDRESS = "write http:// or https:// with a host"
Spec = TypeVar("Spec")
NO_VARIABLES: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True)
class ConfigContext:
    """The whole config while the settings are built. `folder` is the absolute folder of the file."""

    folder: Path
    config: models.Config
    source: ConfigData
    secrets: SecretResolver
    diagnostics: Diagnostics

    @property
    def zone(self) -> ZoneInfo:
        return self.config.timezone

    @cached_property
    def channels(self) -> tuple[str, ...]:
        """The declared names, and `log`."""
        return (LOG_CHANNEL, *self.config.channels)

    @cached_property
    def open_channels(self) -> tuple[str, ...]:
        """The channels whose URL contains {target}."""
        return tuple(name for name, part in self.config.channels.items() if PLACEHOLDER in (part.url or ""))

    @cached_property
    def calendars(self) -> dict[str, Calendar]:
        """The declared calendars."""
        parts = self.config.calendars
        return {name: make_calendar(part.dates, frozenset().union(*part.days)) for name, part in parts.items()}

    def resolve_path(self, text: str) -> Path:
        """An absolute path from a path in the config: relative to its folder, or to the home folder with ~/."""
        return resolve_path(self.folder, text)

    @property  # not cached: a node refers to its context, and a circle would keep the config of each reload in memory
    def top(self) -> ConfigNode:
        """The file as a whole."""
        return ConfigNode((), self.source.root, NO_POSITION, self)

    def section(self, name: str) -> ConfigNode:
        """A section of the file, which may be missing."""
        marks = self.source.root.marks
        return ConfigNode((name,), map_at(self.source.root, name), marks[name][0] if name in marks else NO_POSITION, self)

    def entry(self, section: str, name: str, *, used: bool = True) -> ConfigNode:
        """An entry of a section, such as an agent."""
        own = self.source.root[section]
        return ConfigNode((section, name), self.source.merged[section][name], own.marks[name][0], self, own[name], used=used)


@dataclass(frozen=True, slots=True)
class ConfigNode:
    """One entry or section of the file: `merged` with the defaults, `own` without. `inside` are the steps to the part of it that
    this node is about. `used`: an enabled entry needs it, so an unset secret in it is an error.
    """

    steps: tuple[str, ...]
    merged: MarkedMap
    position: Position
    context: ConfigContext
    own: MarkedMap | None = None
    inside: tuple[str | int, ...] = ()
    used: bool = True

    def below(self, *inside: str | int) -> ConfigNode:
        """The node of a part of this one."""
        return replace(self, inside=(*self.inside, *inside))

    @property
    def own_keys(self) -> MarkedMap:
        """The keys that the entry sets itself here, and does not inherit."""
        return map_at(self.own, *map(str, self.inside))

    def add_error(self, message: str, *inside: str | int, missing: str = "") -> None:
        """Add an error; `missing` is the key that is missing there, if the error is about one."""
        steps = (*self.inside, *inside, *filter(None, [missing]))
        node = self.own if missing and self.own is not None else self.merged
        place, known = marked_yaml.locate_value(node, steps, self.position, tagged=False)
        self.context.diagnostics.add_error(place, marked_yaml.dotted_path([*self.steps, *known]), message, missing=missing)

    def add_warning(self, message: str, *inside: str | int) -> None:
        place, known = marked_yaml.locate_value(self.merged, (*self.inside, *inside), self.position)
        self.context.diagnostics.add_warning(place, marked_yaml.dotted_path([*self.steps, *known]), message)

    def report_unused(self, found: Iterable[tuple[str, str]]) -> None:
        """Add an error for each useless key that the entry sets itself. Inherited keys may be meant for others."""
        for key, message in found:
            if key in self.own_keys:
                self.add_error(message, key)

    def check_declared(
        self,
        names: tuple[str, ...],
        among: Collection[str],
        noun: str,
        *inside: str | int,
        offered: Collection[str] | None = None,
    ) -> None:
        """Add an error for each undeclared name. `offered` are the names to suggest."""
        for index, name in enumerate(names):
            if name in among:
                continue
            if "://" in name:
                self.add_error(f"this is a URL and not a declared {noun}; declare it and write its name here", *inside, index)
            else:
                others = [other for other in (among if offered is None else offered) if other not in names]
                self.add_error(undeclared_name(marked_yaml.printable_key(name), noun, others), *inside, index)

    def resolve_secret(self, text: str | None, *inside: str | int) -> Secret | None:
        """The text with its references resolved; None without a text, and after an error."""
        try:
            return None if text is None else self.context.secrets.resolve_references(text)
        except UnsetSecret as unset:
            say = self.add_error if self.used else self.add_warning
            say(str(unset), *inside)
        except ValueError as wrong:
            self.add_error(str(wrong), *inside)
        return None

    def resolve_address(self, text: str | None, *inside: str | int, advice: str = WRITE_ADDRESS) -> Secret | None:
        """As `resolve_secret`, for the address of a server. A wrong one is an error at `inside`."""
        url = self.resolve_secret(text, *inside)
        self.check_address(url, *inside, advice=advice)
        return url

    def check_address(self, url: Secret | None, *inside: str | int, advice: str = WRITE_ADDRESS) -> bool:
        """Whether this is the address of a server, as far as it is known. If not, an error is added."""
        if url is None or not url.is_checked or is_web_address(url.reveal()):
            return True
        self.add_error(f"this is not the address of a server; {advice}", *inside)
        return False

    def warn_of_private_address(self, url: Secret | None, *inside: str | int) -> None:
        """Warn of an address of this machine or of a private network, to which nothing is sent. Names are not looked up."""
        if url is None or not url.is_checked or not is_web_address(url.reveal()):
            return
        host = urlsplit(url.reveal()).hostname or ""
        try:
            check_literal("127.0.0.1" if host == "localhost" else host)
        except AddressRefused:  # its text names the address, which may be a secret
            problem = "this is an address of this machine or of a private network, and nothing is sent to it"
            self.add_warning(f"{problem}; to send to it, write allow_private: true", *inside)

    def warn_of_plain_secret(self, text: str | None, *inside: str | int) -> None:
        """Warn of a secret that is not a reference to one."""
        if text and not has_reference(text):
            self.add_warning("this secret is written in the file itself; write ${NAME} or ${file:PATH} instead", *inside)

    def build_variables(self, texts: Mapping[str, str], *inside: str | int) -> Mapping[str, object]:
        """The variables of a program. Values that are not secrets stay plain text, and are not redacted in its output."""
        filled = self.build_environment(texts, *inside)
        return MappingProxyType(
            {name: filled[name] if is_secret_variable(name, text) else text for name, text in texts.items() if name in filled}
        )

    def build_headers(self, texts: Mapping[str, str], *inside: str | int) -> Mapping[str, object]:
        """The headers of a request. Values that are resolved must be such that they can be sent."""
        headers = self.build_environment(texts, *inside)
        for name, value in headers.items():
            text = value.reveal() if isinstance(value, Secret) and value.is_checked else ""
            if not all(" " <= character <= "~" or character == "\t" for character in text):
                self.add_error("a header can contain only ASCII letters, digits and punctuation, on one line", *inside, name)
        return headers

    def build_environment(self, texts: Mapping[str, str], *inside: str | int) -> Mapping[str, object]:
        if not texts:
            return NO_VARIABLES
        filled = {name: self.resolve_secret(text, *inside, name) for name, text in texts.items()}
        return MappingProxyType({name: value for name, value in filled.items() if value is not None})


def build_spec(part: models.ConfigPart, spec: Callable[..., Spec], **computed: Any) -> Spec:
    """The spec whose fields have the values of the keys with their names, or else these computed values."""
    names = _carried_names(type(part), spec)
    return spec(**{name: getattr(part, name) for name in names if name not in computed}, **computed)


@lru_cache(maxsize=64)
def _carried_names(model: type[models.ConfigPart], spec: Any) -> tuple[str, ...]:
    names = {field.name for field in fields(spec)}
    return tuple(name for name in model.model_fields if name in names)
