"""What one entry of the config needs to know of the rest, and how it says where its faults are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from zoneinfo import ZoneInfo

from heartbeat.calendars import Calendar
from scheduler.config import tree
from scheduler.config.complaint import Complaints, Place
from scheduler.config.peek import from_folder
from scheduler.config.secrets import Unset, Vault
from scheduler.config.tree import Map
from scheduler.config.wording import undeclared
from scheduler.secret import Secret
from scheduler.settings import LAST
from scheduler.transports.address import SLOT

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
    """One entry as it stands in the file: `written` with the defaults, `own` without."""

    steps: tuple[str, ...]
    written: Map
    place: Place
    frame: Frame
    own: Map | None = None

    def wrote(self, *inside: str) -> bool:
        """Whether the entry holds this key itself, and did not inherit it."""
        node: object = self.own
        for step in inside:
            if not isinstance(node, Map) or step not in node:
                return False
            node = node[step]
        return True

    def fault(self, message: str, *inside: str | int) -> None:
        place, known = tree.locate(self.written, inside, self.place)
        self.frame.complaints.fault(place, tree.dotted([*self.steps, *known]), message)

    def warn(self, message: str, *inside: str | int) -> None:
        place, known = tree.locate(self.written, inside, self.place)
        self.frame.complaints.warn(place, tree.dotted([*self.steps, *known]), message)

    def known(
        self,
        names: tuple[str, ...],
        among: Collection[str],
        noun: str,
        *inside: str | int,
        offered: Collection[str] | None = None,
    ) -> None:
        """Note each name that is not declared; `offered` are those that would do here, if not all."""
        for index, name in enumerate(names):
            if name not in among and "://" in name:
                self.fault(f"this is a URL, and no {noun} of this file; declare it and write its name here", *inside, index)
            elif name not in among:
                self.fault(undeclared(tree.shown_key(name), noun, among if offered is None else offered), *inside, index)

    def reached(self, names: tuple[str, ...], *inside: str | int, speaks: bool) -> None:
        """Note each name in a `deliver` that leads to nobody; `speaks`: there is an agent that somebody may have spoken with."""
        offered = self.frame.targets if speaks and self.frame.open else self.frame.channels
        self.known(names, self.frame.targets, "channel", *inside, offered=offered)
        for index, name in enumerate(names):
            if name in self.frame.open:
                self.fault(
                    f"the URL of {name} holds {SLOT}, and names nobody; write last, or somebody into the URL", *inside, index
                )
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
        except ValueError as error:
            self.fault(str(error), *inside)
        return None

    def environment(self, pairs: tuple[tuple[str, str], ...], *inside: str | int, used: bool) -> Mapping[str, object]:
        if not pairs:
            return EMPTY
        filled = {name: self.secret(text, *inside, name, used=used) for name, text in pairs}
        return MappingProxyType({name: value for name, value in filled.items() if value is not None})
