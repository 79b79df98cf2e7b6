"""Sends a test message through one channel or all channels."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from scheduler.cli.output import utc_now
from scheduler.config.settings import load
from scheduler.engine import ping_message
from scheduler.model.expected_error import InputError
from scheduler.system import log


def print_tests(name: str | None, path: Path) -> int:
    """Send a test message through the channels, and print each result. Returns 1 if one was not delivered."""
    settings = load.load_config(path, os.environ).settings
    log.set_up_log(sys.stderr)
    try:
        tested = ping_message.send_test_messages(settings, name, utc_now())
    except ValueError as error:
        raise InputError(str(error)) from None
    click.echo(tested.says)
    return int(any(each.state != "delivered" for each in tested.channels))
