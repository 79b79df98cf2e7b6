"""Builds the channels that the config declares, and checks that they can be used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from heartbeatd.secret import Secret
from scheduler.channels import registry
from scheduler.channels.channel_kind import ChannelKind
from scheduler.channels.url_template import PLACEHOLDER, check_placeholder, fill_placeholder, url_scheme
from scheduler.config.keys import models
from scheduler.config.keys.value_types import DEFAULT_PREFIX
from scheduler.config.settings.config_node import ConfigNode, build_spec
from scheduler.config.settings.entry_parts import fold_people
from scheduler.model.settings import LAST_TARGET, LOG_CHANNEL, Channel
from scheduler.system import extras

LEAST_SECRET = 16  # characters
LOG = Channel(LOG_CHANNEL, LOG_CHANNEL, None, allow_private=False, uncertain="resend")

# The keys that only some kinds have: the key, the fact about the kind, and what these kinds do.
FEATURES = (
    ("base_url", "has_base_url", "use base_url"),
    ("secret", "is_signed", "can be signed"),
    ("buttons", "has_buttons", "has buttons"),
    ("people", "has_buttons", "passes answers on"),
)

# Recipients as services write them; one of them must be valid in the URL.
SAMPLE_TARGETS = ("123456789", "someone@example.org", "+15551234567", "#general")


def build_channels(
    parts: Mapping[str, models.Channel], used: Collection[str], host: str, public_url: str | None, node: ConfigNode
) -> dict[str, Channel]:
    """Build all channels by name, including `log`. An unset secret is an error only in the channels that are `used`.

    `host` is the name of this machine in messages. Links in messages begin with `public_url`.
    """
    made = {LOG_CHANNEL: LOG}
    for name, part in parts.items():
        keys = replace(node.below(name), used=name in used)
        channel = _build_channel(name, part, keys)
        if channel is not None:
            made[name] = replace(channel, host=host, public_url=public_url or "")
        if channel and channel.needs_target and LAST_TARGET not in used:
            keys.add_warning(f"its URL contains {PLACEHOLDER}, so only `deliver: last` uses it, and no entry has that", "url")
    return made


def _build_channel(name: str, part: models.Channel, node: ConfigNode) -> Channel | None:
    """The channel; None if it has neither a URL nor a program."""
    runs_program = bool(part.kind) and registry.kind_for(part.kind, "").runs_program
    if runs_program:
        for key in ("url", "base_url", "allow_private"):
            if getattr(part, key):
                node.add_error(f"a command channel has no address; remove {key}", key)
    elif part.argv:
        node.add_error("only channels of kind command use argv; write kind: command, or remove it", "argv")
    elif part.url is None:
        node.add_error('is missing; write url: "https://..."', "url")
    if runs_program and not part.argv:
        node.add_error("is missing; write argv: [program, argument]", "argv")
    if part.url is None and not runs_program:
        return None
    url, base, secret = (
        None if runs_program else node.resolve_secret(text, key)
        for key, text in (("url", part.url), ("base_url", part.base_url), ("secret", part.secret))
    )
    known = url.reveal() if url and url.is_checked else ""
    scheme = url_scheme(known or part.url or "")
    kind = registry.kind_for(part.kind, scheme)
    limit = None
    if PLACEHOLDER in known and known.count(PLACEHOLDER) != (part.url or "").count(PLACEHOLDER):
        # The values of references are not searched for it.
        node.add_error(f"{PLACEHOLDER} must be in this file and not in a referenced value; write it here", "url")
    elif known:
        try:
            limit = _check_url_or_template(kind, known, is_named=part.kind is not None)
        except ValueError as error:
            node.add_error(str(error), "url")
    if part.kind or scheme:  # else the whole URL is a secret that is not looked up, and may be of any kind
        _check_other_keys(part, kind, base, secret, node)
    if not (part.allow_private or kind.own_connections):
        node.warn_of_private_address(base if kind.has_base_url and base else url, "base_url" if base else "url")
    return build_spec(
        part,
        Channel,
        name=name,
        kind=kind.name,
        url=url if secret or not part.secret else None,  # without its secret, nothing is sent
        allow_private=part.allow_private and not runs_program,
        base_url=base,
        limit=limit,
        argv=part.argv if runs_program else (),
        folder=node.context.folder if runs_program else Path(),
        needs_target=PLACEHOLDER in (part.url or ""),
        prefix=("" if kind.names_sender else DEFAULT_PREFIX) if part.prefix is None else part.prefix,
        signing_secret=secret,
        buttons=part.buttons and kind.has_buttons,
        people=fold_people(part.people) if kind.has_buttons else (),
    )


def _check_other_keys(
    part: models.Channel, kind: ChannelKind, base: Secret | None, secret: Secret | None, node: ConfigNode
) -> None:
    """Check the keys that only some kinds of channels have."""
    for key, feature, verb in FEATURES:
        if getattr(part, key) and not getattr(kind, feature) and not (kind.runs_program and key == "base_url"):
            others = " and ".join(each.name for each in registry.KINDS if getattr(each, feature))
            node.add_error(f"only {others} {verb}; remove {key}", key)
    if kind.has_base_url:
        node.check_address(base, "base_url")
    if secret and secret.is_checked and kind.is_signed and len(secret.reveal()) < LEAST_SECRET:
        problem = f"this secret is shorter than {LEAST_SECRET} characters; make one with: openssl rand -hex 32"
        node.add_error(problem, "secret")
    elif kind.is_signed:
        node.warn_of_plain_secret(part.secret, "secret")
    if (part.buttons or part.people) and kind.has_buttons and (missing := extras.describe_missing("listeners", "buttons")):
        node.add_error(missing, "buttons" if part.buttons else "people")
    if part.allow_private and kind.own_connections and not kind.runs_program:
        problem = f"{kind.name.capitalize()} opens its own connections and may always reach private addresses"
        node.add_error(f"{problem}; remove allow_private", "allow_private")


def _check_url_or_template(kind: ChannelKind, url: str, *, is_named: bool) -> int | None:
    """The maximum length of a message. If the URL has a {target}, at least one of the sample targets must fit there.

    ValueError, which shows at most the scheme, for a URL that is not of this kind.
    """
    if PLACEHOLDER not in url:
        return _check_url(kind, url, is_named=is_named)
    check_placeholder(url)
    kind.check_url_before_target(url.partition(PLACEHOLDER)[0])
    problem = ValueError()
    for target in SAMPLE_TARGETS:
        try:
            return _check_url(kind, fill_placeholder(url, target), is_named=is_named)
        except ValueError as error:
            problem = error
    raise problem


def _check_url(kind: ChannelKind, url: str, *, is_named: bool) -> int | None:
    if not is_named and kind.if_not_named is not None:
        raise ValueError(kind.if_not_named)
    if kind is registry.FALLBACK and not url_scheme(url):
        forms = ", ".join(each.url_form for each in registry.kinds_with_own_scheme())
        raise ValueError(f"this is not a URL; write {forms} or an Apprise URL")
    return kind.check_url(url)
