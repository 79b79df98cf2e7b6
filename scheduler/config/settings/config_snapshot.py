"""Makes the copy of a config that the database keeps, with all secrets masked, and loads it again."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

from heartbeat.runners.redaction import Redactor
from heartbeatd.secret import MASK
from heartbeatd.state_folder import config_folder
from scheduler.config.file import marked_yaml, text_editing
from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.marked_yaml import MarkedList, MarkedMap
from scheduler.config.keys.models import keys_with_form, text_keys
from scheduler.config.keys.value_types import SECRET_FORM, SECRETS_FORM
from scheduler.config.settings.config_data import override_steps
from scheduler.config.settings.load import LoadedConfig, load_config
from scheduler.config.settings.secrets import SHORTEST_SECRET, has_only_references, has_reference
from scheduler.model.config_changes import NOT_SET, Override, StoredConfig, shorten_value

KEYS_WITH_LOGIN = frozenset({"base_url", "proxy"})  # of type Secret, but secret only if the URL contains a login or a reference
TEXT_KEYS = frozenset({"command", "argv", "stdin", "prompt", "wake_text", "checklist"})  # free text, which may quote a secret
MAX_QUOTED_SECRETS = 50  # secrets of the file that are searched for in its free texts

_PLACEHOLDER = "${REDACTED}"  # in place of a secret: a reference, so that the copy can be loaded
_URL_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NOT_IN_YAML = re.compile("[\x7f-\x9f\ufeff\ufffe\uffff]")  # characters that JSON allows and YAML does not
_TARGET = "{target}"
# Secrets in commands and prompts, as people write them: a login in a URL, a header, an option.
_SECRET_OPTION = re.compile(r"--?[\w-]*(?:token|secret|password|passwd|api[-_]?key)", re.IGNORECASE)
_QUOTED_SECRET = re.compile(
    r"(?P<before>://|\bbearer\s+|\bbasic\s+|\b[\w-]*(?:token|secret|passw(?:or)?d|api[-_]?key)\b[\"']?\s*[=: ]\s*[\"']?)"
    r"(?P<secret>(?<=://)[^\s/@\"']+(?=@)|(?<!://)[^\s\"'$]{6,})",
    re.IGNORECASE,
)


def store_config(loaded: LoadedConfig, path: Path | None = None) -> StoredConfig:
    """A valid config in the form for the database: its data, not its text, because a comment may quote a secret.

    `path` replaces the path of the file: relative paths in the config are then resolved against its folder.
    """
    masker = SecretMasker(loaded.data.root)
    root = masker.mask_map(loaded.data.root, ())
    file = masker.mask_map(loaded.data.file, ())
    overrides, values = [], {}
    for variable in loaded.overrides:
        way = override_steps(variable)
        before, after = marked_yaml.value_at(file, way), marked_yaml.value_at(root, way)
        overrides.append(Override(variable, marked_yaml.dotted_path(way), _shown_value(before), _shown_value(after)))
        values[variable] = json.dumps(after)
    settings, place = loaded.settings, path or loaded.settings.path
    packed = zlib.compress(json.dumps({"root": root, "overrides": values}).encode(), 1)
    return StoredConfig(
        config_folder(place) / place.name, settings.hash, settings.reload, tuple(overrides), packed, settings.zone.key
    )


def _shown_value(value: object) -> str:
    return NOT_SET if value is None else shorten_value(hide_placeholders(json.dumps(value)))


def load_stored(stored: StoredConfig) -> LoadedConfig:
    """The stored config without its secrets. Raises ConfigError if this version rejects it."""
    text = json.dumps(_read_copy(stored)["root"], ensure_ascii=False)
    content = _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
    return load_config(stored.path, {}, resolve_secrets=False, content=content)


def stored_overrides(stored: StoredConfig) -> dict[str, str]:
    """The overriding values, by variable, with their secrets masked."""
    return dict(_read_copy(stored)["overrides"])


def _read_copy(stored: StoredConfig) -> dict[str, Any]:
    try:
        found: dict[str, object] = json.loads(zlib.decompress(stored.snapshot))
    except (zlib.error, ValueError):  # it is damaged
        return {"root": {}, "overrides": {}}
    return found


def mask_secrets(root: MarkedMap) -> dict[str, object]:
    """The data of a config as plain data for people, with MASK in place of each secret."""
    masked = SecretMasker(root).mask_map(root, ())
    shown: dict[str, object] = json.loads(hide_placeholders(json.dumps(masked)))
    return shown


def mask_text(text: str) -> str:
    """The text of a config with MASK in place of each secret value, with as many lines. Raises UnreadableYaml."""
    root = marked_yaml.parse_yaml(text, Diagnostics(""))
    if not isinstance(root, MarkedMap):
        return text
    masked, redactor = mask_secrets(root), Redactor(_literal_secrets(root))
    for each in sorted(text_editing.list_leaves(text), key=lambda leaf: leaf.start, reverse=True):
        before, after = marked_yaml.value_at(root, each.path), marked_yaml.value_at(masked, each.path)
        if before == after or text.startswith("*", each.start):  # an alias shows nothing of its value
            continue
        written = text[each.start : each.end]
        shown = mask_quoted_secrets(redactor.redact(written))
        if shown == written or after == MASK:
            shown = MASK
        shown += "\n" * (len(written.splitlines()) - len(shown.splitlines()))
        text = text[: each.start] + shown + text[each.end :]
    return "".join(map(redactor.redact, text.splitlines(keepends=True)))


def mask_quoted_secrets(text: str) -> str:
    """A text of the config with MASK in place of what looks like a secret: a login in a URL, a header, an option."""
    return _QUOTED_SECRET.sub(lambda found: found["before"] + MASK, text)


def hide_placeholders(text: str) -> str:
    """The text as people may see it: MASK in place of each masked secret."""
    return text.replace(_PLACEHOLDER, MASK)


def _is_secret_text(path: tuple[str, ...], text: str) -> bool:
    key = path[-1] if path else ""
    if key in KEYS_WITH_LOGIN:
        return "@" in text or has_reference(text)
    return _is_in_secret_map(path) or key in keys_with_form(SECRET_FORM) or (len(path) == 2 and path[0] == "channels")


def _is_in_secret_map(path: tuple[str, ...]) -> bool:
    """Whether the value is in `env` or `headers` of an entry. A shorter path is a key of an entry with such a name."""
    return len(path) >= 4 and path[-2] in keys_with_form(SECRETS_FORM)


def _literal_secrets(root: MarkedMap) -> list[str]:
    """The secrets that are written in the file itself; none if there are too many to search for."""
    texts = ((path, text) for path, text in marked_yaml.texts_in(root, seen=set()) if len(text) >= SHORTEST_SECRET)
    found = {text for path, text in texts if not has_reference(text) and _is_secret_text(path, text)}
    return sorted(found) if len(found) <= MAX_QUOTED_SECRETS else []


class SecretMasker:
    """Replaces the secrets in the data of a config. Maps that are shared by aliases stay shared."""

    def __init__(self, root: MarkedMap) -> None:
        self._redactor = Redactor(_literal_secrets(root))
        self._done: dict[tuple[int, bool, str], Any] = {}

    def mask_map(self, node: MarkedMap, path: tuple[str, ...]) -> MarkedMap:
        """The map with its secrets masked, and without top-level `x-` keys: an anchor in them may be a secret somewhere else.

        The position of the map decides about some values, so it is part of the key.
        """
        place = (id(node), len(path) == 1, path[-1] if path else "")
        if place not in self._done:
            kept = node.items() if path else [(key, value) for key, value in node.items() if not key.startswith("x-")]
            self._done[place] = MarkedMap({key: self._mask_value(value, (*path, key)) for key, value in kept}, node.marks)
        found: MarkedMap = self._done[place]
        return found

    def _mask_value(self, value: object, path: tuple[str, ...]) -> object:
        if isinstance(value, MarkedMap):
            return self.mask_map(value, path)
        if isinstance(value, MarkedList):
            masked = MarkedList()
            options = ["", *map(str, value)]  # a secret may follow the option that takes it
            masked.extend(
                self._mask_secret(item)
                if _SECRET_OPTION.fullmatch(option) and isinstance(item, str)
                else self._mask_value(item, path)
                for option, item in zip(options, value, strict=False)
            )
            masked.marks.extend(value.marks)
            return masked
        if _is_in_secret_map(path):
            return self._mask_secret(str(value)) if value is not None else None
        if not isinstance(value, str):
            return value
        if _is_secret_text(path, value):
            return self._mask_secret(value)
        # A precheck, for example, may be written as its command alone.
        return self._mask_quoted(value) if text_keys().get(path[-1], path[-1]) in TEXT_KEYS else value

    def _mask_secret(self, text: str) -> str:
        """References stay as they are: they name a secret without containing it. The kind of a URL stays too."""
        if not text or has_only_references(text) or text in ("environment", "none"):
            return text
        scheme = _URL_SCHEME.match(text)
        target = f"/{_TARGET}" if scheme and _TARGET in text else ""
        return f"{scheme[0] if scheme else ''}{_PLACEHOLDER}{target}"

    def _mask_quoted(self, text: str) -> str:
        masked = self._redactor.redact(text)
        return _QUOTED_SECRET.sub(lambda found: found["before"] + _PLACEHOLDER, masked)
