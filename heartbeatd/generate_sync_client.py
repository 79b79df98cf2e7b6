"""Writes sync_client.py from async_client.py: the same methods without `await` (`make client`)."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent

# In this order: a later replacement may concern the result of an earlier one.
REPLACEMENTS = (
    (
        '"""The client for asyncio. The client for ordinary programs is made from this file by `make client`."""',
        '"""The client for ordinary programs. It is made from async_client.py by `make client`: edit that file."""',
    ),
    ("import asyncio\nimport os\n", "import os\nimport time\n"),
    ("asyncio.sleep", "time.sleep"),
    ("AsyncClient", "Client"),
    ("AsyncIterator", "Iterator"),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("aclose()", "close()"),
    ("aiter_bytes()", "iter_bytes()"),
    ("async def ", "def "),
    ("async with ", "with "),
    ("async for ", "for "),
    ("await ", ""),
)


def generate(source: str) -> str:
    """The text of sync_client.py, before ruff formats it."""
    for old, new in REPLACEMENTS:
        source = source.replace(old, new)
    return source


if __name__ == "__main__":
    (HERE / "sync_client.py").write_text(generate((HERE / "async_client.py").read_text("utf-8")), "utf-8")
