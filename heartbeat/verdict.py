"""Classifies an agent's answer: nothing to report, or an alert, and which text of it to deliver."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import sha256
from itertools import takewhile
from typing import Literal

from heartbeat.spec import Agent, DedupNormalize, OkMatch
from heartbeat.words import Word

OK_TOKEN = "HEARTBEAT_OK"  # noqa: S105 - what an agent answers if it has nothing to report, not a secret

CUT_NOTE = "(This answer was cut short: it had reached its token limit.)"

_ALARM_WORDS = frozenset({"ALERT", "ERROR", "FAIL", "FAILED", "FAILURE"})


class Suppression(Word):
    """Why nothing was delivered although the agent was called."""

    HEARTBEAT_OK = "heartbeat_ok", "nothing needs attention"
    SHORT_REMAINDER = "short_remainder", "nothing needs attention, except for a few characters"
    EMPTY = "empty", "the answer is empty"
    DUPLICATE = "duplicate", "its recipients have already got its content"
    NOT_SHOWN = "not_shown", "alerts are not delivered (show_alerts: false)"
    DECIDED_SKIP = "decided_skip", "the agent decided not to run"
    MUTED = "muted", "its messages are suppressed (mute)"
    NO_FINDINGS = "no_findings", "the answer is prose, without findings"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`ok` has a suppression and nothing to deliver. `alert` has no suppression, and its `text`, without the quiet token, is
    delivered.
    """

    outcome: Literal["ok", "alert"]
    suppression: Suppression | None
    text: str


class _PieceKind(Enum):
    TOKEN = auto()
    BLANK = auto()  # and everything invisible: control characters, terminal escapes, zero-width and direction marks
    BREAK = auto()  # blanks that include a line break
    WRAP = auto()  # Markdown and HTML around a word, except quotes and code
    MARK = auto()  # the beginning of a list item or heading
    STOP = auto()  # punctuation that ends the text before it
    LINK = auto()  # punctuation that leads to the text after it
    OPEN = auto()
    QUOTED = auto()  # a quoted line, or a block of code up to its end
    WORD = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class _Piece:
    kind: _PieceKind
    text: str


_UNSEEN = r"[^\S\n]|[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
_ESCAPE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][AB012]|[78=>]|)"
_BLANKS = rf"(?:{_UNSEEN}|{_ESCAPE}|&nbsp;)"
# Only known markup: `<disk full>` is text.
_TAG = (
    r"</?(?:a|article|b|big|body|br|center|del|div|em|font|h[1-6]|hr|html|i|ins|li|main|mark|ol|p|s|section|small|span|strike"
    r"|strong|sub|sup|u|ul|answer|final|message|output|reply|response)\b[^<>]*>|<!--[^<>]*-->"
)
# The token does not count inside a longer word, a path or a file name.
# Agents of Hermes Agent answer [SILENT] instead, and agents of OpenClaw answer NO_REPLY.
_TOKEN = (
    r"(?:(?<![A-Za-z0-9][-/@])(?:(?:HEARTBEAT\\?_OK)+|NO\\?_REPLY)(?!_*[A-Za-z0-9]|[-./@'’][A-Za-z0-9])"  # noqa: S105 - no secret either
    r"|(?i:\[SILENT\]))"
)
# No possessive quantifiers and no atomic groups: before 3.11.5 Python matches too much with them (python/cpython#106052). The
# pattern is linear without them, because each repeated group can match in only one way.
_PIECES = re.compile(
    r"(?P<QUOTED>^[ \t]*(?:>[^\n]*|(?:```.*?(?:^[ \t]*```|\Z))))"
    r"|(?P<MARK>^[ \t]*(?:[-*+]|\#{1,6}|\d{1,9}[.)])[ \t]+)"
    rf"|(?P<BREAK>{_BLANKS}*\n(?:{_BLANKS}*\n)*)"
    rf"|(?P<BLANK>{_BLANKS}+)"
    rf"|(?P<TOKEN>{_TOKEN})"
    r"|(?P<WORD>[A-Za-z0-9][A-Za-z0-9_]*)"
    rf"|(?P<WRAP>[*_~|\\#]+|(?i:{_TAG}))"
    r"|(?P<STOP>[.!?…)\]}。！？）]+)"
    r"|(?P<LINK>[-–—,;:、，：；/=+]+)"
    r"|(?P<OPEN>[(\[{（]+)"
    r"|(?P<OTHER>.)",
    re.MULTILINE | re.DOTALL,
)

# What may surround the token if the answer is nothing else: fences, marks of quoted lines, code marks, quotes.
_FENCE = rf"^[ \t]*(?:`{{3,}}|~{{3,}})[ \t]*(?!{OK_TOKEN})[a-z]*[ \t]*$"
_QUOTES = re.compile(
    rf"{_FENCE}|^[ \t]*>+|[`\"'´“”„‟‘’‚«»‹›「」『』]|&(?:quot|apos|\#39);|</?(?:code|pre|kbd|samp|tt|q|blockquote)\b[^<>]*>",
    re.MULTILINE,
)

# Other spellings of the token, as models write them: `heartbeat ok`, `Heartbeat-OK`, `HeartbeatOK`. They count only if the answer
# is nothing else, because in a text they are ordinary words.
_SPELLING = re.compile(r"(?<![^\W_])heartbeat(?:[ \t\xa0]{0,2}\\?[_:\-‐‑–—]?[ \t\xa0]{0,2})ok(?![^\W_])", re.IGNORECASE)
# Characters without a width and terminal escapes, which may also be inside the token.
_INVISIBLE = re.compile(rf"[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]|{_ESCAPE}")

_TOKEN_PART = re.compile(r"_OK|NO_REPLY|\[SILENT\]", re.IGNORECASE)  # each token contains one of them

_BLANK = frozenset({_PieceKind.BLANK, _PieceKind.BREAK})
_EDGE = _BLANK | {_PieceKind.TOKEN, _PieceKind.WRAP, _PieceKind.MARK, _PieceKind.STOP, _PieceKind.LINK, _PieceKind.OPEN}


_REASONING = re.compile(r"[\s\ufeff]*<(think|thinking)>", re.IGNORECASE)


def without_reasoning(answer: str, *, strip_reasoning: bool, truncated: bool) -> str:
    """The answer without the `<think>...</think>` (or `<thinking>`) blocks at its beginning, if `strip_reasoning` is set.

    A block that is never closed is part of the answer, because its end is unknown. But if the answer was cut (`truncated`), it
    was cut inside the block, and there is no answer.
    """
    if not strip_reasoning:
        return answer
    rest = answer
    while opened := _REASONING.match(rest):
        closed = re.compile(f"</{opened[1]}>", re.IGNORECASE).search(rest, opened.end())
        if closed is None:
            return "" if truncated else rest
        rest = rest[closed.end() :].lstrip()
    return rest


def without_cut_end(text: str) -> str:
    """The text of a cut answer without an end that says nothing: the beginning of a key in brackets, or of the quiet token."""
    head, _, last = text.rstrip().rpartition("\n")
    if re.fullmatch(r"[\s*_`>-]*\[[^\]]*", last):
        text = head
    token, letters = OK_TOKEN.replace("_", ""), re.sub(r"[\W_]", "", text).upper()
    return "" if token.startswith(letters) and letters != token else text


def with_cut_note(text: str, *, truncated: bool) -> str:
    """The text to deliver. If the answer was cut, its last line says so."""
    return f"{text.rstrip()}\n\n{CUT_NOTE}" if truncated else text


def judge_answer(answer: str, ok_match: OkMatch, ack_max_chars: int) -> Verdict:
    """Whether an answer is quiet (`ok`) or reports something (`alert`).

    `edges`: the quiet token is removed at both ends, and what is left is quiet if it has at most `ack_max_chars` code points. A
    token in quotes, in code or in the middle is ordinary text, unless the answer is only the quoted token (`is_ok_token`).
    `anywhere`: a token at any position makes the answer quiet. `exact`: only the token alone is quiet. An answer whose first
    word is ALERT, ERROR, FAIL, FAILED or FAILURE in capitals is always an alert.
    """
    if answer.strip() == OK_TOKEN:
        return Verdict("ok", Suppression.HEARTBEAT_OK, "")
    pieces = list(_split_pieces(answer))
    if all(piece.kind in _BLANK for piece in pieces):
        return Verdict("ok", Suppression.EMPTY, "")
    if ok_match == "exact":
        return _alert_verdict(pieces)
    if _is_token_alone(pieces) or is_ok_token(answer):
        return Verdict("ok", Suppression.HEARTBEAT_OK, "")
    head, tail = _token_edge_length(pieces), _token_edge_length(pieces[::-1])
    rest = _pieces_between_edges(pieces, head, tail)
    if _raises_alarm(pieces):
        return _alert_verdict(rest)
    if ok_match == "anywhere" and _has_token(pieces):
        return Verdict("ok", Suppression.HEARTBEAT_OK, "")
    inner = _strip_pieces(rest, _BLANK | {_PieceKind.WRAP, _PieceKind.MARK})
    if (head or tail) and len(_join_text(inner)) <= ack_max_chars:
        return Verdict("ok", Suppression.SHORT_REMAINDER, _join_text(rest))
    return _alert_verdict(rest)


def judge_for(rules: Agent, answer: str, *, truncated: bool) -> Verdict:
    """Whether an answer is quiet by the rules of a heartbeat or of a job's prompt.

    If the answer was cut, the missing part may be long, so a short text next to the quiet token is not taken as "all is well".
    """
    assert rules.ok_match is not None
    return judge_answer(answer, rules.ok_match, 0 if truncated else rules.ack_max_chars)


def is_ok_token(answer: str) -> bool:
    """Whether an answer is only the quiet token: in any spelling, in quotes, code or markup, but without any other word."""
    plain = _SPELLING.sub(OK_TOKEN, _INVISIBLE.sub("", answer))
    if _TOKEN_PART.search(plain) is None:
        return False
    # Each quotation mark becomes a blank, so that no words are joined.
    return _is_token_alone(list(_split_pieces(_QUOTES.sub(" ", plain))))


def is_token_name(label: str) -> bool:
    """Whether a word in brackets at the beginning of a line is a quiet token, and not the key of a finding."""
    return label.upper() in ("SILENT", "NO_REPLY") or is_ok_token(label)


def begins_with_alarm(text: str) -> bool:
    """Whether the first word of the text is ALERT, ERROR, FAIL, FAILED or FAILURE in capitals."""
    return _raises_alarm(list(_split_pieces(text)))


def normalise_text(text: str, how: DedupNormalize) -> str:
    """The text for comparisons: stripped, case-folded, with single spaces. `numbers` also replaces each number by 0."""
    plain = " ".join(text.split()).casefold()
    return re.sub(r"\d+", "0", plain) if how == "numbers" else plain


def message_digest(text: str, how: DedupNormalize) -> str:
    """SHA-256 over the normalised text, in hex: equal for texts that count as the same message."""
    return sha256(normalise_text(text, how).encode(errors="surrogatepass")).hexdigest()


def _split_pieces(text: str) -> Iterator[_Piece]:
    for match in _PIECES.finditer(text):
        assert match.lastgroup is not None
        yield _Piece(_PieceKind[match.lastgroup], match[0])


def _is_token_alone(pieces: Sequence[_Piece]) -> bool:
    return all(piece.kind in _EDGE for piece in pieces) and _has_token(pieces)


def _has_token(pieces: Sequence[_Piece]) -> bool:
    return any(
        piece.kind is _PieceKind.TOKEN or (piece.kind is _PieceKind.QUOTED and re.search(_TOKEN, piece.text)) for piece in pieces
    )


def _token_edge_length(pieces: Sequence[_Piece]) -> int:
    """The number of pieces at the front that belong to the tokens at this end, up to the last of these tokens."""
    edge = list(takewhile(lambda piece: piece.kind in _EDGE, pieces))
    return max((place for place, piece in enumerate(edge, 1) if piece.kind is _PieceKind.TOKEN), default=0)


def _pieces_between_edges(pieces: Sequence[_Piece], head: int, tail: int) -> Sequence[_Piece]:
    """The pieces without the tokens at both ends and what belongs to them."""
    front = len(pieces) - len(_drop_after_token(pieces[head:])) if head else 0
    back = len(_drop_before_token(pieces[front : len(pieces) - tail])) + front if tail else len(pieces)
    rest = _strip_pieces(pieces[front:back], _BLANK)
    if not tail and _opens_wrapping(pieces[:front]):
        rest = _drop_leading(rest[::-1], {_PieceKind.WRAP})[::-1]
    if not head and _opens_wrapping(pieces[back:]):
        rest = _drop_leading(rest, {_PieceKind.WRAP})
    return rest


def _opens_wrapping(taken: Sequence[_Piece]) -> bool:
    """Whether only one half of a wrapping around the whole answer was removed, so that its other half must be removed too."""
    return sum(piece.kind is _PieceKind.WRAP for piece in taken) % 2 == 1


def _drop_after_token(pieces: Sequence[_Piece]) -> Sequence[_Piece]:
    """The pieces without the wrapping and the punctuation that close the token in front."""
    pieces = _drop_leading(pieces, {_PieceKind.WRAP})
    return _drop_leading(pieces, {_PieceKind.BLANK, _PieceKind.STOP, _PieceKind.LINK})


def _drop_before_token(pieces: Sequence[_Piece]) -> Sequence[_Piece]:
    """The pieces without the wrapping and the punctuation that lead to the token at the end. A full stop belongs to the text
    before it.
    """
    pieces = _drop_leading(pieces[::-1], {_PieceKind.WRAP, _PieceKind.MARK})
    return _drop_leading(pieces, {_PieceKind.BLANK, _PieceKind.LINK, _PieceKind.OPEN})[::-1]


def _drop_leading(pieces: Sequence[_Piece], kinds: set[_PieceKind] | frozenset[_PieceKind]) -> Sequence[_Piece]:
    start = next((place for place, piece in enumerate(pieces) if piece.kind not in kinds), len(pieces))
    return pieces[start:]


def _strip_pieces(pieces: Sequence[_Piece], kinds: frozenset[_PieceKind]) -> Sequence[_Piece]:
    """The pieces without those of these kinds at both ends."""
    return _drop_leading(_drop_leading(pieces, kinds)[::-1], kinds)[::-1]


def _raises_alarm(pieces: Sequence[_Piece]) -> bool:
    """Whether the first word, apart from the token, is an alarm."""
    words = (piece.text for piece in pieces if piece.kind is _PieceKind.WORD or piece.text.isalnum())
    return next(words, "") in _ALARM_WORDS


def _join_text(pieces: Sequence[_Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _alert_verdict(pieces: Sequence[_Piece]) -> Verdict:
    return Verdict("alert", None, _join_text(_strip_pieces(pieces, _BLANK)))
