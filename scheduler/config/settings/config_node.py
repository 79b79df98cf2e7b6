"""One part of the config while the settings are built: its values, their source positions, and its errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from zoneinfo import ZoneInfo

from heartbeat.calendars import Calendar
from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Diagnostics, Position
from scheduler.config.file.lenient_reading import resolve_path
from scheduler.config.file.marked_yaml import MarkedMap
from scheduler.config.file.message_parts import quote_value, undeclared_name
from scheduler.config.file.remedies import InvalidValue, suggest_correction
from scheduler.config.keys.validation import UNKNOWN_KEY, Steps
from scheduler.config.settings.secrets import SecretResolver, UnsetSecret, is_secret_variable
from scheduler.model.secret import Secret

NO_VARIABLES: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ConfigContext:
    """The rest of the config. `folder` is the absolute folder of the file; `agents` and `channels` are the declared names.

    `calendars` are the declared calendars, None for one with errors. `open_channels` are the channels whose URL contains
    {target}; `deliver_names` are the words that `deliver` accepts: the channels, and `last`.
    """

    folder: Path
    zone: ZoneInfo
    min_interval: timedelta
    agents: Collection[str]
    channels: Collection[str]
    calendars: Mapping[str, Calendar | None]
    secrets: SecretResolver
    diagnostics: Diagnostics
    open_channels: Collection[str] = ()
    deliver_names: Collection[str] = ()

    def resolve_path(self, text: str) -> Path:
        """An absolute path from a path in the config: relative to its folder, or to the home folder with ~/."""
        return resolve_path(self.folder, text)


@dataclass(frozen=True, slots=True)
class ConfigNode:
    """One entry or section of the file: `merged` with the defaults, `own` without.

    `unreadable` are the steps to values that could not be understood, with their positions; `merged` does not contain them.
    """

    steps: tuple[str, ...]
    merged: MarkedMap
    position: Position
    context: ConfigContext
    own: MarkedMap | None = None
    unreadable: Mapping[Steps, Position] = field(default_factory=dict)

    def has_own_key(self, *inside: str) -> bool:
        """Whether the entry sets this key itself, and does not inherit it."""
        node: object = self.own
        for step in inside:
            if not isinstance(node, MarkedMap) or step not in node:
                return False
            node = node[step]
        return True

    def is_readable(self, *inside: str | int) -> bool:
        """Whether everything at this key was understood; otherwise its value must not be used for conclusions."""
        return not self.unreadable or not any(inside[: len(steps)] == steps for steps in self.unreadable)

    def add_error(self, problem: str | InvalidValue, *inside: str | int) -> None:
        """Add an error, unless the map around it was not understood."""
        if not self.is_readable(*inside[:-1]):
            return
        place, known = marked_yaml.locate_value(self.merged, inside, self.position, tagged=False)
        self.context.diagnostics.add_error(
            self.unreadable.get(inside, place), marked_yaml.dotted_path([*self.steps, *known]), problem
        )

    def add_missing_error(self, key: str, advice: InvalidValue, *inside: str | int) -> None:
        """Add an error for a missing key, unless the key is there and was not understood."""
        if not self.is_readable(*inside, key) or (*inside, UNKNOWN_KEY) in self.unreadable:
            return
        own = self.merged if self.own is None else self.own
        place, known = marked_yaml.locate_value(own, (*inside, key), self.position, tagged=False)
        self.context.diagnostics.add_error(place, marked_yaml.dotted_path([*self.steps, *known]), advice, missing=key)

    def narrow_suggestions(self, fits: Callable[[object], bool], otherwise: object, *inside: str) -> None:
        """Keep the suggested values of a key that pass `fits`; if none does, suggest `otherwise`."""
        if self.context.diagnostics.has_errors:
            place, _ = marked_yaml.locate_value(self.merged, inside, self.position)
            self.context.diagnostics.narrow_suggestions(self.unreadable.get(inside, place), fits, otherwise)

    def add_warning(self, message: str | InvalidValue, *inside: str | int) -> None:
        place, known = marked_yaml.locate_value(self.merged, inside, self.position)
        self.context.diagnostics.add_warning(place, marked_yaml.dotted_path([*self.steps, *known]), message)

    def check_declared(
        self,
        names: tuple[str, ...],
        among: Collection[str],
        noun: str,
        *inside: str | int,
        offered: Collection[str] | None = None,
        several: bool = True,
    ) -> None:
        """Add an error for each undeclared name. `offered` are the names to suggest; `several`: the key takes a list."""
        for index, name in enumerate(names):
            listed = [part for part in re.split(r"[\s,;]+", name) if part]
            if name in among:
                continue
            if "://" in name:
                self.add_error(f"this is a URL and not a declared {noun}; declare it and write its name here", *inside, index)
            elif several and len(names) == 1 and len(listed) > 1 and all(part in among for part in listed):
                self.add_error(suggest_correction(f"{quote_value(name)} is not a declared {noun}", listed), *inside)
            else:
                others = [other for other in (among if offered is None else offered) if other not in names]
                self.add_error(undeclared_name(marked_yaml.printable_key(name), noun, others), *inside, index)

    def resolve_secret(self, text: str, *inside: str | int, used: bool) -> Secret | None:
        """The text with its references resolved; None after an error, which is only a warning if nothing enabled uses it."""
        try:
            return self.context.secrets.resolve_references(text)
        except UnsetSecret as unset:
            say = self.add_error if used else self.add_warning
            say(str(unset), *inside)
        except InvalidValue as wrong:
            self.add_error(wrong, *inside)
        return None

    def build_variables(self, pairs: tuple[tuple[str, str], ...], *inside: str | int, used: bool) -> Mapping[str, object]:
        """The variables of a program. Values that are not secrets stay plain text, and are not redacted in its output."""
        filled = self.build_environment(pairs, *inside, used=used)
        return MappingProxyType(
            {name: filled[name] if is_secret_variable(name, text) else text for name, text in pairs if name in filled}
        )

    def build_environment(self, pairs: tuple[tuple[str, str], ...], *inside: str | int, used: bool) -> Mapping[str, object]:
        if not pairs:
            return NO_VARIABLES
        filled = {name: self.resolve_secret(text, *inside, name, used=used) for name, text in pairs}
        return MappingProxyType({name: value for name, value in filled.items() if value is not None})
