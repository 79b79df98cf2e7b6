"""Texts from elsewhere that repeat our secrets: the secrets are redacted in every spelling, and nothing else is."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from html import escape
from urllib.parse import quote

import pytest
from loops import loop_over

from heartbeat.runners.redaction import Redactor, secret_parts

SECRET = "k>~ey?/+=&%:@'\"é-0123456789"


def encoded(before: str, secret: str, after: str = "", *, encode: Callable[[bytes], bytes] = b64encode) -> str:
    return encode(f"{before}{secret}{after}".encode()).decode()


@loop_over("spell", [
    str,
    str.upper,
    quote,
    lambda secret: quote(secret, safe=""),
    lambda secret: quote(secret, safe="").lower(),
    lambda secret: quote(quote(secret, safe=""), safe=""),
    escape,
    lambda secret: json.dumps(secret)[1:-1],
    lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
])  # fmt: skip
def test_a_secret_is_redacted_completely_however_it_is_escaped(spell: Callable[[str], str]) -> None:
    assert Redactor([SECRET]).redact(f"no: {spell(SECRET)}!") == "no: ***!"


@loop_over("before", ["", "u:", "me:", "Bearer "])
@loop_over("encode", [b64encode, urlsafe_b64encode])
def test_a_secret_in_base64_is_redacted_at_any_position(before: str, encode: Callable[[bytes], bytes]) -> None:
    shown = Redactor([SECRET]).redact(encoded(before, SECRET, " x", encode=encode))
    bare = encoded(before, "", encode=encode).rstrip("=")
    assert shown.startswith(bare[:-1] or "***")
    assert len(shown.replace("***", "")) <= len(bare) + 6


def test_a_secret_that_is_escaped_in_the_config_is_redacted_without_escapes_too() -> None:
    assert Redactor([quote(SECRET, safe="")]).redact(f"GET /{SECRET}") == "GET /***"


def test_the_longer_of_two_overlapping_secrets_is_redacted_completely() -> None:
    assert Redactor(["abcd", "abcd-efgh"]).redact("abcd-efgh abcd") == "*** ***"


def test_each_line_of_a_secret_of_several_lines_is_redacted_unless_it_is_short() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nMIIEvQIB\nprivate\n-----END KEY-----\n"
    assert Redactor([key]).redact("read MIIEvQIBADANBg, then MIIEvQIB is private") == "read ***, then *** is private"


def test_the_end_of_a_secret_at_the_beginning_of_a_tail_is_redacted() -> None:
    assert Redactor([SECRET]).redact_tail(f"{SECRET[4:]} and {SECRET}") == "*** and ***"
    assert Redactor([SECRET]).redact_tail("nothing here") == "nothing here"


@pytest.mark.parametrize("secret", [None, "", "abc"])
def test_very_short_secrets_are_not_redacted(secret: str | None) -> None:
    assert Redactor([secret]).redact("abcdef") == "abcdef"


def test_the_login_in_a_url_is_secret_and_with_whole_url_possible_tokens_too() -> None:
    url = "https://user:pass-word@host/v1/0123456789?key=abcdefgh"
    assert secret_parts(url, whole_url=False) == ["user:pass-word", "pass-word"]
    redactor = Redactor(secret_parts(url, whole_url=True))
    assert redactor.redact("POST /v1/0123456789?key=abcdefgh at host") == "POST /v1/***?key=*** at host"
