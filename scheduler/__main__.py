"""The command `heartbeatd`, also as `python -m scheduler`: checks the installation, then runs the command line."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

INSTALL_FOLDER = Path(__file__).resolve().parents[1]
PACKAGES = ("scheduler", "heartbeat", "cron")  # a published library of another purpose installs a `scheduler/` too
OWN_ENVIRONMENT = "install heartbeatd in an environment of its own, and run it from another folder"

ENOUGH_MIB = 512  # MiB of address space: enough for a daemon with a model runner
TOO_LITTLE_MIB = 64  # MiB in which not all modules can be imported: there, any error may come from a failed allocation

# What the interpreter and the loader of libraries write when they get no memory, in errors that are not MemoryError.
MEMORY_ERROR_WORDS = (
    "can't start new thread",
    "failed to map segment",
    "cannot allocate memory",
    "unable to allocate",
    "without exception set",
)


def main() -> int:
    """Run the command line of this process, and return its exit code."""
    _open_missing_streams()
    stray = find_stray_package()
    if stray:
        print(f"heartbeatd: {stray}", file=sys.stderr)  # noqa: T201 (no other module of heartbeatd can be trusted to exist)
        return 1
    try:
        gc.disable()  # modules stay: searching their objects for garbage would be a tenth of the CPU time of `status --help`
        from scheduler.cli import main as command_line  # only after the check it is certain that this package is ours

        gc.freeze()
        gc.enable()
        return command_line.main()
    except Exception as error:
        message = describe_memory_shortage(error)
        if message is None:
            raise
        # Without memory, the interpreter may fail even to leave this function, and print a page about that. So nothing is
        # buffered, and the process ends here.
        os.write(2, f"heartbeatd: {message}\n".encode())
        os._exit(1)


def _open_missing_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed. Otherwise another file would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 (it stays open)


def find_stray_package(locate: Callable[[str], Path | None] | None = None) -> str | None:
    """A sentence about the first of our packages that Python finds outside this installation; None if there is none."""
    locate = locate or _locate_package
    for package in PACKAGES:
        found = locate(package)
        if found is None:
            return f"the package {package}/ is missing next to {INSTALL_FOLDER / 'scheduler'}; {OWN_ENVIRONMENT}"
        if found != INSTALL_FOLDER:
            return (
                f"the package {package}/ comes from {found}, not {INSTALL_FOLDER}: another library has its name;"
                f" {OWN_ENVIRONMENT}"
            )
    return None


def _locate_package(package: str) -> Path | None:
    """The folder in which Python finds a package. The package is not imported."""
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]).resolve().parent if places else None


def describe_memory_shortage(error: BaseException) -> str | None:
    """One sentence about an error that means that the process gets no more memory; None for any other error."""
    if not _is_memory_shortage(error):
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return "there is not enough memory; end other programs, or give this one more"
    return (
        f"there is not enough memory: its address space is limited to {most // 1024**2} MiB;"
        f" allow {ENOUGH_MIB} MiB (ulimit -v {ENOUGH_MIB * 1024}) or more"
    )


def _is_memory_shortage(error: BaseException) -> bool:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if isinstance(error, MemoryError) or (isinstance(error, Exception) and 0 <= most < TOO_LITTLE_MIB * 1024**2):
        return True
    text = str(error).lower()
    return isinstance(error, ImportError | RuntimeError | OSError | SystemError) and any(
        words in text for words in MEMORY_ERROR_WORDS
    )


if __name__ == "__main__":
    sys.exit(main())
