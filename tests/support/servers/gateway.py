"""Answers of an agent's HTTP gateway."""

from __future__ import annotations

from servers.scripted import Act, reply


def text_answer(words: str, **more: object) -> Act:
    return reply({"text": words, **more})


def plain_text_answer(words: str) -> Act:
    return reply(words.encode(), kind="text/plain; charset=utf-8")


def async_answer() -> Act:
    return reply({"accepted": True}, 202)
