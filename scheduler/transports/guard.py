"""The guard: which addresses a message of ours may be sent to, so that a URL of the config leads to nothing within."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from heartbeat.runners.line import Addresses

Address = IPv4Address | IPv6Address

NAT64 = IPv6Network("64:ff9b::/96")


class Refused(Exception):
    """An address that is not to be connected to; the text says which and what would allow it."""


def is_public(address: Address) -> bool:
    """True for an address out in the internet; one that wraps an IPv4 address (mapped, 6to4, NAT64) is judged by that."""
    inner = _unwrapped(address)
    if isinstance(inner, IPv6Address) and inner.is_site_local:
        return False
    return inner.is_global and not (inner.is_multicast or inner.is_reserved or inner.is_unspecified or inner.is_link_local)


def _unwrapped(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def check(host: str, addresses: Addresses) -> None:
    """Refuse the host if any of its addresses is not public, or if it is a number in disguise (decimal, octal, hex)."""
    if _is_disguised(host):
        raise Refused(f"{host} is a number in disguise; write the address with four plain decimal parts, or allow_private: true")
    for *_, address in addresses:
        if not is_public(ip_address(address[0])):
            raise Refused(f"{host} is the private address {address[0]}; write allow_private: true if that is meant")


def _is_disguised(host: str) -> bool:
    """True for what the C library takes for an IPv4 address but nobody else does: 2130706433, 0177.0.0.1, 0x7f.1, 127.1."""
    try:
        socket.inet_aton(host)
    except OSError:
        return False
    return not _is_plain(host)


def _is_plain(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True
