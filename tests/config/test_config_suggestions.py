"""Tests that the suggestions of errors are right: following them makes the config valid."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import config_mistakes
import pytest
from advice_check import follow, refused, untrue
from config_file import ENVIRON, RIGHT, SMALL, complaints, read
from loops import loop_over
from simulation import size
from test_config_errors import FAULTS

from scheduler.cli.main import main
from scheduler.config.file.remedies import as_yaml
from scheduler.config.keys.time_zones import find_zone

SLIPS = size(80, 2000)  # `python -m bench.advice` follows the suggestions for ten thousand


@pytest.mark.simulation
@pytest.mark.parametrize("part", range(8))
def test_every_suggestion_for_a_config_with_typing_errors_is_accepted(tmp_path: Path, part: int) -> None:
    found = [
        f"{seed}: {line}"
        for seed in range(part, SLIPS, 8)
        for line in untrue(tmp_path, config_mistakes.config(seed), config_mistakes.ENVIRON)
    ]
    assert found == []


@loop_over(("right", "wrong"), [row[:2] for row in FAULTS])
def test_every_suggestion_for_a_known_error_is_accepted(tmp_path: Path, right: str, wrong: str) -> None:
    environ = {**ENVIRON, "SHORT": "0123456789abcde", "BLANKS": "0123456789abcdef 123"}
    assert list(untrue(tmp_path, RIGHT.replace(right, wrong, 1), environ)) == []


def test_the_message_contains_the_suggested_value(tmp_path: Path) -> None:
    seen = 0
    for seed in range(200):
        for complaint in refused(tmp_path, config_mistakes.config(seed), config_mistakes.ENVIRON):
            for remedy in complaint.remedies:
                seen += remedy.value is not None
                message = complaint.message.replace("0.50", "0.5")
                in_words = complaint.path.endswith("argv") or message.endswith("remove the brackets")
                assert remedy.value is None or as_yaml(remedy.value).strip('"') in message or in_words, complaint
    assert seen > 100


BEAT = "agents: {ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 6h, deliver: log, %s}}}\n"

# fmt: off
MEANT = [
    # the written value, the suggested value, and its meaning
    ("timeout: 90 s", "90s", ("timeout", timedelta(seconds=90))),
    ("timeout: 30 minutes", "30m", ("timeout", timedelta(minutes=30))),
    ("timeout: 1.5h", "1h30m", ("timeout", timedelta(minutes=90))),
    ("timeout: '1 hour and 30 minutes'", "1h30m", ("timeout", timedelta(minutes=90))),
    ("timeout: PT30M", "30m", ("timeout", timedelta(minutes=30))),
    ("timeout: 30M", "30m", ("timeout", timedelta(minutes=30))),
    ("timeout: 2000ms", "2s", ("timeout", timedelta(seconds=2))),
    ("timeout: '01:30:00'", "1h30m", ("timeout", timedelta(minutes=90))),
    ("retries: '2'", 2, ("retries", 2)),
    ("retries: 2.0", 2, ("retries", 2)),
    ("show_ok: yes", True, ("show_ok", True)),
    ("show_ok: 'off'", False, ("show_ok", False)),
    ("ok_match: Edges", "edges", ("ok_match", "edges")),
    ("max_input_tokens: 20K", "20k", ("max_input_tokens", 20_000)),
    ("max_input_tokens: '2,500'", 2500, ("max_input_tokens", 2500)),
]
HOURS = [
    # start and end as they are written, and as they are meant
    ("8", "22", "08:00-22:00"), ("800", "2200", "08:00-22:00"), ("830", "1320", "08:30-13:20"), ('"9:00"', '"17:00"', "09:00-17:00"),
    ("9am", '"5:30 pm"', "09:00-17:30"), ('"0800"', "21h30", "08:00-21:30"), ("8.0", "24", "08:00-24:00"), ("0", "noon", "00:00-12:00"),
    ("22", "6", "22:00-06:00"), ('"12 am"', '"12pm"', "00:00-12:00"), ('"08:00:00"', "midnight", "08:00-24:00"), ('"8.30"', "0", "08:30-24:00"),
]
WINDOWS = [
    ("8-22", "08:00-22:00 mon,tue,wed,thu,fri,sat,sun UTC"), ("9am to 5pm", "09:00-17:00 mon,tue,wed,thu,fri,sat,sun UTC"),
    ("'9:00-17:00'", "09:00-17:00 mon,tue,wed,thu,fri,sat,sun UTC"), ("mon-fri 9-17", "09:00-17:00 mon,tue,wed,thu,fri UTC"),
    ('"09:00-17:00 Europe/Paris"', "09:00-17:00 mon,tue,wed,thu,fri,sat,sun Europe/Paris"), ("24/7", "always"),
    ('"22:00 – 06:00"', "22:00-06:00 mon,tue,wed,thu,fri,sat,sun UTC"), ("'08:00Z-18:00Z'", "08:00-18:00 mon,tue,wed,thu,fri,sat,sun UTC"),
]
DAYS = [("Monday", "mon"), ("weekdays", "mon,tue,wed,thu,fri"), ("1-5", "mon,tue,wed,thu,fri"), ("7", "sun"), ('"mon, wed"', "mon,wed"), ("Sat - Sun", "sat,sun"), ("0", "sun")]
ZONES = [
    ("Asia/Hanoi", "Asia/Ho_Chi_Minh"), ("Hanoi", "Asia/Ho_Chi_Minh"), ("Mumbai", "Asia/Kolkata"), ("Bangalore", "Asia/Kolkata"), ("Hawaii", "Pacific/Honolulu"),
    ("Pacific/Hawaii", "Pacific/Honolulu"), ("San Francisco", "America/Los_Angeles"), ("Europe/Munich", "Europe/Berlin"), ("Beijing", "Asia/Shanghai"),
    ("berlin", "Europe/Berlin"), ("Europe/Berln", "Europe/Berlin"), ("europe/berlin", "Europe/Berlin"), ("Zürich", "Europe/Zurich"), ("São Paulo", "America/Sao_Paulo"),
    ("New York", "America/New_York"), ("Vietnam", "Asia/Ho_Chi_Minh"), ("Germany", "Europe/Berlin"), ("India", "Asia/Kolkata"), ("utc", "UTC"), ("Z", "UTC"),
    ("PST", "America/Los_Angeles"), ("JST", "Asia/Tokyo"), ("St. Petersburg", "Europe/Moscow"), ("America/LosAngeles", "America/Los_Angeles"),
    ("GMT+2", "Etc/GMT-2"), ("UTC+2", "Etc/GMT-2"), ("+02:00", "Etc/GMT-2"), ("utc-5", "Etc/GMT+5"), ("GMT+5:30", "Asia/Kolkata"), ("+0545", "Asia/Kathmandu"), ("UTC+0", "UTC"),
]
# fmt: on


def suggested(folder: Path, text: str) -> Any:
    """The one value that the one complaint suggests."""
    (complaint,) = refused(folder, text, ENVIRON)
    (remedy,) = complaint.remedies
    return remedy.value


@loop_over(("wrong", "right", "means"), MEANT)
def test_a_value_in_another_notation_is_suggested_in_the_config_notation(
    tmp_path: Path, wrong: str, right: Any, means: tuple[str, Any]
) -> None:
    assert suggested(tmp_path, BEAT % wrong) == right
    key, value = means
    settings = read(tmp_path, BEAT % f"{key}: {as_yaml(right)}").settings
    assert getattr(settings.heartbeats["ops"], key) == value


@loop_over(("start", "end", "hours"), HOURS)
def test_a_time_in_another_notation_is_suggested_in_the_config_notation(tmp_path: Path, start: str, end: str, hours: str) -> None:
    text = BEAT % f"active_hours: {{start: {start}, end: {end}}}"
    while found := refused(tmp_path, text, ENVIRON):
        text = follow(text, found[0], found[0].remedies[0])
    assert read(tmp_path, text).settings.heartbeats["ops"].hours.key() == f"{hours} mon,tue,wed,thu,fri,sat,sun UTC"


@pytest.mark.parametrize("time", ["480", "8.5", "8.3", "2500", "later", "25", "'08:60'"])
def test_an_ambiguous_time_gets_an_example(tmp_path: Path, time: str) -> None:
    (line,) = complaints(tmp_path, BEAT % f'active_hours: {{start: {time}, end: "22:00"}}')
    assert line.endswith('; write "08:00", two digits each, from "00:00" to "24:00"')


@loop_over(("window", "hours"), WINDOWS)
def test_a_window_in_another_notation_is_suggested_in_the_config_notation(tmp_path: Path, window: str, hours: str) -> None:
    text = BEAT % f"active_hours: {as_yaml(suggested(tmp_path, BEAT % f'active_hours: {window}'))}"
    assert read(tmp_path, text).settings.heartbeats["ops"].hours.key() == hours


@pytest.mark.parametrize(("days", "meant"), DAYS, ids=[row[0] for row in DAYS])
def test_days_in_another_notation_are_suggested_in_the_config_notation(tmp_path: Path, days: str, meant: str) -> None:
    text = BEAT % 'active_hours: {start: "08:00", end: "22:00", days: %s}'
    right = text % as_yaml(suggested(tmp_path, text % days))
    assert read(tmp_path, right).settings.heartbeats["ops"].hours.key() == f"08:00-22:00 {meant} UTC"


@loop_over(("name", "right"), ZONES)
def test_a_city_without_its_own_zone_gets_the_zone_that_it_uses(tmp_path: Path, name: str, right: str) -> None:
    assert suggested(tmp_path, f'timezone: "{name}"\n{SMALL}') == right
    assert find_zone(right).key == right


@pytest.mark.parametrize("name", ["Mars/Base", "Tatooine", "Xyz", "Asi", "GMT+25", "UTC+13:45", "local"])
def test_a_name_that_resembles_no_zone_gets_an_example(tmp_path: Path, name: str) -> None:
    (line,) = complaints(tmp_path, f"timezone: {name}\n{SMALL}")
    assert line.endswith("; write an IANA name, like Europe/Berlin or UTC")


def test_the_reversed_sign_of_etc_is_explained(tmp_path: Path) -> None:
    (line,) = complaints(tmp_path, f"timezone: GMT+2\n{SMALL}")
    assert line.endswith(
        "name a place, like Europe/Berlin, or write Etc/GMT-2: in Etc/ the sign is reversed, and this is 2 hours ahead of UTC"
    )


def test_a_zone_after_a_time_is_suggested_as_its_own_key(tmp_path: Path) -> None:
    text = BEAT % 'active_hours: {start: "08:00Z", end: "22:00"}'
    (complaint,) = refused(tmp_path, text, ENVIRON)
    assert complaint.message == "'08:00Z' is not a time; write \"08:00\", and timezone: UTC beside it"
    right = follow(text, complaint, complaint.remedies[0])
    assert read(tmp_path, right).settings.heartbeats["ops"].hours.key() == "08:00-22:00 mon,tue,wed,thu,fri,sat,sun UTC"


@pytest.mark.parametrize("word", ["schedulle", "shcedule", "chedule", "scheduling", "sched", "sxhedulx"])
def test_similar_words_differ_by_one_or_two_letters(tmp_path: Path, word: str) -> None:
    (line, *_) = complaints(tmp_path, f"cron: {{a: {{{word}: '@daily', command: x}}}}\n")
    assert ("did you mean schedule?" in line) == (word not in ("scheduling", "sched"))


def test_a_suggestion_respects_the_limits_of_the_entry(tmp_path: Path) -> None:
    text = "limits: {min_interval: 40m}\nagents: {ops: {heartbeat: {interval: %s, deliver: log}}}\n"
    assert complaints(tmp_path, text % "soon")[0].endswith("'soon' is not a duration; write 1h30m")
    assert complaints(tmp_path, text % "30")[0].endswith("30 has no unit; write 40m")
    assert complaints(tmp_path, text % "20 min")[0].endswith(
        "'20 min' is not a duration; 20m is below limits.min_interval, which is 40m; write 40m or more, or lower the limit"
    )


@pytest.mark.parametrize(
    ("span", "advice"),
    [("25h", "'25h' is too long; write 24h or less"), ("0s", "'0s' is zero; write 90s, 30m or 1h30m")],
)
def test_an_async_timeout_is_above_zero_and_at_most_a_day(tmp_path: Path, span: str, advice: str) -> None:
    runner = '{kind: http, url: "http://127.0.0.1:1/"}'
    text = f"agents: {{ops: {{runner: {runner}, heartbeat: {{interval: 1h, deliver: log, async_timeout: {span}}}}}}}\n"
    (line,) = complaints(tmp_path, text)
    assert line.endswith(f": agents.ops.heartbeat.async_timeout: {advice}")


def test_check_prints_suggestions_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = BEAT % "max-retries: 3, timeout: 90 s"
    complaints(tmp_path, text)
    assert main(["check", "-c", str(tmp_path / "config.yaml"), "--format", "json"]) == 2
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert [error["remedies"] for error in errors] == [[{"key": "retries"}], [{"value": "90s"}]]
