"""An HTTP answer, taken in as its bytes arrive: status and headers, then the body bit by bit."""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_HEAD = 100 * 1024  # bytes in a row that are no body: a head, hints, trailers, what is said of a chunk
MOST_HINTS = 10  # answers that only inform of the one to come


class Malformed(Exception):
    """What came is no answer, could be understood in two ways, or broke off."""


class Arriving:
    """The one answer to a POST.

    `status` is None until its head is there; header names are in lower case. The parser (llhttp, strict as it comes) calls the
    `on_` methods; which body ends with its connection is decided here, for of that it says nothing (RFC 9112, section 6.3).
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self._parser = HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._is_whole = False
        self._hints = 0
        self._bare = 0  # bytes since the last one of a body

    def feed(self, data: bytes) -> None:
        """Take in what was read next; nothing says that the connection is closed. Raises Malformed."""
        if not data:
            self._close()
            return
        self._bare += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self._is_whole:  # what comes behind an answer is nothing to us
                raise Malformed from None
        if self._hints > MOST_HINTS or (self._bare > MAX_HEAD and not self._is_whole) or not self._is_clear():
            raise Malformed

    def take(self) -> bytes | None:
        """What of the body has arrived since it was last asked for, or nothing; None when it is whole and taken."""
        if self._is_whole and not self._parts:
            return None
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is None:  # else it is a trailer
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip(" \t")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._hints += 1
            self.headers.clear()
        elif self.status is None:
            self.status = status

    def on_body(self, data: bytes) -> None:
        if not self._is_whole:
            self._parts.append(data)
            self._bare = 0

    def on_message_complete(self) -> None:
        self._is_whole = self._is_whole or self.status is not None

    def _close(self) -> None:
        is_told = "content-length" in self.headers or "transfer-encoding" in self.headers
        if self.status is None or (is_told and not self._is_whole):
            raise Malformed
        self._is_whole = True

    def _is_clear(self) -> bool:
        """Of the ways to send a body on, only chunks say themselves where it ends."""
        return self.headers.get("transfer-encoding", "chunked").lower() == "chunked"
