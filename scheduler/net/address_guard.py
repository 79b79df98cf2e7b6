"""Decides which addresses messages may be sent to, so that a URL in the config cannot reach a private network by mistake."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from socket import inet_aton

Address = IPv4Address | IPv6Address

NAT64 = IPv6Network("64:ff9b::/96")
IETF_PROTOCOLS = IPv4Network("192.0.0.0/24")  # RFC 6890; newer versions of Python call parts of it global


class AddressRefused(OSError):
    """An address that must not be connected to. The text names the address and the setting that allows it."""


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet. If it embeds an IPv4 address (mapped, 6to4, NAT64), that one decides."""
    inner = _embedded_ipv4(address)
    if isinstance(inner, IPv6Address) and inner.is_site_local:
        return False
    if inner in IETF_PROTOCOLS:
        return False
    return inner.is_global and not (inner.is_multicast or inner.is_reserved or inner.is_unspecified or inner.is_link_local)


def check_host(host: str) -> None:
    """AddressRefused for a host that only the C library reads as an IPv4 address: 2130706433, 0177.0.0.1."""
    try:
        inet_aton(host)
    except OSError:
        return
    try:
        IPv4Address(host)
    except ValueError:
        raise AddressRefused(
            f"{host} is an unusual spelling of an IP address; write it as four decimal numbers, or allow_private: true"
        ) from None


def check_address(host: str, address: str) -> None:
    """AddressRefused if `address`, to which `host` has been resolved, is not public."""
    if not is_public(ip_address(address)):
        raise AddressRefused(f"{host} is the private address {address}; write allow_private: true if that is meant")


def check_literal(host: str) -> None:
    """AddressRefused for a host that is written as a private address; a name passes. Used if a proxy resolves the names."""
    check_host(host)
    try:
        ip_address(host)
    except ValueError:
        return
    check_address(host, host)


def _embedded_ipv4(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
