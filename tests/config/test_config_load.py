"""Tests the settings that a config is loaded into: defaults, inheritance, anchors and overrides."""

from __future__ import annotations

import os
import shlex
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from config_file import ENVIRON, RIGHT, SMALL, TOKEN, complaints, read, write
from loops import loop_over
from servers.scripted import CERTIFICATE

from heartbeat.slots import stagger_for
from heartbeat.spec import Heartbeat
from heartbeatd.secret import Secret
from heartbeatd.state_folder import read_state_path
from scheduler.config.file.config_text import check_owner
from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.lenient_reading import read_timezone_name
from scheduler.config.settings import templates
from scheduler.config.settings.load import load_config
from scheduler.system.files import MAY_WRITE, others_may

BEAT = "agents: {ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 30m, deliver: log, %s}}}\n"


def beat(folder: Path, keys: str) -> Heartbeat:
    return read(folder, BEAT % keys).settings.heartbeats["ops"]


def test_the_smallest_heartbeat_has_the_documented_defaults(tmp_path: Path) -> None:
    settings = read(tmp_path, SMALL).settings
    ops = settings.heartbeats["ops"]
    assert (ops.interval, ops.retries, ops.timeout, ops.ack_max_chars) == (timedelta(minutes=30), 2, timedelta(minutes=5), 5)
    assert (ops.checklist, ops.on_missing, ops.on_empty, ops.ok_match) == ("HEARTBEAT.md", "skip", "skip", "edges")
    assert (ops.show_ok, ops.show_alerts, ops.light_context, ops.enabled) == (False, True, False, True)
    assert (ops.dedup_window, ops.dedup_normalize) == (timedelta(hours=24), "text")
    assert ops.workspace == tmp_path / "agents/ops"
    assert ops.grace == timedelta(minutes=10)
    assert ops.stagger == stagger_for("ops", timedelta(minutes=3))
    assert settings.state == tmp_path / "state/heartbeatd.db"
    assert (settings.server.host, settings.server.port, settings.limits.wake_flood.count) == ("127.0.0.1", 7857, 5)


def test_a_job_has_the_documented_defaults(tmp_path: Path) -> None:
    job = read(tmp_path, RIGHT).settings.jobs["nightly"]
    assert (job.timeout, job.retries, job.stagger, job.grace) == (timedelta(minutes=10), 0, timedelta(0), timedelta(hours=1))
    assert (job.command, job.shell, job.stdin, job.deliver) == ("./backup.sh", "/bin/sh", "", ())
    assert (job.workdir, job.misfire, job.wake_on, job.wake_mode) == (tmp_path, "latest", "always", "now")
    assert job.schedule is not None
    assert job.schedule.next(datetime(2026, 1, 1, 12, tzinfo=UTC)) == datetime(2026, 1, 2, 2, tzinfo=UTC)  # 03:00 in Berlin


@loop_over(
    ("keys", "attribute", "value"),
    [
        ("misfire: {grace: 2m}", "grace", timedelta(minutes=2)),
        ("misfire: {grace: 0s}", "grace", timedelta(0)),
        ("stagger: 0", "stagger", timedelta(0)),
        ("stagger: 20m", "stagger", stagger_for("ops", timedelta(minutes=20))),
        ("stagger: 50%", "stagger", stagger_for("ops", timedelta(minutes=15))),
        ('checklist: "a\\nb"', "checklist", "a\nb"),
        ("enabled: false", "enabled", False),
        ("model: m", "model", "m"),
        ("dedup: {normalize: numbers}", "dedup_normalize", "numbers"),
    ],
)
def test_a_key_becomes_a_value(tmp_path: Path, keys: str, attribute: str, value: object) -> None:
    assert getattr(beat(tmp_path, keys), attribute) == value


@pytest.mark.parametrize(
    ("interval", "enabled", "expected"), [("none", True, None), ("0m", False, None), ("1h30m", True, timedelta(minutes=90))]
)
def test_an_interval_may_be_none_or_zero(tmp_path: Path, interval: str, enabled: bool, expected: timedelta | None) -> None:
    ops = read(tmp_path, SMALL.replace("30m", interval)).settings.heartbeats["ops"]
    assert (ops.enabled, ops.interval) == (enabled, expected)


@pytest.mark.parametrize(
    ("keys", "zone", "windows"),
    [
        ("active_hours: always", "UTC", ""),
        ('active_hours: "08:00-22:00"', "UTC", "08:00-22:00 mon,tue,wed,thu,fri,sat,sun UTC"),
        ("active_hours: '08:00-22:00', timezone: Asia/Tokyo", "Asia/Tokyo", "08:00-22:00 mon,tue,wed,thu,fri,sat,sun Asia/Tokyo"),
        ('active_hours: {start: "22:00", end: "06:00", days: fri-mon}', "UTC", "22:00-06:00 mon,fri,sat,sun UTC"),
        (
            'active_hours: {start: "08:00", end: "09:00", days: [mon], timezone: Asia/Tokyo}',
            "Asia/Tokyo",
            "08:00-09:00 mon Asia/Tokyo",
        ),
        (
            'active_hours: [{start: "08:00", end: "09:00", days: mon, timezone: Asia/Tokyo}, {start: "12:00", end: "13:00", days: mon}]',
            "UTC",
            "08:00-09:00 mon Asia/Tokyo; 12:00-13:00 mon UTC",
        ),
        (
            'active_hours: [{start: "08:00", end: "09:00", days: mon, timezone: Asia/Tokyo}, {start: "12:00", end: "13:00", days: mon, timezone: Europe/Berlin}]',
            "UTC",
            "08:00-09:00 mon Asia/Tokyo; 12:00-13:00 mon Europe/Berlin",
        ),
    ],
)
def test_active_hours_have_several_forms_and_one_zone(tmp_path: Path, keys: str, zone: str, windows: str) -> None:
    ops = beat(tmp_path, keys)
    assert ops.zone.key == zone
    assert ops.hours.key() == (windows or "always")


DEFAULTS = """\
defaults:
  runner: {kind: command, argv: [cat]}
  model: cheap
  heartbeat: {interval: 1h, deliver: log, active_hours: {start: "08:00", end: "10:00", timezone: Asia/Tokyo, days: mon}, dedup: {window: 2h}}
  cron: {every: 6h, misfire: {grace: 5m}}
agents:
  bare:
  own: {heartbeat: {interval: 2h, active_hours: {start: "09:00", end: "10:00"}, dedup: {normalize: numbers}}}
  always: {model: dear, heartbeat: {active_hours: always, deliver: none}}
  silent: {heartbeat: {deliver: []}}
cron:
  a: {command: x}
  b: {command: x, schedule: "@daily", misfire: {policy: skip}}
"""


def test_maps_are_merged_at_every_depth_and_other_values_replaced(tmp_path: Path) -> None:
    heartbeats = read(tmp_path, DEFAULTS).settings.heartbeats
    assert (heartbeats["bare"].interval, heartbeats["bare"].model) == (timedelta(hours=1), "cheap")
    assert heartbeats["own"].interval == timedelta(hours=2)
    assert (heartbeats["own"].dedup_window, heartbeats["own"].dedup_normalize) == (timedelta(hours=2), "numbers")


def test_own_active_hours_replace_inherited_ones_completely(tmp_path: Path) -> None:
    heartbeats = read(tmp_path, DEFAULTS).settings.heartbeats
    assert heartbeats["bare"].hours.key() == "08:00-10:00 mon Asia/Tokyo"
    assert heartbeats["own"].hours.key() == "09:00-10:00 mon,tue,wed,thu,fri,sat,sun UTC"
    assert heartbeats["own"].zone.key == "UTC"


WHOLE = """\
providers: {oa: {kind: openai, api_key: "${KEY}"}}
prices: {gpt: {input: 1.0, output: 5.0}}
runners: {local: {kind: command, argv: [cat]}}
defaults:
  runner: {kind: command, argv: [ask]}
  fallbacks: {provider: oa, model: gpt}
  heartbeat: {interval: 1h, deliver: {to: log, hours: {start: "22:00", end: "06:00", timezone: Asia/Tokyo, days: mon}, critical: hold}}
agents:
  bare:
  named: {fallbacks: {runner: local}}
  other: {fallbacks: {model: sonnet}}
  day: {heartbeat: {deliver: {hours: {start: "09:00", end: "10:00"}}}}
"""


def test_own_fallbacks_and_hours_of_delivery_replace_inherited_ones_completely(tmp_path: Path) -> None:
    heartbeats = read(tmp_path, WHOLE, {"KEY": "k" * 20}).settings.heartbeats
    assert {name: [each.name for each in found.fallbacks] for name, found in heartbeats.items()} == {
        "bare": ["oa/gpt"],
        "named": ["local"],
        "other": ["sonnet"],
        "day": ["oa/gpt"],
    }
    hours = {
        name: [(each.hours.key(), each.critical_always) for each in heartbeats[name].deliver_hours] for name in ("bare", "day")
    }
    assert hours == {
        "bare": [("22:00-06:00 mon Asia/Tokyo", False)],
        "day": [("09:00-10:00 mon,tue,wed,thu,fri,sat,sun UTC", False)],
    }


def test_incomplete_active_hours_do_not_inherit_the_missing_part(tmp_path: Path) -> None:
    text = DEFAULTS.replace('{start: "09:00", end: "10:00"}', "{days: tue}")
    column = text.splitlines()[7].index("active_hours") + 1
    assert complaints(tmp_path, text) == [
        f'config.yaml:8:{column}: agents.own.heartbeat.active_hours.start: is missing; write start: "08:00"',
        f'config.yaml:8:{column}: agents.own.heartbeat.active_hours.end: is missing; write end: "22:00"',
    ]


def test_a_heartbeats_own_schedule_replaces_an_inherited_interval_and_has_no_stagger(tmp_path: Path) -> None:
    timed = '  timed: {heartbeat: {schedule: "0 9 * * *", active_hours: always}}\n  spread: {heartbeat: {schedule: "@daily", stagger: 1h, active_hours: always}}\n'
    heartbeats = read(tmp_path, DEFAULTS.replace("  silent:", timed + "  silent:")).settings.heartbeats
    assert (heartbeats["timed"].interval, heartbeats["timed"].schedule) == (None, "0 9 * * *")
    assert (heartbeats["timed"].stagger, heartbeats["timed"].grace) == (timedelta(0), timedelta(minutes=10))
    assert timedelta(0) < heartbeats["spread"].stagger <= timedelta(hours=1)
    assert heartbeats["bare"].interval == timedelta(hours=1)


def test_an_entry_disables_a_default_with_a_word(tmp_path: Path) -> None:
    heartbeats = read(tmp_path, DEFAULTS).settings.heartbeats
    assert (heartbeats["always"].hours.always, heartbeats["always"].deliver, heartbeats["always"].model) == (True, (), "dear")
    assert heartbeats["silent"].deliver == ()


def test_a_jobs_own_schedule_replaces_an_inherited_interval(tmp_path: Path) -> None:
    jobs = read(tmp_path, DEFAULTS).settings.jobs
    assert (jobs["a"].every, jobs["a"].schedule, jobs["a"].grace) == (timedelta(hours=6), None, timedelta(minutes=5))
    assert jobs["b"].every is None
    assert jobs["b"].schedule is not None
    assert (jobs["b"].misfire, jobs["b"].grace) == ("skip", timedelta(minutes=5))


def test_a_jobs_own_prompt_replaces_an_inherited_command_and_the_other_way_round(tmp_path: Path) -> None:
    text = SMALL + "defaults: {cron: {every: 6h, command: x, env: {A: b}}}\ncron: {a: {prompt: Write., agent: ops}, b: {}}\n"
    settings = read(tmp_path, text).settings
    assert [(job.command, job.prompt) for job in settings.jobs.values()] == [(None, "Write."), ("x", None)]
    assert {name: agent.name for name, agent in settings.job_agents.items()} == {"a": "ops"}


def test_an_error_in_a_default_is_reported_once_for_all_entries(tmp_path: Path) -> None:
    text = DEFAULTS.replace("window: 2h", "window: 2x")
    column = text.splitlines()[3].index("2x") + 1
    assert complaints(tmp_path, text) == [
        f"config.yaml:4:{column}: defaults.heartbeat.dedup.window: '2x' is not a duration; write 90s, 30m or 1h30m"
    ]


def test_an_error_between_two_keys_is_reported_at_the_default(tmp_path: Path) -> None:
    assert complaints(tmp_path, DEFAULTS.replace("deliver: log", "deliver: phone")) == [
        "config.yaml:4:38: defaults.heartbeat.deliver: 'phone' is not a declared channel; write log, or declare it under channels:"
    ]


def test_a_default_that_no_entry_inherits_is_checked(tmp_path: Path) -> None:
    assert complaints(tmp_path, SMALL + "defaults: {cron: {evry: 5m}}\n") == [
        "config.yaml:2:19: defaults.cron.evry: unknown key; did you mean every?"
    ]


ANCHORS = """\
x-base: &base {interval: 30m, retries: 3, deliver: log}
x-late: &late {interval: 2h}
x-run: &run {kind: command, argv: [cat]}
agents:
  one: {runner: *run, heartbeat: *base}
  two: {runner: *run, heartbeat: {<<: *base, retries: 1}}
  three: {runner: *run, heartbeat: {<<: [*late, *base]}}
"""


def test_anchors_aliases_and_merges_work(tmp_path: Path) -> None:
    heartbeats = read(tmp_path, ANCHORS).settings.heartbeats
    assert [(name, beat.interval, beat.retries) for name, beat in heartbeats.items()] == [
        ("one", timedelta(minutes=30), 3),
        ("two", timedelta(minutes=30), 1),
        ("three", timedelta(hours=2), 3),
    ]


def test_an_error_in_a_merged_map_points_at_its_line(tmp_path: Path) -> None:
    assert complaints(tmp_path, ANCHORS.replace("interval: 2h", "interval: 2")) == [
        "config.yaml:2:26: agents.three.heartbeat.interval: 2 has no unit; write 90s, 30m or 1h30m"
    ]


def test_an_override_sets_a_value_by_its_path_and_is_listed(tmp_path: Path) -> None:
    loaded = read(
        tmp_path, SMALL, {"HEARTBEATD_SET__agents__ops__heartbeat__interval": "10m", "HEARTBEATD_SET__timezone": "Asia/Tokyo"}
    )
    assert loaded.settings.heartbeats["ops"].interval == timedelta(minutes=10)
    assert loaded.settings.zone.key == "Asia/Tokyo"
    assert loaded.overrides == ("HEARTBEATD_SET__agents__ops__heartbeat__interval", "HEARTBEATD_SET__timezone")


def test_an_override_inside_a_runner_of_which_only_the_kind_is_written_keeps_the_kind(tmp_path: Path) -> None:
    text = SMALL.replace("{kind: command, argv: [cat]}", "claude-code")
    runner = read(tmp_path, text, {"HEARTBEATD_SET__agents__ops__runner__allow": "[Read]"}).settings.heartbeats["ops"].runner
    assert runner.claude.allow == ("Read",)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("limits__concurrency", "many", "limits.concurrency: 'many' is not a whole number; write a number such as 8"),
        ("limits__speed", "5", "limits.speed: unknown key"),
        ("timezone__x", "5", "timezone: is not a map, so nothing inside it can be set"),
        ("agents__opps__heartbeat__interval", "5m", "agents.opps: 'opps' is not a declared agent; did you mean ops?"),
        ("cron__backup__command", "true", "cron.backup: 'backup' is not a declared job; declare it under cron:"),
        ("state", "[", "a value or a closing bracket is missing here"),
        ("", "5", "this is not a path; write HEARTBEATD_SET__defaults__heartbeat__interval"),
    ],
)
def test_an_error_in_an_override_names_the_variable(tmp_path: Path, variable: str, value: str, line: str) -> None:
    name = f"HEARTBEATD_SET__{variable}"
    (found,) = complaints(tmp_path, "timezone: UTC\n" + SMALL, {name: value})
    assert found.startswith("config.yaml: ")
    assert found.endswith(f"({name})")
    assert line in found


def test_an_error_in_an_override_of_a_default_is_one_error_for_all_who_inherit_it(tmp_path: Path) -> None:
    agent, job = "{runner: {kind: command, argv: [cat]}, heartbeat: {interval: 30m}}", "{every: 1h, command: date}"
    text = f"agents: {{ops: {agent}, web: {agent}}}\ncron: {{one: {job}, two: {job}}}\n"
    for path, value in (
        ("heartbeat.timeout", "soon"),
        ("heartbeat.deliver", "nowhere"),
        ("heartbeat.retries", "-1"),
        ("cron.notify", "nowhere"),
    ):
        name = f"HEARTBEATD_SET__defaults__{path.replace('.', '__')}"
        (found,) = complaints(tmp_path, text, {name: value})
        assert found.startswith(f"config.yaml: defaults.{path}")


def test_the_hash_is_of_the_file_and_the_overrides_alone(tmp_path: Path) -> None:
    first = read(tmp_path, SMALL).settings.hash
    assert read(tmp_path, SMALL, {"OTHER": "x"}).settings.hash == first
    assert read(tmp_path, SMALL + "# more\n").settings.hash != first
    assert read(tmp_path, SMALL, {"HEARTBEATD_SET__timezone": "UTC"}).settings.hash != first


@pytest.mark.parametrize(
    ("channels", "deliver", "warned"),
    [
        ("{}", ("log",), True),
        ("{a: {kind: webhook, url: 'http://a'}}", ("a",), False),
        ("{a: {kind: webhook, url: 'http://a'}, b: {kind: webhook, url: 'http://b'}}", ("log",), True),
    ],
)
def test_messages_go_to_the_only_channel_or_to_the_log_with_a_warning(
    tmp_path: Path, channels: str, deliver: tuple[str, ...], warned: bool
) -> None:
    loaded = read(tmp_path, SMALL.replace(", deliver: log", "") + f"channels: {channels}\n")
    assert loaded.settings.heartbeats["ops"].deliver == deliver
    assert [warning.path for warning in loaded.warnings] == (["agents"] if warned else [])


DAILY = '"08:00-22:00"'
SHORT = '["08:00-08:05", "08:10-08:15", "08:20-08:25"]'


@pytest.mark.parametrize(
    ("interval", "hours", "left"),
    [
        ("6h", '"08:00-12:00"', "allow 7 runs a week;"),
        ("23h", DAILY, "allow 7 runs a week;"),
        ("12h", DAILY, "allow 7 to 14 runs a week, depending on when the agent is first seen;"),
        ("1h", SHORT, "allow 7 to 14 runs a week, depending on when the agent is first seen;"),
        ("2d", "{start: '08:00', end: '18:00', days: mon-fri}", "allow 3 runs a week;"),
        ("12h", "{start: '08:00', end: '09:00', days: sat}", "allow 1 run a week;"),
    ],
)
def test_an_interval_that_does_not_fit_the_active_hours_is_a_warning_with_the_runs_a_week(
    tmp_path: Path, interval: str, hours: str, left: str
) -> None:
    (warning,) = read(tmp_path, (BEAT % f"active_hours: {hours}").replace("30m", interval)).warnings
    assert str(warning).endswith(
        f"config.yaml:1:76: agents.ops.heartbeat.interval: {interval} does not fit the active hours, which {left}"
        " change one of them, or write the times with schedule:"
    )


@loop_over(
    ("interval", "hours"),
    [
        ("30m", DAILY),
        ("4h", DAILY),
        ("1d", DAILY),
        ("7d", DAILY),
        ("30d", DAILY),
        ("1d", '["08:00-10:00", "14:00-16:00"]'),
        ("1d", "{start: '08:00', end: '18:00', days: mon-fri}"),
        ("1d", "{start: '08:00', end: '18:00', days: sat}"),
        ("7d", "{start: '08:00', end: '18:00', days: mon-fri}"),
        ("12h", "always"),
    ],
)
def test_an_interval_that_fits_the_hours_is_no_warning(tmp_path: Path, interval: str, hours: str) -> None:
    assert read(tmp_path, (BEAT % f"active_hours: {hours}").replace("30m", interval)).warnings == ()


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            "command: x, problems: {clear_after: 3}",
            "problems.clear_after: only findings end in this way; remove clear_after, or write prompt: TEXT with answer: structured",
        ),
        (
            "prompt: x, agent: ops, problems: {clear_after: 3}",
            "problems.clear_after: only findings end in this way; remove clear_after, or write answer: structured",
        ),
        (
            'command: x, deliver: {to: none, hours: "07:00-22:00"}',
            "deliver.hours: nothing is sent, so hours has no effect; remove it, or write to: CHANNEL",
        ),
        (
            'command: x, problems: {deliver: {to: none, hours: "07:00-22:00"}}',
            "problems.deliver.hours: nothing is sent, so hours has no effect; remove it, or write to: CHANNEL",
        ),
        ("prompt: x, agent: ops, answer: structured, problems: {clear_after: 3}", None),
        ('command: x, deliver: {to: log, hours: "07:00-22:00"}', None),
        ("command: x", None),
    ],
)
def test_a_key_of_a_job_without_an_effect_is_a_warning(tmp_path: Path, keys: str, line: str | None) -> None:
    """Inherited keys may be meant for other jobs."""
    inherited = "defaults: {cron: {problems: {clear_after: 4}}}\n"
    found = read(tmp_path, f"{inherited}{SMALL}cron: {{nightly: {{every: 1h, {keys}}}}}\n").warnings
    assert [f"{each.path}: {each.message}" for each in found] == ([f"cron.nightly.{line}"] if line else [])


def test_the_active_hours_of_a_disabled_agent_are_no_warning(tmp_path: Path) -> None:
    assert read(tmp_path, (BEAT % 'active_hours: "08:00-12:00", enabled: false').replace("30m", "6h")).warnings == ()


def test_a_wake_for_the_next_slot_of_an_agent_without_slots_is_a_warning(tmp_path: Path) -> None:
    beat = "agents: {ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: none, deliver: log}}}\n"
    text = beat + "cron: {a: {every: 1h, wake_heartbeat: ops, wake_mode: next}}\n"
    assert read(tmp_path, text.replace("interval: none", 'schedule: "0 9 * * *"')).warnings == ()
    (warning,) = read(tmp_path, text).warnings
    assert str(warning).endswith(
        "config.yaml:2:55: cron.a.wake_mode: ops has no schedule, so this wake waits until something else wakes the agent; write now"
    )


def test_the_only_channel_gets_the_failures_of_a_job_unless_it_is_for_those_who_write_to_an_agent(tmp_path: Path) -> None:
    text = "channels: {%s}\ncron: {a: {every: 1h, command: x}}\n"
    for channel, expected in (
        ('hook: {kind: webhook, url: "https://example.org/"}', ("hook",)),
        ('chat: "tgram://1:a/{target}"', ("log",)),
    ):
        assert read(tmp_path, text % channel).settings.jobs["a"].problems_deliver == expected


def test_two_agents_without_a_recipient_are_counted_in_one_warning(tmp_path: Path) -> None:
    agent = "{runner: {kind: command, argv: [cat]}, heartbeat: {interval: 30m}}"
    (warning,) = read(tmp_path, f"agents: {{ops: {agent}, web: {agent}}}\n").warnings
    assert warning.message == "no deliver: is given for 2 agents; messages go to the log"


def test_equal_mistakes_of_two_agents_on_a_line_are_two_errors(tmp_path: Path) -> None:
    text = "agents: {ops: {heartbeat: {interval: soon}}, web: {heartbeat: {interval: soon}}}\n"
    paths = [line.split(": ")[1] for line in complaints(tmp_path, text)]
    assert paths == ["agents.ops.heartbeat.interval", "agents.web.heartbeat.interval"]


def test_waking_a_disabled_heartbeat_is_a_warning(tmp_path: Path) -> None:
    agents = (BEAT % "enabled: false").replace(
        "{ops:", "{web: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 1h}}, ops:"
    )
    for woken, place in (("ops", "wake_heartbeat"), ("[web, ops]", "wake_heartbeat[1]")):
        found = [str(each) for each in read(tmp_path, f"{agents}cron: {{a: {{every: 1h, wake_heartbeat: {woken}}}}}\n").warnings]
        assert [
            line for line in found if line.endswith(f"cron.a.{place}: the heartbeat of ops is disabled, so it cannot be woken")
        ]


def test_reboot_is_a_trigger_and_an_argv_stays_a_list(tmp_path: Path) -> None:
    job = read(tmp_path, 'cron: {a: {schedule: "@reboot", command: [echo, "${HOME}"]}}\n').settings.jobs["a"]
    assert (job.reboot, job.schedule, job.command) == (True, None, ("echo", "${HOME}"))


def test_a_config_that_every_user_may_write_is_rejected(tmp_path: Path) -> None:
    read(tmp_path, SMALL)
    file = tmp_path / "config.yaml"
    file.chmod(0o666)
    with pytest.raises(Exception, match=r"everybody may write this file"):
        load_config(file, {})


def test_a_config_that_its_group_may_write_is_a_warning() -> None:
    no_such_group = 2**31 - 2
    found = os.stat_result((0o100664, 0, 0, 1, os.geteuid(), no_such_group, 0, 0, 0, 0))
    complaints = Diagnostics("config.yaml")
    check_owner(found, Path("/srv/a place/config.yaml"), complaints)
    (warning,) = complaints.warnings
    assert "its group may write this file" in str(warning)
    assert str(warning).endswith("do: chmod g-w '/srv/a place/config.yaml'")


def test_a_config_that_the_users_own_group_may_write_is_no_warning(tmp_path: Path) -> None:
    """As on Ubuntu. If the group of the user who runs the tests has other members, the warning is correct."""
    read(tmp_path, SMALL)
    file = tmp_path / "config.yaml"
    file.chmod(0o664)
    assert bool(load_config(file, {}).warnings) == others_may(file.stat(), MAY_WRITE)


def test_a_folder_in_which_every_user_can_replace_the_config_is_rejected(tmp_path: Path) -> None:
    read(tmp_path, SMALL)
    tmp_path.chmod(0o777)
    with pytest.raises(Exception, match=r"everybody may write .*, the folder of this file") as refused:
        load_config(tmp_path / "config.yaml", {})
    assert str(refused.value).endswith(f"do: chmod o-w {shlex.quote(str(tmp_path))}")
    tmp_path.chmod(0o1777)  # as /tmp: its users cannot replace each other's files
    load_config(tmp_path / "config.yaml", {})


def test_a_linked_folder_in_which_every_user_can_replace_the_config_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    read(tmp_path / "open", SMALL)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "config.yaml").symlink_to("open/config.yaml")
    with pytest.raises(Exception, match=r"everybody may write .*/open, the folder of this file"):
        load_config(tmp_path / "config.yaml", {})


def test_a_folder_that_members_of_its_group_may_write_is_a_warning_unless_the_group_is_the_users_own(tmp_path: Path) -> None:
    read(tmp_path, SMALL)
    tmp_path.chmod(0o770)
    warnings = [str(warning) for warning in load_config(tmp_path / "config.yaml", {}).warnings]
    assert any("its group may write" in warning for warning in warnings) is others_may(tmp_path.stat(), MAY_WRITE)


def test_a_pipe_is_rejected_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml", 0o600)
    with pytest.raises(Exception, match="not a regular file"):
        load_config(tmp_path / "config.yaml", {})


@loop_over(
    ("text", "state"),
    [
        ("state: db/x.db\n", "db/x.db"),
        ('state: "db/x.db" # here\nagents: [', "db/x.db"),
        ("agents: [\nstate: 'a b.db'\r\n", "a b.db"),
        ("agents:\n  state: no.db\n", "state/heartbeatd.db"),
        ('"state": "x.db"\nagents: {', "x.db"),
        ("x-text: {\nstate : x#y's.db   # here\n", "x#y's.db"),
        ('state: "a\\0b"', "state/heartbeatd.db"),
        ("state: {a: b}", "state/heartbeatd.db"),
        ("- state: no.db\n", "state/heartbeatd.db"),
        ("x-text: {\n  state: no.db\n", "state/heartbeatd.db"),
        ("", "state/heartbeatd.db"),
    ],
)
def test_the_database_is_found_in_an_invalid_config(tmp_path: Path, text: str, state: str) -> None:
    (tmp_path / "config.yaml").write_text(text, newline="")
    assert read_state_path(tmp_path / "config.yaml") == tmp_path / state


OPS = '{"runner": {"kind": "command", "argv": ["cat"]}, "heartbeat": {"interval": "30m", "deliver": "log"}}'


@loop_over(
    "text",
    [
        "\ufeffstate: x/h.db\nagents: {ops: AGENT}\n",
        "agents: {ops: AGENT}\nstate: x/it's.db\n",
        "agents: {ops: AGENT}\r\n'state' : 'x/h.db'\r\n",
        "state: x/a\u0085b.db\nagents: {ops: AGENT}\n",
        "state: x/h.db # here\nagents: {ops: AGENT}\n",
        "agents: {ops: AGENT}\nx-state: no.db\nx-more: {state: no.db}\n",
        "agents: {\nstate: AGENT}\n",
        '{"agents": {"ops": AGENT}, "state": "x/h.db"}',
        '{\n  "agents": {"ops": AGENT},\n  "state": "x/h.db"\n}\n',
    ],
)
def test_the_commands_find_the_database_of_the_daemon(tmp_path: Path, text: str) -> None:
    settings = read(tmp_path, text.replace("AGENT", OPS)).settings
    assert read_state_path(tmp_path / "config.yaml") == settings.state


@loop_over(
    "text",
    [
        "{agents: {ops: AGENT}, state: x/h.db}\n",
        "'state': \"x/\\u0068.db\"\nagents: {ops: AGENT}\n",
        "agents: {ops: AGENT}\nstate: >-\n  x/h.db\n",
        "agents: {ops: AGENT}\nstate: x/a\n  b.db\n",
        "  agents: {ops: AGENT}\n  state: x/h.db\n",
        "agents: {ops: AGENT}\n? state # the database\n: x/h.db\n",
        "agents: {ops: AGENT}\nx-file: &file x/h.db\nstate: *file\n",
        "x-all: &all {state: x/h.db}\nagents: {ops: AGENT}\n<<: *all\n",
        'x-text: "\nstate: no.db\n"\nagents: {ops: AGENT}\n',
    ],
)
def test_a_database_that_the_commands_would_not_find_is_an_error(tmp_path: Path, text: str) -> None:
    (line,) = complaints(tmp_path, text.replace("AGENT", OPS))
    assert line.endswith("write it on one line that begins with state:, as in state: state/heartbeatd.db"), line


def test_an_override_of_the_database_that_is_not_yaml_or_no_path_stops_no_command(tmp_path: Path) -> None:
    assert read_state_path(tmp_path / "config.yaml", {"HEARTBEATD_SET__state": "[x.db"}) == tmp_path / "[x.db"
    assert read_state_path(tmp_path / "config.yaml", {"HEARTBEATD_SET__state": '"a\\0b"'}) == tmp_path / '"a\\0b"'


@pytest.mark.parametrize("text", ["x/h.db", '"x/h.db"', "x/h.db # here"])
def test_the_commands_read_an_override_of_the_database_as_the_daemon_does(tmp_path: Path, text: str) -> None:
    environ = {"HEARTBEATD_SET__state": text}
    assert (
        read_state_path(tmp_path / "config.yaml", environ) == read(tmp_path, SMALL, environ).settings.state == tmp_path / "x/h.db"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("agents: {ops: {timezone: Asia/Tokyo}}\n", "UTC"),
        ("timezone: Europe/Berlin\nagents: [", "Europe/Berlin"),
        ("agents: [\ntimezone: Europe/Berlin\n", "Europe/Berlin"),
    ],
)
def test_the_commands_find_the_time_zone_in_an_invalid_config(tmp_path: Path, text: str, name: str) -> None:
    write(tmp_path, text)
    assert read_timezone_name(tmp_path / "config.yaml") == name


def test_the_database_is_found_without_a_config(tmp_path: Path) -> None:
    assert read_state_path(tmp_path / "none.yaml") == tmp_path / "state/heartbeatd.db"
    assert read_state_path(tmp_path / "none.yaml", {"HEARTBEATD_SET__state": "x.db"}) == tmp_path / "x.db"


def test_the_config_that_init_writes_is_valid_and_has_no_warning(tmp_path: Path) -> None:
    for path, text in templates.STARTER_FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    loaded = read(tmp_path, (tmp_path / "config.yaml").read_text(), {})
    assert loaded.warnings == ()
    assert (loaded.settings.heartbeats["assistant"].workspace / "HEARTBEAT.md").is_file()
    assert stat.S_IMODE((tmp_path / "config.yaml").stat().st_mode) == 0o644


def test_equal_values_are_shared_between_agents(tmp_path: Path) -> None:
    agents = "".join(f"  a{number}: {{heartbeat: {{active_hours: '08:00-22:00'}}}}\n" for number in range(3))
    text = "defaults: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 1h, deliver: log}}\nagents:\n" + agents
    first, second, _ = read(tmp_path, text).settings.heartbeats.values()
    assert first.hours is second.hours
    assert first.zone is second.zone


def test_two_thousand_agents_load_in_less_than_a_millisecond_each(tmp_path: Path) -> None:
    agent = (
        "  agent-{n}:\n    workspace: agents/a{n}\n    model: m\n    runner: {{kind: command, argv: [cat]}}\n    heartbeat:\n"
        '      interval: 30m\n      active_hours: "08:00-22:00"\n      retries: 3\n      deliver: log\n'
    )
    text = "agents:\n" + "".join(agent.format(n=number) for number in range(2000))
    began = time.process_time()
    assert len(read(tmp_path, text, ENVIRON).settings.heartbeats) == 2000
    assert time.process_time() - began < 2


RESTING = """\
timezone: Asia/Tokyo
calendars: {holidays: {dates: [2026-12-25]}, weekend: {days: sat-sun}}
defaults:
  runner: {kind: command, argv: [cat]}
  heartbeat: {interval: 1h, deliver: log, skip_on: holidays}
  cron: {command: x, only_on: [weekend, holidays]}
agents:
  heir: {}
  always: {heartbeat: {skip_on: none}}
  both: {heartbeat: {skip_on: [holidays, weekend]}}
  berlin: {heartbeat: {active_hours: {start: "08:00", end: "22:00", timezone: Europe/Berlin}}}
cron:
  heir: {every: 1h}
  london: {every: 1h, timezone: Europe/London, skip_on: weekend, only_on: []}
"""


def test_calendars_can_be_inherited_and_disabled_and_use_the_zone_of_the_entry(tmp_path: Path) -> None:
    settings = read(tmp_path, RESTING).settings
    heartbeats, jobs = settings.heartbeats, settings.jobs
    assert {name: beat.calendars.key() for name, beat in heartbeats.items() if not beat.calendars.always} == {
        "heir": "Asia/Tokyo skip:2026-12-25..2026-12-25",
        "both": "Asia/Tokyo skip:2026-12-25..2026-12-25,sat,sun",
        "berlin": "Europe/Berlin skip:2026-12-25..2026-12-25",
    }
    assert jobs["heir"].calendars.key() == "Asia/Tokyo skip: only:2026-12-25..2026-12-25,sat,sun"
    assert jobs["london"].calendars.key() == "Europe/London skip:sat,sun"


def test_a_jobs_own_one_time_schedule_replaces_an_inherited_interval(tmp_path: Path) -> None:
    text = "defaults: {cron: {every: 6h, command: x}}\ncron: {a: {at: '2026-12-24T18:00'}, b: {}}\n"
    jobs = read(tmp_path, text).settings.jobs
    assert (jobs["a"].every, jobs["b"].at) == (None, None)
    assert jobs["a"].at is not None
    assert jobs["a"].grace == timedelta(hours=1)


def test_the_names_of_the_server_and_its_public_address_are_both_accepted(tmp_path: Path) -> None:
    server = read(tmp_path, SMALL + 'server: {hosts: [a.example], public_url: "https://b.example:8443/beat/"}\n').settings.server
    assert (server.hosts, server.public_url) == (("a.example", "b.example:8443"), "https://b.example:8443/beat")


def test_a_proxy_and_a_certificate_authority_are_both_used(tmp_path: Path) -> None:
    yaml = f'{SMALL}network: {{proxy: "http://proxy.example:3128", ca_file: "{CERTIFICATE}"}}\n'
    network = read(tmp_path, yaml).settings.network
    assert isinstance(network.proxy, Secret)
    assert (network.proxy.reveal(), network.ca_file) == ("http://proxy.example:3128", CERTIFICATE)


def test_a_token_for_no_agent_is_not_one_for_all(tmp_path: Path) -> None:
    yaml = f'{SMALL}server: {{tokens: {{bot: {{value: "{TOKEN}", may: [read], agents: []}}}}}}\n'
    (token,) = read(tmp_path, yaml).settings.server.tokens
    assert token.agents == frozenset()
