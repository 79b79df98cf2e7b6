"""`cron next`: the times at which an expression fires, in its zone and in UTC."""

import json

import pytest

from scheduler.cli.main import main


def instants(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["cron", "next", *arguments, "--format", "json"]) == 0
    found: list[str] = json.loads(capsys.readouterr().out)
    return found


def test_the_json_is_a_list_of_utc_times(capsys: pytest.CaptureFixture[str]) -> None:
    """Berlin's clocks go forward on 28 March 2027 at 02:00: 02:30 fires at the first instant after the gap."""
    found = instants(capsys, "30 2 * * *", "--timezone", "Europe/Berlin", "--after", "2027-03-27T12:00:00Z", "--count", "2")
    assert found == ["2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"]


def test_an_expression_that_never_fires_again_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cron", "next", "0 0 29 2 *", "--after", "9899-12-31T00:00Z"]) == 0
    assert capsys.readouterr().out == "it does not fire again before the end of the year 9899\n"


@pytest.mark.parametrize(
    ("after", "first"),
    [
        ("2027-01-01T03:00", "2026-12-31T18:01:00Z"),  # in Tokyo, nine hours ahead
        ("2027-01-01T03:00:00Z", "2027-01-01T03:01:00Z"),
        ("2027-01-01T03:00:00+01:00", "2027-01-01T02:01:00Z"),
        ("2027-01-01", "2026-12-31T15:01:00Z"),
    ],
)
def test_after_is_a_time_in_the_zone_of_the_expression(after: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert instants(capsys, "* * * * *", "--timezone", "Asia/Tokyo", "--after", after, "--count", "1") == [first]


def test_five_times_are_shown_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(instants(capsys, "@daily")) == 5


def test_the_table_shows_local_time_and_utc(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--timezone", "Europe/Berlin", "--after", "2027-03-27T12:00", "--count", "1"]
    assert main(["cron", "next", "0 3 * * *", *arguments]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "LOCAL (Europe/Berlin)      UTC",
        "Sun 2027-03-28 03:00 CEST  2027-03-28T01:00:00Z",
    ]


def test_an_expression_that_is_probably_a_mistake_causes_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cron", "next", "*/60 * * * *"]) == 0
    assert capsys.readouterr().err.startswith("warning: ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["5/3 * * * *"], "write 5-59/3"),
        (["@reboot"], "a job with @reboot has no times: it starts once, when the daemon starts"),
        (["@daily", "--timezone", "Europe/Berln"], "did you mean Europe/Berlin?"),
        (["@daily", "--after", "later"], "'later' is not a time"),
        (["@daily", "--after", "9999-12-31T00:00Z"], "--after: write a time in the years 2 to 9899"),
        (["@daily", "--after", "0001-01-02T00:00Z"], "--after: write a time in the years 2 to 9899"),
    ],
)
def test_an_invalid_expression_is_reported_in_one_line_with_exit_code_2(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cron", "next", *arguments]) == 2
    err = capsys.readouterr().err
    assert error in err
    assert err.startswith("heartbeatd: ")
    assert err.count("\n") == 1
