"""Builds the model providers and the prices of models, and reports those that are missing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import get_args
from urllib.parse import urlsplit

from heartbeat.runners.redaction import reveal_secret
from heartbeat.spec import Provider, ProviderKind
from heartbeatd.secret import Secret
from scheduler.config.file.marked_yaml import printable_key
from scheduler.config.keys import models
from scheduler.config.settings.config_node import ConfigNode, build_spec
from scheduler.config.settings.listed_prices import CACHE_WRITE, CACHE_WRITE_1H, find_listed_price
from scheduler.config.settings.secrets import UnsetSecret
from scheduler.model.budget import Price, find_price, price_key

ANTHROPIC = Provider("anthropic", "anthropic", None, None)  # usable without a declaration, but without a key

_KIND_OF_NAME: Mapping[str, ProviderKind] = {kind: kind for kind in get_args(ProviderKind)}
_MISSING_KIND = "is missing; write kind: openai or kind: anthropic, because the name is neither"

_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*")


class Providers:
    """The providers by name, and where enabled entries use them: an unset secret is an error only in a provider that is used."""

    def __init__(self, parts: Mapping[str, models.Provider], node: ConfigNode) -> None:
        self._parts = parts
        self._spot = node
        self._unset: list[tuple[str, str, str]] = []
        self._used_at: dict[str, tuple[ConfigNode, tuple[str, ...]]] = {}
        self._known = {name: self._build_provider(name, part) for name, part in parts.items()}

    def find_provider(self, name: str, node: ConfigNode, *inside: str) -> Provider | None:
        """The provider of this name; None after an error at `inside`."""
        if node.used:
            self._used_at.setdefault(name, (node, inside))
        if name in self._known:
            return self._known[name]
        if name == ANTHROPIC.name:
            return ANTHROPIC
        if name in self._spot.merged:
            return None  # it is declared, and has errors of its own
        if name == "openai":
            node.add_error(f"no provider openai is declared; write {_declaration_example(name, 'openai')}", *inside)
        else:
            node.check_declared((name,), self._parts, "provider", *inside)
        return None

    def report_problems(self) -> None:
        """Report what the used providers lack, once all agents are built."""
        for name, key, problem in self._unset:
            say = self._spot.add_error if name in self._used_at else self._spot.add_warning
            say(problem, name, key)
        for name, (node, inside) in self._used_at.items():
            if name in self._parts:
                self._warn_without_key(name, self._parts[name])
            elif name == ANTHROPIC.name:
                node.add_warning(
                    f"there is no key for anthropic, so its runs fail; write {_declaration_example(name, 'anthropic')}", *inside
                )

    def _warn_without_key(self, name: str, part: models.Provider) -> None:
        provider = self._known[name]
        if part.api_key is None and provider and (provider.kind == "anthropic" or part.base_url is None):
            self._spot.add_warning(f"has no key, so its runs fail; write {_key_example(provider.kind)}", name)

    def _build_provider(self, name: str, part: models.Provider) -> Provider | None:
        kind = part.kind or _KIND_OF_NAME.get(name)
        if kind is None:
            self._spot.add_error(_MISSING_KIND, name, missing="kind")
            return None
        key, url = self._resolve_secret(name, "api_key", part.api_key), self._resolve_secret(name, "base_url", part.base_url)
        node = self._spot.below(name)
        _check_provider(kind, key, url, node)
        node.warn_of_plain_secret(part.api_key, "api_key")
        return Provider(name, kind, key, url)

    def _resolve_secret(self, name: str, key: str, text: str | None) -> Secret | None:
        if text is None:
            return None
        try:
            return self._spot.context.secrets.resolve_references(text)
        except UnsetSecret as unset:
            self._unset.append((name, key, str(unset)))
        except ValueError as wrong:
            self._spot.add_error(str(wrong), name, key)
        return None


def _check_provider(kind: ProviderKind, key: Secret | None, url: Secret | None, node: ConfigNode) -> None:
    if key and key.is_checked and not all("!" <= character <= "~" for character in key.reveal()):
        node.add_error("a key is sent in a header; use only ASCII letters, digits and punctuation, no spaces", "api_key")
    if not node.check_address(url, "base_url") or (url and not url.is_checked):
        return
    login = urlsplit(url.reveal()) if url else None
    if login and key and (login.username or login.password):
        problem = "this address contains a login and api_key is set too, but only one of them can be sent"
        node.add_error(f"{problem}; keep one of them", "base_url")
    elif url and kind == "anthropic" and url.reveal().rstrip("/").endswith("/v1"):
        node.add_warning("/v1/messages is added to this address; remove the /v1 at its end", "base_url")


def _key_example(kind: ProviderKind) -> str:
    return f'api_key: "${{{kind.upper()}_API_KEY}}"'


def _declaration_example(name: str, kind: ProviderKind) -> str:
    return f"providers: {{{name}: {{{_key_example(kind)}}}}}"


class Prices:
    """The prices by model or PROVIDER/MODEL: those of the config, and the listed ones of other models, each at its provider.

    Another provider may have a model of the same name at another price, such as a local server. A model without a price is
    reported once for each provider, where it is first used.
    """

    def __init__(self, parts: Mapping[str, models.Price]) -> None:
        self.by_model = {model: _build_price(part) for model, part in parts.items()}
        self._reported: set[str] = set()

    def check_price(self, model: str, provider: Provider, node: ConfigNode, *inside: str) -> None:
        """Look up the price of a model, if it is used. Warn at `inside` if it has none."""
        key = price_key(provider.name, model)
        if not node.used or find_price(self.by_model, provider.name, model) or key in self._reported:
            return
        # None also for an address with a reference that is not resolved.
        url = (reveal_secret(provider.base_url) or None) if provider.base_url else None
        listed = find_listed_price(model, provider.kind, url)
        if listed is not None:
            self.by_model[key] = listed
            return
        self._reported.add(key)
        advice = f"this model has no price, so its cost is not counted; write {price_line(model)}, in USD per million tokens"
        node.add_warning(advice, *inside)


def price_line(model: str) -> str:
    """The line that sets a price for the model, with example numbers."""
    key = model if _PLAIN_KEY.fullmatch(model) else json.dumps(printable_key(model), ensure_ascii=False)
    return f"prices: {{{key}: {{input: 1.0, output: 5.0}}}}"


def _build_price(part: models.Price) -> Price:
    return build_spec(
        part,
        Price,
        cache_read=part.input if part.cache_read is None else part.cache_read,
        cache_write=part.input * CACHE_WRITE if part.cache_write is None else part.cache_write,
        cache_write_1h=part.input * CACHE_WRITE_1H if part.cache_write_1h is None else part.cache_write_1h,
    )
