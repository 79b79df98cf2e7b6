"""Tests of the words for cron expressions."""

from __future__ import annotations

import pytest
from loops import loop_over

from cron.expression_words import describe_expression
from scheduler.insight.schedule_texts import schedule_in_words


@loop_over(
    ("text", "words"),
    [
        ("* * * * *", "every minute, every day"),
        ("*/15 * * * *", "every 15 minutes, every day"),
        ("5 * * * *", "every hour at :05, every day"),
        ("0,30 * * * *", "every 30 minutes, every day"),
        ("5,35 * * * *", "every hour at :05 and :35, every day"),
        ("@hourly", "every hour at :00, every day"),
        ("@daily", "at 00:00, every day"),
        ("0 9 * * 1-5", "at 09:00, Monday to Friday"),
        ("0 9 * * mon-fri", "at 09:00, Monday to Friday"),
        ("0 9 * * 6,0", "at 09:00, Saturday and Sunday"),
        ("0 9 * * 6-7", "at 09:00, Saturday and Sunday"),
        ("0 9 * * 0-6", "at 09:00, Monday to Sunday"),
        ("0 8,12,18 * * *", "at 08:00, 12:00 and 18:00, every day"),
        ("30 22 * * 5", "at 22:30, Friday"),
        ("*/10 9-17 * * *", "every 10 minutes from 09:00 to 17:50, every day"),
        ("0 9-17 * * *", "every hour from 09:00 to 17:00, every day"),
        ("15 */2 * * *", "every 2 hours from 00:15 to 22:15, every day"),
        ("0,7 1-8 * * *", "16 times a day from 01:00 to 08:07, every day"),
        ("0 3 1 * *", "at 03:00, on day 1 of the month"),
        ("0 3 1,15 * *", "at 03:00, on day 1 and 15 of the month"),
        ("0 3 1-7 * *", "at 03:00, on day 1 to 7 of the month"),
        ("0 3 L * *", "at 03:00, on the last day of the month"),
        ("0 3 1,L * *", "at 03:00, on day 1 and the last day of the month"),
        ("0 3 * 1,7 *", "at 03:00, every day in January and July only"),
        ("0 3 1 6-8 *", "at 03:00, on day 1 of the month in June to August"),
        ("0 3 * * 1#2", "at 03:00, on the second Monday of the month"),
        ("0 3 * * 5L", "at 03:00, on the last Friday of the month"),
        ("@yearly", "at 00:00, on day 1 of the month in January"),
        # Debian's rule: if neither day field begins with a star, one of the two is enough.
        ("0 3 1 * 1", "at 03:00, on day 1 of the month or Monday"),
    ],
)
def test_a_common_expression_has_a_description(text: str, words: str) -> None:
    assert describe_expression(text) == words


@pytest.mark.parametrize("text", ["0 3 */2 * 1", "0 3 1-20 * *", "0 3 2-31/3 * *"])
def test_an_expression_whose_days_need_many_words_has_no_description(text: str) -> None:
    assert describe_expression(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schedule":"0 9 * * 1-5","zone":"Europe/Berlin","offset":0.0}', "at 09:00, Monday to Friday (Europe/Berlin)"),
        ('{"schedule":"0 3 */2 * 1","zone":"UTC","offset":0.0}', "by '0 3 */2 * 1' (UTC)"),
        ('{"every":21600.0,"offset":0.0}', "every 6h"),
        ('{"at":"2026-12-01T09:00:00","zone":"UTC","offset":0.0}', "once, at 2026-12-01 09:00:00 (UTC)"),
        ("{}", "without a schedule"),
    ],
)
def test_the_schedule_of_a_row_is_described_in_words(text: str, words: str) -> None:
    assert schedule_in_words(text) == words
