"""Errors whose text is all that a user needs."""

from __future__ import annotations


class ExpectedError(Exception):
    """An error that says what is wrong and what to do. A command prints it without a traceback and ends with `exit_code`."""

    @property
    def exit_code(self) -> int:
        return 1


class InputError(ExpectedError):
    """Wrong input of a command."""

    @property
    def exit_code(self) -> int:
        return 2
