"""The command `heartbeatd`, also as `python -m scheduler`."""

from __future__ import annotations

import sys

from scheduler.cli import guard


def main() -> int:
    """Run the command line of this process; gives its exit code."""
    stray = guard.stray_package()
    if stray:
        print(f"heartbeatd: {stray}", file=sys.stderr)  # noqa: T201 (nothing else of ours can be trusted to be there)
        return 1
    try:
        from scheduler.cli import main as command_line  # only now is it known that this is ours

        return command_line.main()
    except Exception as error:
        shortage = guard.shortage(error)
        if shortage is None:
            raise
        print(f"heartbeatd: {shortage}", file=sys.stderr)  # noqa: T201 (nothing larger may find room)
        return 1


if __name__ == "__main__":
    sys.exit(main())
