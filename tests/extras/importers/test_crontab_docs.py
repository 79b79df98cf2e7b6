"""docs/crontab.md: its example is what the import makes of it."""

from __future__ import annotations

import pwd
import re

from checkout import HOME

from cron import crontab_reader
from scheduler.config.file.text_editing import add_entries
from scheduler.config.keys import time_zones
from scheduler.extras.importers import convert_crontab

PAGE = (HOME / "docs" / "crontab.md").read_text("utf-8")


def shown(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_example_of_the_page_is_the_result_of_the_import() -> None:
    found = crontab_reader.read_crontab(shown("crontab"), time_zones.find_zone("Europe/Berlin"), time_zones.find_zone)
    entries = convert_crontab.build_new_jobs(found.lines, pwd.struct_passwd(("deploy", "", 0, 0, "", "/home/deploy", "")), ())
    assert add_entries("", "cron", entries) == shown("yaml")
    lines = shown("text").splitlines()
    assert lines[0] == f"crontab:{found.errors[0].number}: {found.errors[0].text}"
    assert lines[1] == f"hint: line {found.hints[0].number}: {found.hints[0].text}"
