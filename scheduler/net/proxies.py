"""Finds the proxy for a request, from the config or the environment."""

from __future__ import annotations

import os
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed lacks it

from scheduler.model.settings import Network

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy")

_variables_at_start = {name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ}


def proxy_for(scheme: str, host: str, port: int, network: Network) -> str | None:
    """The URL of the proxy for a request, which may contain a login; None for a direct request.

    NO_PROXY is read as curl and Python read it: hosts, with or without a port, suffixes of names, and `*`.
    """
    if network.proxy == "none" or proxy_bypass_environment(f"{host}:{port}"):
        return None
    if network.proxy != "environment":
        return network.proxy.reveal()
    found = getproxies_environment().get(scheme)
    return _with_scheme(found) if found else None


def describe_proxies(network: Network) -> str:
    """Which proxies are used, without their logins."""
    if network.proxy == "none":
        return "no proxy (network.proxy: none)"
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    but = f", but not for {exempt}" if exempt else ""
    if network.proxy != "environment":
        return f"through the proxy {host_and_port(network.proxy.reveal())} (network.proxy){but}"
    found = getproxies_environment()
    used = [f"{scheme} through {host_and_port(_with_scheme(found[scheme]))}" for scheme in ("https", "http") if found.get(scheme)]
    return f"{', '.join(used)} (from the environment){but}" if used else "no proxy (the environment sets none)"


def host_and_port(url: str) -> str:
    """The part of a proxy's URL that errors may show."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    return f"{parts.hostname}:{port}" if port else str(parts.hostname)


def set_proxies_for_libraries(network: Network) -> None:
    """Make libraries that open their own connections (Apprise) use the same proxies, by the environment of this process.

    Programs do not get these variables. They get only PATH, HOME and LANG from the daemon's environment.
    """
    wanted = dict(_variables_at_start)
    if network.proxy != "environment":
        exempt = {name: value for name, value in _variables_at_start.items() if name.lower() == "no_proxy"}
        url = None if network.proxy == "none" else network.proxy.reveal()
        wanted = exempt | ({"HTTP_PROXY": url, "HTTPS_PROXY": url} if url else {})
    for name in PROXY_VARIABLES:
        if name in wanted:
            os.environ[name] = wanted[name]
        else:
            os.environ.pop(name, None)


def _with_scheme(text: str) -> str:
    return text if "://" in text else f"http://{text}"
