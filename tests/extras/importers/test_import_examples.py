"""Example configs of each system, and what the jobs and heartbeats mean after the import: times, recipient and conditions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from checkout import DATA
from imported import Imported, check, import_example, import_text
from ruamel.yaml import YAML

from scheduler.config.settings.load import LoadedConfig
from scheduler.extras.importers import foreign_system
from scheduler.model import entry_schedule

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)  # a Sunday
EXPECTED = DATA / "import_examples"
CONDITIONS = (
    "checklist",
    "precheck",
    "ok_match",
    "previous",
    "ack_max_chars",
    "skip_on",
    "only_on",
    "wake_mode",
    "model",
    "show_ok",
    "show_alerts",
)


def describe(imported: Imported) -> Iterator[tuple[str, str]]:
    """One line for each heartbeat and job of an imported config, and for each that was left out."""
    loaded = check(imported)
    for name, agent in imported.data["agents"].items():
        if agent["heartbeat"]["interval"] != "none":
            yield f"agents.{name}", _describe_heartbeat(imported, name, agent["heartbeat"])
    for name, job in imported.data.get("cron", {}).items():
        yield f"cron.{name}", _describe_job(imported, loaded, name, job)
    for changed in imported.draft.receipt.changed_meanings:
        if not changed.entry:
            yield changed.place, f"left out: {'; '.join(changed.reasons)}"
        elif (
            changed.entry.startswith("agents.") and imported.data["agents"][changed.entry[7:]]["heartbeat"]["interval"] == "none"
        ):
            yield changed.entry, f"off: {'; '.join(changed.reasons)}"


def _describe_heartbeat(imported: Imported, name: str, beat: dict[str, Any]) -> str:
    if off := _why_off(imported, f"agents.{name}", beat):
        return off
    if beat["interval"] == "0m":
        return "off there too"
    hours = beat.get("active_hours")
    if isinstance(hours, dict):
        hours = f"{hours['start']}-{hours['end']} {hours['timezone']}"
    elif hours:
        hours = f"{hours} {beat['timezone']}"
    when = f"every {beat['interval']}" + (f" {hours}" if hours else "")
    return " | ".join((when, _target(imported, beat), *_conditions(beat)))


def _describe_job(imported: Imported, loaded: LoadedConfig, name: str, job: dict[str, Any]) -> str:
    if off := _why_off(imported, f"cron.{name}", job):
        return off
    schedule = entry_schedule.parse_schedule(entry_schedule.job_schedule_text(loaded.settings.jobs[name]), NOW)
    times, after = [], NOW
    while len(times) < 3 and (slot := schedule.next(after)):
        times.append(f"{slot:%m-%d %H:%M}" if slot.year == NOW.year else f"{slot:%Y-%m-%d %H:%M}")
        after = slot
    wakes = [f"wakes {job['wake_heartbeat']}"] if "wake_heartbeat" in job else []
    return " | ".join((", ".join(times), _target(imported, job), *wakes, *_conditions(job)))


def _why_off(imported: Imported, entry: str, keys: dict[str, Any]) -> str:
    if keys.get("enabled", True):
        return ""
    reasons = [why for each in imported.draft.receipt.changed_meanings if each.entry == entry for why in each.reasons]
    return f"off: {'; '.join(reasons)}" if reasons else "off there too"


def _target(imported: Imported, keys: dict[str, Any]) -> str:
    """The recipients, with the values of the files in place of the variables: telegram:4711 by channels.telegram.botToken."""
    names = keys.get("deliver", "none")
    return "to " + " and ".join(_recipient(imported, name) for name in ([names] if isinstance(names, str) else names))


def _recipient(imported: Imported, name: str) -> str:
    url = imported.data.get("channels", {}).get("telegram" if name == "last" else name, {}).get("url", "")
    keys = [key for variable, key in imported.draft.variables.items() if f"${{{variable}}}" in url]
    chat = f"{name} " if name == "last" else f"telegram:{url.rpartition('/')[2]} " if url.startswith("tgram:") else f"{name} "
    return f"{chat}by {keys[0]}" if keys else name


def _conditions(keys: dict[str, Any]) -> list[str]:
    found = {key: keys[key] for key in CONDITIONS if key in keys and "\n" not in str(keys[key])}
    return [f"{key} {value['command'] if key == 'precheck' else value}" for key, value in found.items()]


def examples(system: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = YAML(typ="safe", pure=True).load((EXPECTED / f"{system}.yaml").read_text("utf-8"))
    return found


@pytest.mark.parametrize("system", foreign_system.SYSTEM_NAMES)
def test_each_job_does_what_it_did_before_or_is_off_with_a_reason(system: str) -> None:
    listed = examples(system)
    assert len(listed) >= 6
    for example in listed:
        files = {name.replace(".", "__"): text for name, text in example.get("files", {}).items()}
        imported = import_text(system, **files) if files else import_example(system)
        assert sorted(f"{name}: {line}" for name, line in describe(imported)) == sorted(example["becomes"]), example["about"]
