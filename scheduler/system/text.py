"""Makes untrusted texts safe to show: without control, ANSI and bidi characters."""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text as one line: each character that is not printable becomes a space."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def escape_control(text: str) -> str:
    """The text with its control characters escaped. Line breaks and tabs are kept."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else f"\\x{ord(sign):02x}" for sign in text)
