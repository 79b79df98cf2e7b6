"""Answers of an agent's HTTP gateway."""

from __future__ import annotations

from servers.scripted import Act, reply


def says(words: str, **more: object) -> Act:
    return reply({"text": words, **more})


def says_plainly(words: str) -> Act:
    return reply(words.encode(), kind="text/plain; charset=utf-8")


def later() -> Act:
    return reply({"accepted": True}, 202)
