"""A mistake in what was asked for, which its own text says how to mend."""

from __future__ import annotations

from typing import ClassVar

import click


class Mistake(click.ClickException):
    """Told in one line, without a hint at `--help`."""

    exit_code: ClassVar[int] = 2
