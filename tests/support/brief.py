"""Shortens messages about what agents report, so that a test says what is news and not when, to whom and under which number."""

from __future__ import annotations

import re

OBSERVED = "failed|stopped|precheck|truncated|no-answer"  # keys of problems that no agent reports
FIRST_LINE = re.compile(
    rf"(?P<word>CRITICAL|warning|info|over) +(?P<subject>\S+) (?P<key>(?!(?:{OBSERVED}):).*?): (?P<says>.*)   p\d+"
)
STATE = re.compile(r"(?P<text>.*) \((?P<state>(?:[^()]*, )?since [-0-9: ]+ [\w/]+)\)")


def brief(text: str) -> str:
    """`warning  ops disk: 92 % (since 2026-03-02 08:15 UTC)   p1` as `[disk] 92 %`, for each problem in a message.

    What is not new begins with `reminder`, `unstable` or the higher severity and the former one. An end has its time, and the last
    words of the agent, but not what it was.
    """
    lines: list[str] = []
    is_end = False
    for line in text.splitlines():
        found = FIRST_LINE.fullmatch(line)
        if found is None and is_end:
            lines[-1] += "" if line.startswith("It was: ") else f": {line}"
        if found is None and not is_end:
            lines.append(line)
        is_end = found is not None and found["word"] == "over"
        if found is not None:
            lines.append(f"[{found['key']}] {_says(found['word'], found['says'])}")
    return "\n".join(lines)


def _says(word: str, says: str) -> str:
    found = STATE.fullmatch(says)
    if word == "over" or found is None:
        return f"{word} {says}"
    state = found["state"]
    severity = "CRITICAL" if word == "CRITICAL" else ""
    if was := re.search(r"was (\w+)", state):
        return f"{word.upper()}, was {was[1]}: {found['text']}"
    what = "unstable" if "unstable" in state else "reminder" if "reminder" in state else ""
    before = ", ".join(filter(None, (severity, what)))
    return f"{before}: {found['text']}" if before else found["text"]
