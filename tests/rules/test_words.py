"""The words that messages, prompts and commands share: each has one function."""

from __future__ import annotations

from datetime import timedelta

from loops import loop_over

from heartbeat.words import (
    abbreviate_duration,
    escape_control,
    format_count,
    format_duration,
    format_usd,
    list_names,
    one_line,
    shorten,
    squeeze,
)


@loop_over(
    ("seconds", "exact", "short"),
    [
        (0, "0s", "0s"),
        (59.4, "59s", "59s"),
        (90, "1m30s", "1m30s"),
        (3600, "1h", "1h"),
        (3605, "1h5s", "1h"),
        (93_900, "1d2h5m", "1d2h"),
        (86_400 * 12, "12d", "12d"),
        (17_999, "4h59m59s", "5h"),
        (3599.6, "1h", "1h"),
        (86_399, "23h59m59s", "1d"),
        (95_400, "1d2h30m", "1d2h"),
        (95_401, "1d2h30m1s", "1d3h"),
    ],
)
def test_a_duration_is_written_as_in_the_config_or_in_its_two_largest_units(seconds: float, exact: str, short: str) -> None:
    span = timedelta(seconds=seconds)
    assert (format_duration(span), abbreviate_duration(span)) == (exact, short)
    assert abbreviate_duration(-span) == "0s"


@loop_over(
    ("text", "line", "squeezed", "escaped"),
    [
        ("plain", "plain", "plain", "plain"),
        ("a\n\tb\x1b[2J\u202e", "a  b [2J ", "a b [2J", "a\n\tb\\x1b[2J\\x202e"),
        ("  two  blanks ", "  two  blanks ", "two blanks", "  two  blanks "),
        ("", "", "", ""),
    ],
)
def test_a_text_from_elsewhere_becomes_printable(text: str, line: str, squeezed: str, escaped: str) -> None:
    assert (one_line(text), squeeze(text), escape_control(text)) == (line, squeezed, escaped)


@loop_over(
    ("text", "most", "shown"),
    [("12345", 5, "12345"), ("123456", 5, "1234…"), ("12\n\n34", 5, "12 34"), ("", 5, ""), ("12", 1, "…"), ("12", 0, "")],
)
def test_a_long_text_ends_with_an_ellipsis(text: str, most: int, shown: str) -> None:
    assert squeeze(text, most) == shorten(squeeze(text), most) == shown


@loop_over(
    ("number", "counted", "cost"),
    [
        (0, "0 runs", "$0.00"),
        (1, "1 run", "$1.00"),
        (1234, "1,234 runs", "$1,234.00"),
        (0.05, None, "$0.0500"),
        (1e-5, None, "<$0.0001"),
    ],
)
def test_a_count_has_its_noun_and_an_amount_its_sign(number: float, counted: str | None, cost: str) -> None:
    assert format_usd(number) == cost
    assert counted is None or format_count(int(number), "run") == counted
    assert format_usd(None) == "-"


@loop_over(
    ("names", "most", "width", "listed"),
    [
        ([], 2, None, ""),
        (["a", "b"], 2, None, "a, b"),
        (["a", "b", "c"], 2, None, "a, b and 1 more"),
        (["ab", "cd", "ef"], None, 6, "ab, cd and 1 more"),
        (["ab", "cd", "ef"], None, 5, "ab and 2 more"),
        (["ab", "cd"], None, 1, "ab and 1 more"),
        (["a"] * 1002, 2, None, "a, a and 1,000 more"),
    ],
)
def test_the_first_names_are_listed_and_the_others_are_counted(
    names: list[str], most: int | None, width: int | None, listed: str
) -> None:
    assert list_names(names, most, width) == listed
