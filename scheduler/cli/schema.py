"""`schema`: config.yaml's JSON schema, for editors."""

from __future__ import annotations

import json

import click

from scheduler.config.build import load


@click.command()
def schema() -> None:
    """Print the JSON schema of config.yaml.

    An editor's YAML language server completes and checks the file with it.
    """
    click.echo(json.dumps(load.schema(), indent=2))
