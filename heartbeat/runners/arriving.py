"""An HTTP answer, taken in as its bytes arrive: status and headers, then the body bit by bit."""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_HEAD = 100 * 1024  # bytes in a row that are no body: a head, hints, trailers, what is said of a chunk
MOST_HINTS = 10  # answers that only inform of the one to come


class Malformed(Exception):
    """What came is no answer, could be understood in two ways, or broke off."""


class Arriving:
    """The one answer to a POST.

    `status` is None until its head is there; header names are in lower case. The parser (llhttp) calls the `on_` methods; which
    body ends with its connection is decided here, for of that it says nothing (RFC 9112, section 6.3). It is strict but for
    what servers do and nobody can misunderstand where a connection has one answer: bare line feeds, blanks behind the size of
    a chunk, and more to come after a hint that says `close`.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._is_whole = False
        self._is_wrong = False
        self._hints = 0
        self._bare = 0  # bytes since the last one of a body
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True, lenient_keep_alive=True
        )

    def feed(self, data: bytes) -> None:
        """Take in what was read next; nothing says that the connection is closed. Raises Malformed, if the head is at fault.

        Not to be called any more once `take` has given None, or has raised.
        """
        self._bare += len(data)
        try:
            if data:
                self._parser.feed_data(data)
            else:
                self._close()
        except (HttpParserError, HttpParserUpgrade, Malformed):
            self._is_wrong = not self._is_whole  # what comes behind an answer is nothing to us
        if self._bare > MAX_HEAD and not self._is_whole:
            self._is_wrong = True
        if self._is_whole or self._is_wrong:
            del self._parser  # it holds us, and we it
        if self._is_wrong and self.status is None:
            raise Malformed

    def take(self) -> bytes | None:
        """What of the body has arrived since it was last asked for, or nothing; None when it is whole and taken.

        Raises Malformed once all has been taken that came before what is wrong: the status is worth something all the same.
        """
        if not self._parts and self._is_wrong:
            raise Malformed
        if not self._parts and self._is_whole:
            return None
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is not None:  # a trailer, or what comes behind
            return
        known = name.decode("latin-1").lower()
        if known == "transfer-encoding" and known in self.headers:
            raise Malformed
        self.headers[known] = value.decode("latin-1").strip(" \t")

    def on_headers_complete(self) -> None:
        if self.status is not None:
            return
        if self.headers.get("transfer-encoding", "chunked").lower() != "chunked":  # no other way says where a body ends
            raise Malformed
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            return
        self.headers.clear()
        self._hints += 1
        if self._hints > MOST_HINTS:
            raise Malformed

    def on_body(self, data: bytes) -> None:
        if self.status is None:
            raise Malformed  # a hint has none
        if not self._is_whole:
            self._parts.append(data)
            self._bare = 0

    def on_message_complete(self) -> None:
        self._is_whole = self._is_whole or self.status is not None

    def _close(self) -> None:
        is_told = "content-length" in self.headers or "transfer-encoding" in self.headers
        if self.status is None or is_told:
            raise Malformed
        self._is_whole = True
