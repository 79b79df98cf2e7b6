"""Pings a dead man's switch, at the paths that healthchecks.io uses."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from scheduler.channels.http_post import HttpOptions, post_json, result_of_status
from scheduler.channels.message import DeliveryResult

Beat = Literal["start", "success", "fail"]

PATHS: dict[Beat, str] = {"start": "/start", "success": "", "fail": "/fail"}


async def send(url: str, beat: Beat, problem: str | None, options: HttpOptions) -> DeliveryResult:
    """Ping once: `url` itself for a success, with /start or /fail at the end of its path otherwise.

    The body is JSON: the kind of ping, and the problem if there is one. https://healthchecks.io/docs/http_api/
    """
    content = {"beat": beat} | ({"problem": problem} if problem else {})
    answer = await post_json(_address(url, PATHS[beat]), content, options)
    return answer if isinstance(answer, DeliveryResult) else result_of_status(answer)


def _address(url: str, path: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path)) if path else url
