"""Reads which messages in a mailbox are new and unread, over IMAP. It changes nothing there."""

from __future__ import annotations

import imaplib
import re
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email import message_from_bytes, policy
from email.message import Message
from pathlib import Path
from typing import Any

from heartbeat.runners import Failure
from heartbeat.runners.call_errors import CallError
from heartbeat.runners.redaction import Redactor, reveal_secret
from heartbeat.spec import Source
from heartbeat.words import format_count, squeeze
from scheduler.net.http_client import untrusted_certificate

MAX_SHOWN = 60  # messages of one look; the next look shows the others
MAX_HEADER = 4096  # bytes of the two fields of a message
MAX_FIELD = 120  # characters
PORTS = {"tls": 993, "starttls": 143, "none": 143}
_UID = re.compile(rb"\bUID (\d+)")

State = Mapping[str, Any]
Unread = tuple[Sequence[str], State, str, Sequence[str]]


def read_unread(source: Source, state: State | None, ca_file: Path | None, seconds: float) -> Unread:
    """A line for each unread message that has come since the state, the state for the next look, what counts as seen after the
    first one, and a name for each message.

    `seconds` limits each wait for the server. Raises CallError, in words without the password, and OSError.
    """
    trust = ssl.create_default_context()
    if ca_file is not None:
        trust.load_verify_locations(ca_file)
    redactor = Redactor([reveal_secret(source.password), reveal_secret(source.user)])
    try:
        with _connect(source, trust, seconds) as box:
            _log_in(box, reveal_secret(source.user), reveal_secret(source.password))
            return _read_folder(box, source.folder, state)
    except ssl.SSLCertVerificationError as error:
        raise CallError(Failure.TLS, untrusted_certificate(error)) from None
    except imaplib.IMAP4.error as error:
        said = error.args[0] if error.args else ""
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise CallError(Failure.BAD_ANSWER, squeeze(redactor.redact(text), 300) or "it closed the connection") from None


def _connect(source: Source, trust: ssl.SSLContext, seconds: float) -> imaplib.IMAP4:
    host, _, port = str(source.place).rpartition(":") if re.search(r":\d+$", str(source.place)) else (str(source.place), "", "")
    place = host.strip("[]"), int(port or PORTS[source.encryption])
    if source.encryption == "tls":
        return imaplib.IMAP4_SSL(*place, ssl_context=trust, timeout=seconds)
    box = imaplib.IMAP4(*place, timeout=seconds)
    if source.encryption == "starttls":
        try:
            box.starttls(trust)
        except BaseException:
            box.shutdown()
            raise
    return box


def _log_in(box: imaplib.IMAP4, user: str, password: str) -> None:
    if "AUTH=PLAIN" in box.capabilities:  # takes any character, unlike LOGIN
        box.authenticate("PLAIN", lambda _: f"\0{user}\0{password}".encode())
    else:
        box.login(user, password)


def _read_folder(box: imaplib.IMAP4, folder: str, state: State | None) -> Unread:
    """Messages are known by their UIDs, which grow. With another UIDVALIDITY, the server has numbered them anew."""
    quoted = _folder_name(folder).replace("\\", "\\\\").replace('"', '\\"')
    status, said = box.select(f'"{quoted}"', readonly=True)
    if status != "OK":
        raise CallError(Failure.NOT_FOUND, f"it has no folder {folder}: {_text(said)}")
    total = int(_text(said) or 0)
    validity, next_uid = _number(box, "UIDVALIDITY"), _number(box, "UIDNEXT")
    last_uid = next_uid - 1 if next_uid else max(_search(box, "ALL"), default=0)
    after = {"validity": validity, "uid": last_uid}
    if state is None:
        return ((), after, f"{format_count(total, 'message')} in {folder}, none new", ())
    if state["validity"] != validity:
        note = f"(the server has numbered the messages in {folder} anew: those that came since the last look are not listed)"
        return ((note,), after, "", (f"{quoted} {validity}",))
    unread = [uid for uid in _search(box, f"UID {state['uid'] + 1}:*", "UNSEEN") if uid > state["uid"]]
    if not unread:
        return ((), after, "", ())
    shown = unread[:MAX_SHOWN]
    found = _fetch_lines(box, shown)
    lines, names = [line for _, line in found], [f"{quoted} {validity} {uid}" for uid, _ in found]
    if len(unread) > len(shown):
        note = f"({format_count(len(unread) - len(shown), 'more message')}: the next run gets them)"
        return ([*lines, note], {**after, "uid": shown[-1]}, "", [*names, f"{quoted} {validity} {shown[-1]} and more"])
    return (lines, {**after, "uid": max(last_uid, shown[-1])}, "", names)


def _folder_name(folder: str) -> str:
    """The name as IMAP writes it (RFC 3501, 5.1.3): other characters than ASCII in a base64 of their UTF-16."""

    def encode(found: re.Match[str]) -> str:
        return f"&{b64encode(found[0].encode('utf-16-be')).decode().rstrip('=').replace('/', ',')}-"

    return re.sub(r"[^\x20-\x7e]+", encode, folder.replace("&", "&-"))


def _search(box: imaplib.IMAP4, *criteria: str) -> list[int]:
    status, said = box.uid("SEARCH", *criteria)
    if status != "OK":
        raise CallError(Failure.BAD_ANSWER, f"it cannot search: {_text(said)}")
    return sorted({int(number) for part in said if part for number in part.split()})


def _fetch_lines(box: imaplib.IMAP4, uids: Sequence[int]) -> list[tuple[int, str]]:
    """The UID of each message, with its sender and subject. PEEK leaves it unread."""
    fields = f"(BODY.PEEK[HEADER.FIELDS (FROM SUBJECT)]<0.{MAX_HEADER}>)"
    status, said = box.uid("FETCH", ",".join(map(str, uids)), fields)
    if status != "OK":
        raise CallError(Failure.BAD_ANSWER, f"it cannot show messages: {_text(said)}")
    found, asked = [], iter(uids)
    for part, rest in zip(said, [*said[1:], b""], strict=True):
        if isinstance(part, tuple):  # the UID is before the header, or after it
            uid, usual = _UID.search(part[0]) or _UID.search(rest if isinstance(rest, bytes) else b""), next(asked, 0)
            line = _header_line(message_from_bytes(part[1], policy=policy.default))
            found.append((int(uid[1]) if uid else usual, line))
    return found


def _header_line(message: Message) -> str:
    return f"{_field(message, 'from') or '(no sender)'}: {_field(message, 'subject') or '(no subject)'}"


def _field(message: Message, name: str) -> str:
    with suppress(Exception):  # the parser of the standard library fails in many ways with what strangers write
        return squeeze(str(message[name] or ""), MAX_FIELD)
    return f"(unreadable {name})"


def _number(box: imaplib.IMAP4, name: str) -> int:
    """A number that the server has sent with the folder; 0 if it has not."""
    said = box.response(name)[1]
    return int(said[-1]) if said and said[-1] else 0


def _text(said: Sequence[object]) -> str:
    last = said[-1] if said else b""
    return last.decode(errors="replace") if isinstance(last, bytes) else str(last or "")
