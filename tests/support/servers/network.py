"""Hosts as network namespaces, whose connection to one of them can be cut in several ways. Linux only, as root."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from patience import PATIENCE

CLONE_NEWNET = 0x40000000
HUB = "10.77.0.1"  # the address of this process for all hosts

Cut = Literal["black hole", "reset", "loss to the server", "loss from the server"]


class Network:
    """A router with hosts around it. This process is moved into the namespace of the router, before it starts any thread.

    The first host is the server from which others are cut off. Raises OSError or CalledProcessError where that is not allowed.
    """

    def __init__(self, names: Sequence[str]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network namespaces: run this as root")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1", "ascii")
        _call("ip", "link", "set", "lo", "up")
        _call("ip", "address", "add", f"{HUB}/32", "dev", "lo")
        # The router has the address of the server too, for `reset`. Otherwise packets go to the server itself.
        for each in ("all", "default"):
            Path(f"/proc/sys/net/ipv4/conf/{each}/accept_local").write_text("1", "ascii")
            Path(f"/proc/sys/net/ipv4/conf/{each}/rp_filter").write_text("0", "ascii")
        _call("ip", "rule", "add", "priority", "32000", "lookup", "local")
        _call("ip", "rule", "delete", "priority", "0")
        self._names = list(names)
        self._holders = [subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) for _ in names]
        for number, name in enumerate(names):
            self._connect(number, name)
        server = self.address(names[0])
        _call("ip", "address", "add", f"{server}/32", "dev", "lo")
        _call("ip", "route", "add", server, "dev", "v0", "src", "10.77.1.1", "table", "99")
        _call("ip", "rule", "add", "priority", "200", "to", server, "lookup", "99")
        self._files = {
            str(Path(f"/proc/{each.pid}/ns/net").readlink()): name for each, name in zip(self._holders, names, strict=True)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._holders:
            each.kill()
            each.wait(timeout=PATIENCE)

    def address(self, name: str) -> str:
        """The address of a host."""
        return f"10.77.{self._names.index(name) + 1}.2"

    def host_of(self, text: str) -> str:
        """The name of the host with this address, or with this namespace as /proc shows it."""
        if text in self._files:
            return self._files[text]
        return next(name for name in self._names if self.address(name) == text)

    def prefix(self, name: str) -> list[str]:
        """The arguments before those of a command that runs on a host."""
        return ["nsenter", f"--net=/proc/{self._holders[self._names.index(name)].pid}/ns/net"]

    def cut(self, name: str, how: Cut) -> None:
        """Cut a host off from the server, until `heal`. The host still reaches this process."""
        number, server, host = self._names.index(name), self.address(self._names[0]), self.address(name)
        if how == "reset":  # the router itself answers, and knows no such connection
            _call("ip", "route", "replace", "local", server, "dev", "lo", "table", str(100 + number))
        if how in ("black hole", "loss to the server"):
            _call("ip", "route", "replace", "blackhole", server, "table", str(100 + number))
        if how in ("black hole", "loss from the server"):
            _call("ip", "route", "replace", "blackhole", host, "table", "100")

    def heal(self, name: str) -> None:
        """Connect a host to the server again."""
        subprocess.run(
            ["ip", "route", "flush", "table", str(100 + self._names.index(name))],
            check=False,
            capture_output=True,
            timeout=PATIENCE,
        )
        subprocess.run(
            ["ip", "route", "delete", self.address(name), "table", "100"], check=False, capture_output=True, timeout=PATIENCE
        )

    def _connect(self, number: int, name: str) -> None:
        pid, link = str(self._holders[number].pid), f"v{number}"
        ours = Path("/proc/self/ns/net").readlink()
        deadline = time.monotonic() + PATIENCE
        while Path(f"/proc/{pid}/ns/net").readlink() == ours:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        _call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", pid)
        _call("ip", "address", "add", f"10.77.{number + 1}.1/24", "dev", link)
        _call("ip", "link", "set", link, "up")
        _call("ip", "rule", "add", "priority", str(100 + number), "iif", link, "lookup", str(100 + number))
        for command in (
            ["link", "set", "lo", "up"],
            ["address", "add", f"{self.address(name)}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["route", "add", "default", "via", f"10.77.{number + 1}.1"],
        ):
            _call(*self.prefix(name), "ip", *command)


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
