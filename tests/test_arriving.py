"""An answer over HTTP as it arrives, beside what another parser reads in it."""

from __future__ import annotations

from collections.abc import Iterable

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heartbeat.runners.arriving import MAX_HEAD, MOST_HINTS, Arriving, Malformed

OK = b"HTTP/1.1 200 OK\r\n"
HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"

Read = tuple[int | None, dict[str, str], bytes]


def by_us(pieces: Iterable[bytes]) -> Read:
    arriving, body = Arriving(), b""
    for piece in (*pieces, b""):
        while (part := arriving.take()) and part is not None:
            body += part
        if part is None:
            break
        arriving.feed(piece)
    body += arriving.take() or b""
    return arriving.status, arriving.headers, body


def by_another(pieces: Iterable[bytes]) -> Read:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    rest, status, headers, body = iter((*pieces, b"")), None, {}, b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            connection.receive_data(next(rest))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    return status, headers, body


def chunked(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%x;why=not\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\nTrailer: x\r\n\r\n"


def cut(whole: bytes, size: int) -> list[bytes]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


@given(
    parts=st.lists(st.binary(max_size=300), max_size=5),
    framing=st.sampled_from(["length", "chunks", "close"]),
    status=st.sampled_from([200, 201, 202, 400, 401, 404, 429, 500, 529]),
    hints=st.integers(0, 3),
    size=st.integers(1, 700),
)
def test_it_reads_what_another_parser_reads_however_it_is_cut(
    parts: list[bytes], framing: str, status: int, hints: int, size: int
) -> None:
    body = b"".join(parts)
    told, sent = {
        "length": (b"Content-Length: %d\r\n" % len(body), body),
        "chunks": (b"Transfer-Encoding: chunked\r\n", chunked(parts)),
        "close": (b"", body),
    }[framing]
    head = b"HTTP/1.1 %d What\r\nX-Name: caf\xe9 \r\nRetry-After:7\r\n" % status
    pieces = cut(HINT * hints + head + told + b"\r\n" + sent, size)
    assert by_us(pieces) == by_another(pieces)
    assert by_us(pieces)[::2] == (status, body)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\r\n",
        b"220 mail.example ESMTP\r\n",
        b"HTTP/1.1 200 OK",
        OK + b"Content-Length: 9\r\n\r\nhalf",
        OK + b"Content-Length: 9\r\nContent-Length: 8\r\n\r\n123456789",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 4, 4\r\n\r\nhalf",
        OK + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\nhalf",
        OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalfbad\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nfour\r\nhalf\r\n0\r\n\r\n",
        OK + b"A header\r\n\r\n",
        OK + b"A : b\r\n\r\n",
        OK + b"A\0: b\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhalf",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
        HINT,
        HINT * (MOST_HINTS + 1) + OK + b"\r\n",
        b"HTTP/1.1 150 Hm\r\nContent-Length: 5\r\n\r\nhello" + OK + b"Content-Length: 2\r\n\r\nok",
        b"HTTP/1.1 150 Hm\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" + OK + b"\r\nok",
        OK + b"A: " + b"a" * (MAX_HEAD + 5000) + b"\r\n\r\n",
        OK + b"A: a\r\n" * (MAX_HEAD // 6 + 1000) + b"\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: a\r\n" * (MAX_HEAD // 6 + 1000) + b"\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n4;" + b"a" * (MAX_HEAD + 5000) + b"\r\nhalf\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("size", [1000, 7])
def test_what_is_no_clear_and_whole_answer_is_malformed(said: bytes, size: int) -> None:
    with pytest.raises(Malformed):
        by_us(cut(said, size))


@pytest.mark.parametrize("size", [1000, 7, 1])
@pytest.mark.parametrize(
    ("said", "body"),
    [
        (OK + b"Content-Length: 2\r\n\r\nokHTTP/1.1 500 No\r\nX: y\r\n\r\nno", b"ok"),
        (OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nok and more", b"ok"),
        (OK + b"Content-Length: 0\r\n\r\nmore", b""),
        (OK + b"Content-Length: 2\r\nX-Kept: yes\r\n\r\nok" + HINT * (MOST_HINTS + 1), b"ok"),
        (OK + b"Transfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\nmore", b"ok"),
    ],
)
def test_what_comes_behind_an_answer_is_nothing_to_us(said: bytes, body: bytes, size: int) -> None:
    status, headers, read = by_us(cut(said, size))
    assert (status, read, "x" in headers) == (200, body, False)


def test_a_long_body_in_small_chunks_is_no_long_head() -> None:
    sent = b"1;why=not\r\nx\r\n" * MAX_HEAD
    status, _, body = by_us(cut(OK + b"Transfer-Encoding: chunked\r\n\r\n" + sent + b"0\r\n\r\n", 60_000))
    assert (status, len(body)) == (200, MAX_HEAD)


@pytest.mark.parametrize("size", [1000, 7])
@pytest.mark.parametrize(
    ("said", "body"),
    [
        (OK.replace(b"\r", b"") + b"Content-Length: 2\n\nok", b"ok"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2  \r\nok\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 103 Hints\r\nConnection: close\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.0 100 Continue\r\n\r\n" + b"HTTP/1.0 200 OK\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 204 None\r\nContent-Length: 2\r\n\r\n", b""),
    ],
)
def test_what_servers_do_and_nobody_can_misunderstand_is_read(said: bytes, body: bytes, size: int) -> None:
    status, _, read = by_us(cut(said, size))
    assert (status, read) == (204 if b"204" in said else 200, body)


@pytest.mark.parametrize("size", [1000, 7, 1])
def test_the_head_and_what_came_before_what_is_wrong_are_worth_something_however_it_is_cut(size: int) -> None:
    said = b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwait\r\nrubbish\r\n"
    arriving, read = Arriving(), b""
    with pytest.raises(Malformed):
        for piece in cut(said, size):
            while part := arriving.take():
                read += part
            arriving.feed(piece)
        while (part := arriving.take()) is not None:
            read += part
    assert (arriving.status, arriving.headers["retry-after"], read) == (429, "7", b"wait")
