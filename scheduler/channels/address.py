"""What a channel's URL says of whom to tell, and with which token."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

SLOT = "{target}"  # in a URL, the place for whom to tell
NO_TARGET = "target: write 1 to 128 of A-Z a-z 0-9 _ . : @ + = # ! ~ -, as the id of a chat has them"
NO_BOT = "this is not the URL of a Telegram chat; write tgram://TOKEN/CHAT, or tgram://TOKEN/CHAT:TOPIC"
NO_HOOK = "this is not the URL of a Discord webhook; write discord://ID/TOKEN, or the https:// one that Discord shows"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,19})://")
_BOT = re.compile(r"tgram://(?:bot)?([0-9A-Za-z:_-]+)/(-?\d{1,20}|@?[A-Za-z]\w{2,63})(?::(\d{1,18}))?/?", re.ASCII)
_WHOM = re.compile(r"(?!\.+\Z)[A-Za-z0-9_.:@+=#!~-]{1,128}", re.ASCII)
_BEFORE_SLOT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}://[^/?#]+[/?]")
_HOOK = re.compile(
    r"(?:discord:/|(https?://[^/?#\s]+)/api(?:/v\d+)?/webhooks)/(\d{1,20})/([\w-]{1,200})/?(?:\?thread(?:_id)?=(\d{1,20}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Bot:
    """A Telegram bot, and the chat (an id, or a channel's @name) and topic that it writes to."""

    token: str = field(repr=False)
    chat: str
    topic: int | None


@dataclass(frozen=True, slots=True)
class Hook:
    """A Discord webhook and the thread that it writes to. `base` is where it is, None for Discord itself."""

    base: str | None
    id: str
    token: str = field(repr=False)
    thread: str | None


def scheme(url: str) -> str:
    """What stands before the ://, in lower case; empty if nothing there could be a scheme."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def fill(url: str, whom: str) -> str:
    """The URL with somebody in its slot, encoded so that nothing else of it changes."""
    return url.replace(SLOT, quote(whom, safe=""))


def check_slot(url: str) -> None:
    """ValueError, which shows nothing of it, unless a URL has one slot, behind its host and logins."""
    if url.count(SLOT) != 1:
        raise ValueError(f"{SLOT} stands in a URL once, and no more")
    if not _BEFORE_SLOT.match(url.partition(SLOT)[0]):
        raise ValueError(f"{SLOT} cannot be the host or a login; write it behind them, as in tgram://TOKEN/{SLOT}")


def check_whom(whom: str) -> None:
    """ValueError unless this can name somebody in a URL and do nothing else there: no separator, no step to another folder."""
    if not _WHOM.fullmatch(whom):
        raise ValueError(NO_TARGET)


def bot(url: str) -> Bot:
    """The bot and chat of a tgram:// URL. ValueError, which shows nothing of it, if it is none."""
    found = _BOT.fullmatch(unquote(url))
    if not found:
        raise ValueError(NO_BOT)
    token, chat, topic = found.groups()
    return Bot(token, f"@{chat}" if chat[0].isalpha() else chat, int(topic) if topic else None)


def hook(url: str) -> Hook:
    """The webhook of a discord:// URL, or of the https:// one that Discord shows.

    ValueError, which shows nothing of it, if it is none.
    """
    found = _HOOK.fullmatch(url)
    if not found:
        raise ValueError(NO_HOOK)
    return Hook(*found.groups())
