"""What one entry of the config needs to know of the rest, and how it says where its faults are."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from zoneinfo import ZoneInfo

from heartbeat.calendars import Calendar
from scheduler.channels.address import SLOT
from scheduler.config.build.secrets import Unset, Vault, holds_secret
from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Complaints, Place
from scheduler.config.file.lenient_reading import from_folder
from scheduler.config.file.marked_yaml import Map
from scheduler.config.file.message_parts import shown, undeclared
from scheduler.config.file.remedies import Remedy, Wrong, surely
from scheduler.model.secret import Secret
from scheduler.model.settings import LAST

Steps = tuple[str | int, ...]

UNKNOWN = ""  # stands in `lost` for a key that could not be understood, and may be any that is missing
EMPTY: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Frame:
    """The config around an entry. `folder` is that of the file, absolute; `agents` and `channels` are the names declared.

    `calendars` are those declared, without a value where they have faults. `open` are the channels whose URL holds {target},
    `targets` the words that `deliver` knows: the channels, and `last`.
    """

    folder: Path
    zone: ZoneInfo
    min_interval: timedelta
    agents: Collection[str]
    channels: Collection[str]
    calendars: Mapping[str, Calendar | None]
    vault: Vault
    complaints: Complaints
    open: Collection[str] = ()
    targets: Collection[str] = ()

    def path(self, text: str) -> Path:
        """A path of the config: from its folder, or from home with ~/."""
        return from_folder(self.folder, text)


@dataclass(frozen=True, slots=True)
class Spot:
    """One entry as it stands in the file: `written` with the defaults, `own` without.

    `lost` are the steps to what could not be understood and is not in `written` any more, with its place.
    """

    steps: tuple[str, ...]
    written: Map
    place: Place
    frame: Frame
    own: Map | None = None
    lost: Mapping[Steps, Place] = field(default_factory=dict)

    def wrote(self, *inside: str) -> bool:
        """Whether the entry holds this key itself, and did not inherit it."""
        node: object = self.own
        for step in inside:
            if not isinstance(node, Map) or step not in node:
                return False
            node = node[step]
        return True

    def knows(self, *inside: str | int) -> bool:
        """Whether all that the file says of this key was understood; else nothing can be concluded from its value."""
        return not self.lost or not any(inside[: len(steps)] == steps for steps in self.lost)

    def fault(self, what: str | Wrong, *inside: str | int) -> None:
        """Note a fault, unless what holds it was not understood at all."""
        if self.frame.complaints.partial or not self.knows(*inside[:-1]):
            return
        place, known = marked_yaml.locate(self.written, inside, self.place, tagged=False)
        self.frame.complaints.fault(self.lost.get(inside, place), marked_yaml.dotted([*self.steps, *known]), what)

    def missing(self, key: str, advice: Wrong, *inside: str | int) -> None:
        """Note that a key is missing, unless it is there and was not understood."""
        if self.frame.complaints.partial or not self.knows(*inside, key) or (*inside, UNKNOWN) in self.lost:
            return
        own = self.written if self.own is None else self.own
        place, known = marked_yaml.locate(own, (*inside, key), self.place, tagged=False)
        self.frame.complaints.fault(place, marked_yaml.dotted([*self.steps, *known]), advice, missing=key)

    def narrow(self, fits: Callable[[object], bool], otherwise: object, *inside: str) -> None:
        """Of the values suggested for a key, keep those that fit what else the file says."""
        if self.frame.complaints.refused:
            place, _ = marked_yaml.locate(self.written, inside, self.place)
            self.frame.complaints.narrow(self.lost.get(inside, place), fits, otherwise)

    def warn(self, message: str | Wrong, *inside: str | int) -> None:
        if self.frame.complaints.partial:
            return
        place, known = marked_yaml.locate(self.written, inside, self.place)
        self.frame.complaints.warn(place, marked_yaml.dotted([*self.steps, *known]), message)

    def known(
        self,
        names: tuple[str, ...],
        among: Collection[str],
        noun: str,
        *inside: str | int,
        offered: Collection[str] | None = None,
        several: bool = True,
    ) -> None:
        """Note each name that is not declared. `offered` are those that would do here, if not all; `several`: a list may."""
        for index, name in enumerate(names):
            listed = [part for part in re.split(r"[\s,;]+", name) if part]
            if name in among:
                continue
            if "://" in name:
                self.fault(f"this is a URL, and no {noun} of this file; declare it and write its name here", *inside, index)
            elif several and len(names) == 1 and len(listed) > 1 and all(part in among for part in listed):
                self.fault(surely(f"{shown(name)} is no {noun} of this file", listed), *inside)
            else:
                others = [other for other in (among if offered is None else offered) if other not in names]
                self.fault(undeclared(marked_yaml.shown_key(name), noun, others), *inside, index)

    def reached(self, names: tuple[str, ...], *inside: str | int, speaks: bool) -> None:
        """Note each name in a `deliver` that leads to nobody; `speaks`: there is an agent that somebody may have spoken with."""
        offered = self.frame.targets if speaks and self.frame.open else self.frame.channels
        offered = [name for name in offered if name not in self.frame.open]
        self.known(names, self.frame.targets, "channel", *inside, offered=offered)
        for index, name in enumerate(names):
            if name in self.frame.open:
                remedies = [Remedy(LAST)] if speaks and names == (name,) else []
                words = "write last, or somebody into the URL" if speaks else "write somebody into the URL"
                self.fault(Wrong(f"the URL of {name} holds {SLOT}, and names nobody", *remedies, words=words), *inside, index)
            elif name == LAST and not speaks:
                self.fault("last is whoever spoke with an agent last, and this job asks none; name a channel", *inside, index)
            elif name == LAST and not self.frame.open:
                example = f'channels: {{chat: "tgram://${{TOKEN}}/{SLOT}"}}'
                self.fault(f"last needs a channel whose URL holds {SLOT}, the place for whom; write {example}", *inside, index)

    def secret(self, text: str, *inside: str | int, used: bool) -> Secret | None:
        """The text with its references filled in; None after a complaint, which is a warning where nothing enabled uses it."""
        try:
            return self.frame.vault.fill(text)
        except Unset as unset:
            say = self.fault if used else self.warn
            say(str(unset), *inside)
        except Wrong as wrong:
            self.fault(wrong, *inside)
        return None

    def variables(self, pairs: tuple[tuple[str, str], ...], *inside: str | int, used: bool) -> Mapping[str, object]:
        """The variables for a program. Values that are no secrets stay plain text, and are not covered in what it prints."""
        filled = self.environment(pairs, *inside, used=used)
        return MappingProxyType(
            {name: filled[name] if holds_secret(name, text) else text for name, text in pairs if name in filled}
        )

    def environment(self, pairs: tuple[tuple[str, str], ...], *inside: str | int, used: bool) -> Mapping[str, object]:
        if not pairs:
            return EMPTY
        filled = {name: self.secret(text, *inside, name, used=used) for name, text in pairs}
        return MappingProxyType({name: value for name, value in filled.items() if value is not None})
