"""Whom models can be asked at, as the config declares it, and whether those who are asked can answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args
from urllib.parse import urlsplit

from heartbeat.spec import Provider, ProviderKind
from scheduler.config.build.config_node import Spot
from scheduler.config.build.secrets import Unset, refers
from scheduler.config.file.remedies import Remedy, Wrong
from scheduler.config.keys import models
from scheduler.config.keys.value_parsers import is_web_address
from scheduler.model.secret import Secret

ANTHROPIC = Provider("anthropic", "anthropic", None, None)  # there without being declared, but without a key

_OF_NAME: Mapping[str, ProviderKind] = {kind: kind for kind in get_args(ProviderKind)}
_WHO_IS_NOT_SAID = Wrong(
    "is missing",
    Remedy("openai"),
    Remedy("anthropic"),
    words="write kind: openai or kind: anthropic, as the name is neither",
)


class Providers:
    """The providers by name. Notes who is asked by what is enabled: only there is an unset secret a fault."""

    def __init__(self, parts: Mapping[str, models.Provider], spot: Spot) -> None:
        self._parts = parts
        self._spot = spot
        self._unset: list[tuple[str, str, str]] = []
        self._asked: dict[str, tuple[Spot, tuple[str, ...]]] = {}
        self._known = {name: self._provider(name, part) for name, part in parts.items()}

    def find(self, name: str, spot: Spot, *inside: str, used: bool) -> Provider | None:
        """The provider of that name; None after a fault at `inside`."""
        if used:
            self._asked.setdefault(name, (spot, inside))
        if name in self._known:
            return self._known[name]
        if name == ANTHROPIC.name:
            return ANTHROPIC
        if name in self._spot.written:
            return None  # it is there, and has faults of its own
        if name == "openai":
            spot.fault(f"no provider openai is declared; write {_declared(name, 'openai')}", *inside)
        else:
            spot.known((name,), self._parts, "provider", *inside, several=False)
        return None

    def tell(self) -> None:
        """Complain of what those lack who are asked, once all agents are read."""
        for name, key, problem in self._unset:
            say = self._spot.fault if name in self._asked else self._spot.warn
            say(problem, name, key)
        for name, (spot, inside) in self._asked.items():
            if name in self._parts:
                self._tell_keyless(name, self._parts[name])
            elif name == ANTHROPIC.name:
                spot.warn(f"there is no key for anthropic, so that its runs fail; write {_declared(name, 'anthropic')}", *inside)

    def _tell_keyless(self, name: str, part: models.Provider) -> None:
        provider = self._known[name]
        if part.api_key is None and provider and (provider.kind == "anthropic" or part.base_url is None):
            self._spot.warn(f"has no key, so that its runs fail; write {_key(provider.kind)}", name)

    def _provider(self, name: str, part: models.Provider) -> Provider | None:
        kind = part.kind or _OF_NAME.get(name)
        if kind is None:
            self._spot.missing("kind", _WHO_IS_NOT_SAID, name)
            return None
        key, url = self._secret(name, "api_key", part.api_key), self._secret(name, "base_url", part.base_url)
        if not self._spot.frame.vault.sealed:
            self._check(name, kind, key, url)
        if part.api_key and not refers(part.api_key):
            self._spot.warn(
                "this secret stands in the file itself; better refer to it with ${NAME} or ${file:PATH}", name, "api_key"
            )
        return Provider(name, kind, key, url)

    def _secret(self, name: str, key: str, text: str | None) -> Secret | None:
        if text is None:
            return None
        try:
            return self._spot.frame.vault.fill(text)
        except Unset as unset:
            self._unset.append((name, key, str(unset)))
        except Wrong as wrong:
            self._spot.fault(wrong, name, key)
        return None

    def _check(self, name: str, kind: ProviderKind, key: Secret | None, url: Secret | None) -> None:
        if key and not all("!" <= character <= "~" for character in key.reveal()):
            self._spot.fault("a key is sent in a header: ASCII letters, digits and signs only, no blanks", name, "api_key")
        if url and not is_web_address(url.reveal()):
            self._spot.fault("this is not the address of a server; write http:// or https:// with a host", name, "base_url")
        elif url and key and _has_login(url.reveal()):
            self._spot.fault(
                "this address holds a login, and api_key a key, of which only one can be sent; keep one of them", name, "base_url"
            )
        elif url and kind == "anthropic" and url.reveal().rstrip("/").endswith("/v1"):
            self._spot.warn("/v1/messages is added to this address; remove the /v1 at its end", name, "base_url")


def _has_login(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.username or parts.password)


def _key(kind: ProviderKind) -> str:
    return f'api_key: "${{{kind.upper()}_API_KEY}}"'


def _declared(name: str, kind: ProviderKind) -> str:
    return f"providers: {{{name}: {{{_key(kind)}}}}}"
