"""The meaning of cron expressions, and the errors for wrong ones."""

from __future__ import annotations

from calendar import monthrange
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from loops import loop_over

from cron.expression import parse_expression
from cron.job_schedules import ScheduleError, is_reboot, parse_schedule

UTC = ZoneInfo("UTC")


def clock(text: str) -> tuple[list[int], list[int]]:
    readings = parse_expression(f"{text} * * *").times
    return list(readings.minutes), list(readings.hours)


@loop_over(
    ("text", "minutes", "hours"),
    [
        ("0 0", [0], [0]),
        ("5,3,5 7", [3, 5], [7]),
        ("05 007", [5], [7]),
        ("*/20 9-9", [0, 20, 40], [9]),
        ("10-20/5 8-17/4", [10, 15, 20], [8, 12, 16]),
        ("*/59 22-23,0-6", [0, 59], [0, 1, 2, 3, 4, 5, 6, 22, 23]),
        ("0-59/30,7 */23", [0, 7, 30], [0, 23]),
        ("59 1-2,2-3,23", [59], [1, 2, 3, 23]),
    ],
)
def test_minutes_and_hours_are_lists_of_values_ranges_and_steps(text: str, minutes: list[int], hours: list[int]) -> None:
    assert clock(text) == (minutes, hours)


def test_a_star_means_every_minute_or_every_hour() -> None:
    assert clock("* *") == (list(range(60)), list(range(24)))


@loop_over(
    ("text", "days"),
    [
        ("* * *", "* * *"),
        ("1-31 1-12 0-6", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31 * 0,1,2,3,4,5,6"),
        ("5,* * 1", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31 * 1"),
        ("*,5 * 1", "* * 1"),
        ("*/10 */6 1", "*/31,1,11,21,31 1,7 1"),
        ("1 JAN,jun-aug *", "1 1,6,7,8 *"),
        ("* * mon-fri", "* * 1,2,3,4,5"),
        ("* * 7", "* * 0"),
        ("* * 0-7", "* * 0,1,2,3,4,5,6"),
        ("* * 1-7/2", "* * 0,1,3,5"),
        ("* * fri-mon", "* * 0,1,5,6"),
        ("* * 6-1", "* * 0,1,6"),
        ("* * Sat-Sun", "* * 0,6"),
        ("* * sun-sat", "* * 0,1,2,3,4,5,6"),
        ("* * 5-7", "* * 0,5,6"),
        ("* * 7-1", "* * 0,1"),
        ("* * 7-0", "* * 0"),
        ("* * thu-tue/2", "* * 1,4,6"),
        ("* * */2", "* * */7,0,2,4,6"),
        ("L * *", "l * *"),
        ("l,15 * *", "15,l * *"),
        ("* * fri#2", "* * 5#2"),
        ("* * 7#1,3#5", "* * 0#1,3#5"),
        ("* * 5L,Lmon", "* * l1,l5"),
        ("* * friL", "* * l5"),
        ("* * 7L", "* * l0"),
        ("30,31 4 *", "30,31 4 *"),
    ],
)
def test_the_day_fields_are_rewritten_as_explicit_numbers(text: str, days: str) -> None:
    assert parse_expression(f"0 0 {text}").days == days


@pytest.mark.parametrize(
    ("macro", "meaning"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@MIDNIGHT", "0 0 * * *"),
        ("@Weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_a_macro_means_its_five_fields(macro: str, meaning: str) -> None:
    assert parse_expression(macro) == parse_expression(meaning)


@loop_over(
    ("text", "wildcard"),
    [
        ("* * * * *", True),
        ("*/5 3 * * *", True),
        ("5 * * * *", True),
        ("5 *,3 * * *", True),
        ("@hourly", True),
        ("0-59 0-23 * * *", False),
        ("5 3,* * * *", False),
        ("0 0 * * *", False),
    ],
)
def test_a_job_is_a_wildcard_if_its_minute_or_hour_begins_with_a_star(text: str, wildcard: bool) -> None:
    assert parse_expression(text).wildcard is wildcard


def test_tabs_and_blanks_around_and_between_fields_do_not_matter() -> None:
    assert parse_expression(" \t0  3\t* * mon ") == parse_expression("0 3 * * 1")


def test_the_last_day_of_each_month_is_valid_and_the_day_after_it_is_not() -> None:
    for month in range(1, 13):
        last = monthrange(2028, month)[1]
        parse_expression(f"0 0 {last} {month} *")
        with pytest.raises(ScheduleError):
            parse_expression(f"0 0 {last + 1} {month} *")


def test_expressions_with_other_hours_have_other_keys() -> None:
    assert len({parse_expression(f"{text} * * *").key for text in ("0 8,9", "0 8,10", "0,30 8,9", "0 9")}) == 4


@loop_over(("text", "minutes"), [("0,50 8,9", 10), ("0,20,25 8,9", 5), ("0 8,9,11", 60), ("0 8", None)])
def test_the_shortest_gap_of_a_day_may_be_within_an_hour_or_over_its_end(text: str, minutes: int | None) -> None:
    assert parse_expression(f"{text} * * *").times.shortest_gap() == (None if minutes is None else timedelta(minutes=minutes))


def test_an_expression_of_256_characters_is_read() -> None:
    assert parse_expression(f"{'0,' * 123}0 0 * * * ").times == parse_expression("0 0 * * *").times


@pytest.mark.parametrize(("text", "yes"), [("@reboot", True), (" @Reboot\t", True), ("@daily", False), ("@reboots", False)])
def test_reboot_is_not_a_schedule(text: str, yes: bool) -> None:
    assert is_reboot(text) is yes


@loop_over(
    ("text", "warnings"),
    [
        ("*/59 * * * *", ()),
        ("*/60 * * * *", ("minute '*/60': the step is wider than the range, only 0 is left; write 0",)),
        ("0 8-10/3 * * *", ("hour '8-10/3': the step is wider than the range, only 8 is left; write 8",)),
        ("0 0 * * */6", ()),
        ("0 0 * * */7", ("day-of-week '*/7': the step is wider than the range, only 0 is left; write 0",)),
        ("0 0 29 2 *", ()),
        ("0 0 31 2 1", ("day-of-month 31 does not occur in month 2: only day-of-week decides",)),
        ("0 0 30,31 2 1", ("day-of-month 30,31 does not occur in month 2: only day-of-week decides",)),
        ("0 0 31 2,3 1", ()),
        ("0 0 30,L 2 *", ()),
    ],
)
def test_a_valid_but_suspicious_expression_gets_a_warning(text: str, warnings: tuple[str, ...]) -> None:
    assert parse_schedule(text, UTC).warnings == warnings


VALUES = "write *, */n, a, a-b or a-b/n with"
STAGGERED = "random times are not supported; write a number and spread jobs with stagger:"
UNSUPPORTED = (
    ", and seconds and years are not supported; "
    "write five (minute hour day-of-month month day-of-week), or every: for intervals below a minute"
)
MIXED = "mixes plain days, d#k or dL; write one job for each kind"

COMPLAINTS = [
    ("", "the expression is empty; write five fields, such as 0 3 * * *, or a macro, such as @daily"),
    ("0 3 * *", "the expression has 4 fields; write five: minute hour day-of-month month day-of-week"),
    ("soon", "the expression has 1 field; write five: minute hour day-of-month month day-of-week"),
    (
        "0 0 3 * * *",
        f"the expression has 6 fields{UNSUPPORTED}",
    ),
    (
        "0 0 3 * * * 2030",
        f"the expression has 7 fields{UNSUPPORTED}",
    ),
    ("1 2 3 4 5 6 7 8", "the expression has 8 fields; write five: minute hour day-of-month month day-of-week"),
    ("0," * 150, "the expression has 300 characters, at most 256 are read; split it into several jobs"),
    ("0\xa03 * * *", "character 2 is U+00A0 (NO-BREAK SPACE); write plain ASCII, with blanks between fields"),
    ("٣ 3 * * *", "character 1 is U+0663 (ARABIC-INDIC DIGIT THREE); write plain ASCII, with blanks between fields"),
    ("0 3 * * *\n", "character 10 is U+000A (a control character); write plain ASCII, with blanks between fields"),
    ("@reboot", "@reboot is not a time of day; write five fields, such as 0 3 * * *"),
    ("@every 5m", "@every is not a schedule; write every: 5m instead of schedule:"),
    ("@every", "@every is not a schedule; write every: 30m instead of schedule:"),
    ("@every_minute", "@every_minute is not a macro here; write * * * * *"),
    ("@dayly", "'@dayly' is not a macro; write @daily"),
    ("@", "'@' is not a macro; write @hourly @daily @midnight @weekly @monthly @yearly @annually"),
    ("@daily 3", "'@daily' takes no arguments; write @daily and nothing after it"),
    ("TZ=Asia/Tokyo 0 3 * * *", "'TZ=Asia/Tokyo' does not belong in the expression; write timezone: Asia/Tokyo beside it"),
    ("tz=UTC 0 3 * * *", "'tz=UTC' does not belong in the expression; write timezone: UTC beside it"),
    ("CRON_TZ=UTC 0 3 * * *", "'CRON_TZ=UTC' does not belong in the expression; write timezone: UTC beside it"),
    ("60 * * * *", "minute '60' is out of range; write 0 to 59"),
    ("0 24 * * *", "hour '24' is out of range; write 0 to 23"),
    ("0 0 0 * *", "day-of-month '0' is out of range; write 1 to 31"),
    ("0 0 32 * *", "day-of-month '32' is out of range; write 1 to 31"),
    ("0 0 * 13 *", "month '13' is out of range; write 1 to 12"),
    ("0 0 * * 8", "day-of-week '8' is out of range; write 0 to 7"),
    ("0 0 * * 1-8", "day-of-week '8' is out of range; write 0 to 7"),
    ("5/10 * * * *", "minute '5/10' has a step without a range; write 5-59/10"),
    ("0 8/2 * * *", "hour '8/2' has a step without a range; write 8-23/2"),
    ("0 0 * mar/3 *", "month 'mar/3' has a step without a range; write 3-12/3"),
    ("*/0 * * * *", "minute '*/0' has a step of 0; write a step of 1 or more"),
    ("0 22-6 * * *", "hour '22-6' ends before it starts; write 22-23,0-6"),
    ("0 23-0 * * *", "hour '23-0' ends before it starts; write 23,0"),
    ("0 22-4/3 * * *", "hour '22-4/3' ends before it starts; write 22,1-4/3"),
    ("50-10/15 * * * *", "minute '50-10/15' ends before it starts; write 50,5"),
    ("0 22-1/5 * * *", "hour '22-1/5' ends before it starts; write 22"),
    ("0 0 25-5 * *", "day-of-month '25-5' ends before it starts; write 25-31,1-5"),
    ("0 0 * nov-feb *", "month 'nov-feb' ends before it starts; write 11-12,1-2"),
    ("1,,2 * * * *", "minute '1,,2' has an empty list item; remove the stray comma"),
    ("0 0 1, * *", "day-of-month '1,' has an empty list item; remove the stray comma"),
    ("*5 * * * *", f"minute '*5' is not a value; {VALUES} 0 to 59"),
    ("-5 * * * *", f"minute '-5' is not a value; {VALUES} 0 to 59"),
    ("1-2-3 * * * *", f"minute '1-2-3' is not a value; {VALUES} 0 to 59"),
    ("1.5 * * * *", f"minute '1.5' is not a value; {VALUES} 0 to 59"),
    ("mon * * * *", f"minute 'mon' is not a value; {VALUES} 0 to 59"),
    ("0 0 * mon *", f"month 'mon' is not a value; {VALUES} 1 to 12 or jan feb mar apr may jun jul aug sep oct nov dec"),
    ("0 0 * march *", "month 'march': names have three letters; write mar"),
    ("0 0 * * Monday", "day-of-week 'Monday': names have three letters; write mon"),
    ("0 0 ? * 1", "day-of-month '?': '?' belongs to Quartz; write *"),
    ("0 0 15W * *", "day-of-month '15W': 'W' (nearest weekday) belongs to Quartz; write days, such as 1-5 as day-of-week"),
    ("0 0 LW * *", "day-of-month 'LW': 'W' (nearest weekday) belongs to Quartz; write days, such as 1-5 as day-of-week"),
    ("H * * * *", f"minute 'H': {STAGGERED}"),
    ("H(0-29)/10 * * * *", f"minute 'H(0-29)/10': {STAGGERED}"),
    ("0 R * * *", f"hour 'R': {STAGGERED}"),
    ("0~30 * * * *", f"minute '0~30': {STAGGERED}"),
    ("0 0 L-3 * *", "day-of-month 'L-3': L (the last day) can only be used alone or in a list; write L"),
    ("0 0 1-L * *", "day-of-month '1-L': L (the last day) can only be used alone or in a list; write L"),
    ("0 0 * * L", "day-of-week 'L' does not say which day; write 5L for the last Friday of the month"),
    ("0 0 * * l", "day-of-week 'l' does not say which day; write 5L for the last Friday of the month"),
    ("0 L * * *", f"hour 'L' is not a value; {VALUES} 0 to 23"),
    ("0 0 * * 1#6", "day-of-week '1#6': a month has at most five of each weekday; write #1 to #5"),
    ("0 0 * * 1#0", "day-of-week '1#0': a month has at most five of each weekday; write #1 to #5"),
    ("0 0 * * 1#1,5", f"day-of-week '1#1,5' {MIXED}"),
    ("0 0 * * 5L,*", f"day-of-week '5L,*' {MIXED}"),
    ("0 0 * * 5L,1#1", f"day-of-week '5L,1#1' {MIXED}"),
    ("0 0 1 * 1#1", "day-of-week '1#1' and day-of-month '1' cannot be combined; write * as day-of-month"),
    ("0 0 */2 * 5L", "day-of-week '5L' and day-of-month '*/2' cannot be combined; write * as day-of-month"),
    ("0 0 30 2 *", "day-of-month 30 does not occur in month 2; write L for the last day of the month"),
    ("0 0 31 2,4,6 */2", "day-of-month 31 does not occur in month 2,4,6; write L for the last day of the month"),
]


@loop_over(("text", "complaint"), COMPLAINTS)
def test_the_error_of_an_invalid_expression_names_the_problem_and_the_remedy(text: str, complaint: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(text, UTC)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (text, complaint.rsplit("write ", 1)[1])
        for text, complaint in COMPLAINTS
        if "ends before" in complaint or "without" in complaint
    ],
)
def test_every_proposed_expression_is_valid(wrong: str, right: str) -> None:
    fields = wrong.split(" ")
    at = next(at for at, field in enumerate(fields) if "-" in field or "/" in field)
    parse_schedule(" ".join([*fields[:at], right, *fields[at + 1 :]]), UTC)
