"""docs/crontab.md: its example is what the import makes of it."""

from __future__ import annotations

import re
from pathlib import Path

from cron import crontab_reader
from scheduler.config.build import imported
from scheduler.config.file import insert
from scheduler.config.keys import zones

PAGE = (Path(__file__).parent.parent / "docs" / "crontab.md").read_text("utf-8")


def shown(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_example_is_what_the_import_makes_of_it() -> None:
    found = crontab_reader.read(shown("crontab"), zones.zone("Europe/Berlin"), zones.zone)
    entries = imported.entries(found.lines, imported.Account("deploy", "/home/deploy"), ())
    assert insert.section(entries) == shown("yaml")
    said = shown("text").splitlines()
    assert said[0] == f"crontab:{found.faults[0].number}: {found.faults[0].text}"
    assert said[1] == f"hint: line {found.hints[0].number}: {found.hints[0].text}"
