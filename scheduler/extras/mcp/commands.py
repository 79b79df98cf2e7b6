"""The command `mcp`, with its options and help."""

from __future__ import annotations

from pathlib import Path

import click

from scheduler.cli import options
from scheduler.cli.commands import command


@command("scheduler.extras.mcp.mcp_stdio:serve_tools")
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), help="A file with the token to use.")
@options.config_option
def mcp() -> None:
    """Run an MCP server on stdin and stdout, through which an agent can use the daemon.

    The tools have the permissions of the token in --token-file or in $HEARTBEATD_TOKEN. Without either, they have all
    permissions of the user who runs the command. `heartbeatd docs agents` shows the lines to add to the config of an agent.
    """
