"""Generates configs with typical mistakes in a few keys and values of a valid config."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

ENVIRON = {"TOKEN": "0123456789abcdef-canary", "KEY": "k" * 20, "EMPTY": ""}

BASES: tuple[dict[str, Any], ...] = (
    {
        "timezone": "Europe/Berlin",
        "server": {
            "listen": "127.0.0.1:7857",
            "tokens": {"bot": {"value": "${TOKEN}", "may": ["read", "wake"], "agents": ["ops"]}},
        },
        "limits": {"concurrency": 8, "wake_flood": "5 per 10m", "wake_gap": "30s", "min_interval": "5m"},
        "channels": {"hook": {"kind": "webhook", "url": "https://example.org/x"}, "phone": "tgram://1:abc/2"},
        "calendars": {"holidays": {"dates": ["2026-12-25", "2026-12-30..2026-12-31"]}, "weekend": {"days": "sat-sun"}},
        "history": {"keep": "30d", "runs": 1000},
        "defaults": {"agent": {"runner": {"kind": "command", "argv": ["cat"]}}, "heartbeat": {"timeout": "2m"}},
        "agents": {
            "ops": {
                "workspace": "agents/ops",
                "context": ["SOUL.md"],
                "heartbeat": {
                    "interval": "30m",
                    "active_hours": {"start": "08:00", "end": "22:00", "days": "mon-fri"},
                    "retries": 2,
                    "deliver": "hook",
                    "ok_match": "edges",
                    "stagger": "10%",
                    "skip_on": "holidays",
                    "on_failure": {"after": 2, "remind": "6h"},
                },
            },
            "night": {
                "heartbeat": {
                    "schedule": "0 3 * * *",
                    "show_ok": True,
                    "dedup": {"window": "24h"},
                    "deliver": ["hook", "log"],
                    "answer": "text",
                    "conditions": {"remind": "24h", "remind_critical": "6h", "clear_after": 2},
                    "precheck": {"command": "./look", "unchanged": {"skip": True, "max_age": "6h"}, "confirm": 2},
                }
            },
        },
        "cron": {
            "backup": {"schedule": "0 3 * * *", "command": "./backup.sh", "wake_heartbeat": "ops", "wake_on": "failure"},
            "sync": {
                "every": "6h",
                "command": ["rsync", "a", "b"],
                "timezone": "Asia/Tokyo",
                "env": {"A": "b"},
                "deliver": "phone",
            },
            "party": {"at": "2030-12-24T18:00", "command": "x", "timeout": "10m"},
        },
    },
    {
        "providers": {"anthropic": {"api_key": "${KEY}"}, "local": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}},
        "prices": {"claude-haiku-5-5": {"input": 1.0, "output": 5.0}, "tiny": {"input": 0.1, "output": 0.2}},
        "agents": {
            "helper": {
                "model": "claude-haiku-5-5",
                "heartbeat": {
                    "interval": "1h",
                    "max_output_tokens": "2k",
                    "light_context": True,
                    "active_hours": [
                        {"start": "09:00", "end": "12:00"},
                        {"start": "14:00", "end": "18:00", "timezone": "Asia/Tokyo"},
                    ],
                    "budget": {"usd_per_day": 2.0, "runs_per_day": 60},
                    "deliver": "log",
                },
            },
            "cheap": {
                "runner": {"kind": "openai", "provider": "local"},
                "model": "tiny",
                "heartbeat": {"interval": "none", "isolated_session": False, "session_keep": 8, "deliver": "log"},
            },
        },
        "cron": {"ask": {"schedule": "0 9 * * *", "prompt": "Write.", "agent": "helper", "model": "tiny", "budget": "unlimited"}},
    },
)

DURATIONS = ["30", 30, 90, "90 s", "30 min", "1.5h", "1h 30m", "500ms", "2 hours", "PT30M", "1w", "hourly", "soon", "0 9 * * *", "@daily",
             True, None, ["30m"], "1h30", "-5m", 0, 1.5, "30M", "01:30:00", "1 hour and 5 minutes", "0s", "99999d"]  # fmt: skip
TIMES = [8, 800, 0, 24, 480, 1320, 8.5, 8.0, "9:00", "9am", "9:30 pm", "0800", "21h30", "noon", "08:00Z", "08:00+02:00", "8", "08.00",
         "25:00", "08:60", "8:00 Europe/Paris", "08:00:00", "midnight", "later", True, None]  # fmt: skip
ZONES = ["Berlin", "GMT+2", "UTC+5:30", "+02:00", "utc", "CEST", "PST", "Asia/Hanoi", "Mumbai", "Hawaii", "San Francisco", "Europe/Berln", "Germany",
         "USA", "europe/berlin", "Z", "GMT-3", "Europe", "Mars/Base", "Zürich", "New York", 5, None, "UTC+13:45", "IST"]  # fmt: skip
DAYS = [
    "Monday",
    "weekdays",
    "1-5",
    "Mon - Fri",
    "mon,wed",
    ["Monday", "wed"],
    1,
    7,
    "weekend",
    "funday",
    "tues",
    [1, 2],
    "daily",
    [],
]
TRUTHS = ["yes", "no", "on", "off", 1, 0, "True", "maybe", None, "'true'"]
NUMBERS = ["2", "two", 2.0, 99, -1, "02", True, None, 1.5, "1,000", [2]]
TEXTS = [5, True, None, ["x"], {"a": "b"}, "", 1.5]
DATES = [
    "25.12.2026",
    "2026/12/25",
    20261225,
    "Dec 25 2026",
    "2026-02-30",
    "12-25",
    "12/25/2026",
    "2026-12-31..2026-12-24",
    "2026-12-24 - 2026-12-26",
    "xmas",
]
RATES = ["5/10m", "5 in 10 minutes", "5 per hour", 5, "often", "5 per 0m", "0 per 5m", "3x per 10m"]
SHARES = ["10 %", 10, 0.1, "lots", "110%", "2d", "5 percent", "10 min", True, "500ms"]
TOKENS = ["2K", "1.5k", "2,000", "2000 tokens", "lots", 0, "9m", 1.5, "200 k", True]
MONEY = ["$2", "2,50", "2 USD", "lots", -1, True, "0.5", None]
SCHEDULES = [
    "30m",
    "daily",
    "@dayly",
    "08:00",
    "0 3 * *",
    "0 25 * * *",
    "0 3 30 2 *",
    "every 5 minutes",
    "@every 5m",
    "9am",
    5,
    "* * * * * *",
    "@reboot",
    "",
]
MOMENTS = [
    "tomorrow",
    "18:00",
    "25.12.2030 18:00",
    "2030-12-24",
    "2030-02-30T18:00",
    "0 9 * * *",
    "2030-12-24 6pm",
    20301224,
    "2030-12-24T18:00 Europe/Paris",
]
NAMES = ["hok", "hook, log", "Hook", 5, "tgram://1/2", ["hook", "hook"], ["hok"], "nobody", "opss", None, {"a": 1}]
HOURS = [
    "8-22",
    "9am-5pm",
    "08:00 to 22:00",
    "always on",
    "daytime",
    "mon-fri 9-17",
    "24/7",
    8,
    "08:00-08:00",
    "8:00-18:00Z",
    "09:00-17:00 Europe/Paris",
    ["9-12", "14:00-1800"],
    None,
    {"from": "8:00", "to": 22},
]
WORDS = ["Edges", "edge", "failed", "fail", "x", 5]
OF: dict[str, list[Any]] = {
    **dict.fromkeys(("interval", "every", "timeout", "remind", "remind_critical", "max_age", "keep", "window", "wake_gap", "min_interval"), DURATIONS),
    **dict.fromkeys(("start", "end"), TIMES), "timezone": ZONES, "days": DAYS, **dict.fromkeys(("show_ok", "light_context", "isolated_session", "skip"), TRUTHS),
    **dict.fromkeys(("retries", "after", "runs", "concurrency", "runs_per_day", "session_keep", "clear_after", "confirm"), NUMBERS), "dates": DATES, "wake_flood": RATES, "stagger": SHARES,
    "max_output_tokens": TOKENS, **dict.fromkeys(("usd_per_day", "input", "output"), MONEY), "schedule": SCHEDULES, "at": MOMENTS,
    **dict.fromkeys(("deliver", "skip_on", "wake_heartbeat", "agents", "agent", "provider"), NAMES), "active_hours": HOURS,
    **dict.fromkeys(("model", "workspace", "command", "prompt", "url", "value", "api_key", "A", "base_url"), TEXTS), "kind": ["webook", "Command", "comand", "http", "x", None, 5],
    **dict.fromkeys(("ok_match", "wake_on", "answer"), WORDS), "unchanged": ["Skip", "6h", "always", None, 6, ["skip"], {"max_age": 6}], "argv": ["cat", "cat a | wc", [], ["cat", 5], None], "may": ["all", [], ["read", "write"], "Read", 5],
    "budget": ["$2", 2, "none", "Unlimited", "lots", None, []], "on_failure": ["no", False, "none", "x", []], "listen": [7857, ":80", "0.0.0.0:80", "localhost", "http://127.0.0.1:80", ""],
    "context": ["../x", 5, ["a", "a"], ["/etc/passwd"], {}],
}  # fmt: skip
THEIRS = ["every", "cron", "tz", "hours", "notify", "target", "cwd", "cmd", "script", "message", "max_retries", "interval_minutes", "timeout_seconds", "activeHours", "from", "to",
          "weekdays", "key", "url", "type", "jobs", "db", "workers", "llm", "enabled", "interval", "schedule", "timezone", "deliver", "model", "listen", "api_key", "days",
          "command", "prompt", "agents", "retries", "timeout", "grace", "after", "usd_per_day", "stagger", "env", "kind", "workdir", "x",
          "remind", "repeat_interval", "clear_after", "resolve_after", "send_resolved", "max_age", "confirm", "format", "condition", "unchanged"]  # fmt: skip

Slip = Callable[[Random, dict[str, Any]], None]


def config(seed: int) -> str:
    """The text of a config with one to four mistakes, the same for the same seed."""
    random = Random(seed)
    root = deepcopy(random.choice(BASES))
    for _ in range(random.randint(1, 4)):
        random.choice((_value, _value, _value, _letter, _spelling, _theirs, _moved, _lost))(random, root)
    text = "".join(f"{line}\n" for line in _written(root, 0, random))
    return _unquoted(text, random) if random.random() < 0.15 else text


def _maps(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, dict):
        return [node, *(found for value in node.values() for found in _maps(value))]
    return [found for value in node for found in _maps(value)] if isinstance(node, list) else []


def _somewhere(random: Random, root: dict[str, Any]) -> tuple[dict[str, Any], str]:
    places = [(node, key) for node in _maps(root) for key in node]
    return random.choice(places)


def _value(random: Random, root: dict[str, Any]) -> None:
    """Write a value in another notation or as another type."""
    node, key = random.choice([(node, key) for node in _maps(root) for key in node if key in OF])
    node[key] = deepcopy(random.choice(OF[key]))


def _letter(random: Random, root: dict[str, Any]) -> None:
    """Leave out, double or swap a letter of a key."""
    node, key = _somewhere(random, root)
    at = random.randrange(len(key))
    wrong = random.choice(
        (key[:at] + key[at + 1 :], key[:at] + key[at] + key[at:], key[:at] + key[at + 1 : at + 2] + key[at] + key[at + 2 :])
    )
    _rename(node, key, wrong)


def _spelling(random: Random, root: dict[str, Any]) -> None:
    """Write a key in capitals, with dashes or in one word."""
    node, key = _somewhere(random, root)
    _rename(node, key, random.choice((key.upper(), key.replace("_", "-"), key.replace("_", ""), key.title().replace("_", ""))))


def _theirs(random: Random, root: dict[str, Any]) -> None:
    """Use another system's name for a key."""
    node, key = _somewhere(random, root)
    if random.random() < 0.6:
        _rename(node, key, random.choice(THEIRS))
    else:
        node.setdefault(random.choice(THEIRS), deepcopy(node[key]))


def _moved(random: Random, root: dict[str, Any]) -> None:
    """Move a key to the map above or below its own."""
    node, key = _somewhere(random, root)
    above = [other for other in _maps(root) if any(value is node for value in other.values())]
    below = [value for value in node.values() if isinstance(value, dict) and value is not node[key]]
    if above or below:
        random.choice(above + below).setdefault(key, node.pop(key))


def _lost(random: Random, root: dict[str, Any]) -> None:
    """Remove a key."""
    node, key = _somewhere(random, root)
    if len(node) > 1:
        del node[key]


def _rename(node: dict[str, Any], key: str, wrong: str) -> None:
    if wrong and wrong not in node:
        items = [(wrong if name == key else name, value) for name, value in node.items()]
        node.clear()
        node.update(items)


def _written(node: Any, depth: int, random: Random) -> list[str]:
    lines: list[str] = []
    pairs = [(f"{key}:", value) for key, value in node.items()] if isinstance(node, dict) else [("-", value) for value in node]
    for lead, value in pairs:
        blank = "  " * depth
        if isinstance(value, dict | list) and value and (depth < 2 or random.random() < 0.5):
            lines += [f"{blank}{lead}", *_written(value, depth + 1, random)]
        else:
            lines.append(f"{blank}{lead} {json.dumps(value, ensure_ascii=False) if value is not None else '~'}")
    return lines


def _unquoted(text: str, random: Random) -> str:
    """The text without one pair of quotes."""
    lines = text.splitlines(keepends=True)
    numbers = [number for number, line in enumerate(lines) if line.count('"') == 2 and not line.startswith('"')]
    if numbers:
        number = random.choice(numbers)
        lines[number] = lines[number].replace('"', "")
    return "".join(lines)
