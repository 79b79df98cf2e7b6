"""The command `completion`: prints a script that completes commands, options and names in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from scheduler.cli import main

VARIABLE = "_HEARTBEATD_COMPLETE"  # click reads it: the script calls heartbeatd with this variable to get the completions


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and names in a shell.

    Names of agents and jobs are read from the config.

    bash: `heartbeatd completion bash > ~/.local/share/bash-completion/completions/heartbeatd`.
    zsh: `heartbeatd completion zsh > DIR/_heartbeatd`, where DIR is in `fpath`.
    fish: `heartbeatd completion fish > ~/.config/fish/completions/heartbeatd.fish`.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main.commands, {}, "heartbeatd", VARIABLE).source())
