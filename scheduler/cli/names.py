"""Names of entries as people write them: NAME, or agent/NAME and cron/NAME where both exist."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from scheduler.cli.mistake import Mistake
from scheduler.config.file.message_parts import suggest
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind

KINDS = {"agent": Kind.HEARTBEAT, "cron": Kind.CRON}
WORDS = {kind: word for word, kind in KINDS.items()}


def called(kind: str, name: str) -> str:
    """An entry as people name it where its kind matters."""
    return f"{WORDS[Kind(kind)]}/{name}"


def choose(text: str, known: Callable[[Key], bool], every: Callable[[], Iterable[Key]]) -> Key:
    """The entry that `text` means among those known. Raises Mistake for two, and for none, with a close one of `every`."""
    word, slash, name = text.partition("/")
    kinds = list(KINDS.values())
    if slash:
        if word not in KINDS:
            raise Mistake(f"{text!r} is neither agent/NAME nor cron/NAME")
        kinds, text = [KINDS[word]], name
    found = [(kind, text) for kind in kinds if known((kind, text))]
    if len(found) > 1:
        raise Mistake(f"there are an agent and a cron job {text!r}; write agent/{text} or cron/{text}")
    if not found:
        what = "agent or cron job" if len(kinds) > 1 else ("agent" if kinds[0] is Kind.HEARTBEAT else "cron job")
        raise Mistake(f"no {what} {text!r}{instead(text, [name for kind, name in every() if kind in kinds])}")
    return found[0]


def instead(name: str, known: Collection[str]) -> str:
    """What to write in place of a name that nothing bears."""
    return suggest(name, known) or "; `heartbeatd status` lists them"


def only(kind: Kind, text: str, instead: str) -> str:
    """The name of an agent, or of a job, where nothing else will do; `instead` says what does the same for the other kind."""
    word, slash, name = text.partition("/")
    if not slash:
        return text
    if KINDS.get(word) is not kind:
        raise Mistake(f"{text!r} is not {WORDS[kind]}/NAME; {instead}")
    return name
