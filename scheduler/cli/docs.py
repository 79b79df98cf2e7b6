"""The command `docs`: prints the pages of the documentation."""

from __future__ import annotations

from pathlib import PurePosixPath

import click

from scheduler.cli.options import InputError
from scheduler.cli.output import format_table
from scheduler.cli.shipped_files import list_files, read_text
from scheduler.config.file.message_parts import did_you_mean

FURTHER_PAGES = {"readme": "README.md", "changes": "CHANGELOG.md", "grafana": "grafana/README.md"}


@click.command()
@click.argument("topic", required=False)
def docs(topic: str | None) -> None:
    """Print a page of the documentation, or list all pages.

    TOPIC is the name of a page, such as `getting-started`. The pages are Markdown.
    To scroll through a long page, run `heartbeatd docs time | less`.
    """
    pages = {PurePosixPath(path).stem: path for path in list_files("docs") if path.endswith(".md")} | FURTHER_PAGES
    if topic is None:
        click.echo(format_table(("TOPIC", "TITLE"), [(name, _title(path)) for name, path in sorted(pages.items())]))
        return
    name = topic.removesuffix(".md").lower()
    if name not in pages:
        raise InputError(f"there is no page {topic!r}{did_you_mean(name, pages) or '; `heartbeatd docs` lists them'}")
    click.echo(read_text(pages[name]), nl=False)


def _title(path: str) -> str:
    return read_text(path).split("\n", 1)[0].removeprefix("# ")
