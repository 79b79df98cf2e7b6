"""Builds the channels that the config declares, and checks that they can be used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from heartbeatd.secret import Secret
from scheduler.channels import registry
from scheduler.channels.channel_kind import ChannelKind
from scheduler.channels.url_template import PLACEHOLDER, check_placeholder, fill_placeholder, is_web_address, url_scheme
from scheduler.config.keys import models
from scheduler.config.keys.value_parsers import DEFAULT_PREFIX
from scheduler.config.settings.config_node import ConfigNode
from scheduler.model.settings import LAST_TARGET, LOG_CHANNEL, Channel

LEAST_SECRET = 16  # characters
LOG = Channel(LOG_CHANNEL, LOG_CHANNEL, None, allow_private=False, uncertain="resend")

# Recipients as services write them; one of them must be valid in the URL.
SAMPLE_TARGETS = ("123456789", "someone@example.org", "+15551234567", "#general")


def build_channels(
    parts: Mapping[str, models.Channel], used: Collection[str], host: str, public_url: str | None, node: ConfigNode
) -> dict[str, Channel]:
    """Build all channels by name, including `log`. An unset secret is an error only in the channels that are `used`.

    `host` is the name of this machine in messages. Links in messages begin with `public_url`.
    """
    made = {name: _build_channel(name, part, host, node, used=name in used) for name, part in parts.items()}
    made = {name: each if each is LOG else replace(each, public_url=public_url or "") for name, each in made.items()}
    for name, part in parts.items():
        if part.links and made[name] is not LOG:
            made[name] = _with_links(made[name], part, node)
    for name, channel in made.items():
        if channel.needs_target and LAST_TARGET not in used:
            node.add_warning(
                f"its URL contains {PLACEHOLDER}, so only `deliver: last` uses it, and no entry has that", name, "url"
            )
    return {LOG_CHANNEL: LOG, **made}


def _build_channel(name: str, part: models.Channel, host: str, node: ConfigNode, *, used: bool) -> Channel:
    if part.kind and registry.kind_for(part.kind, "").runs_program:
        return _build_program_channel(name, part.kind, part, host, node)
    if part.argv:
        node.add_error("only channels of kind command use argv; write kind: command, or remove it", name, "argv")
    elif part.url is None:
        node.add_error('is missing; write url: "https://..."', name, "url")
    if part.url is None:
        return LOG  # not used, because there is an error
    url = node.resolve_secret(part.url, name, "url", used=used)
    base = node.resolve_secret(part.base_url, name, "base_url", used=used) if part.base_url else None
    known = url.reveal() if url and not node.context.secrets.is_disabled else ""
    scheme = url_scheme(known or part.url)
    kind = registry.kind_for(part.kind, scheme)
    limit = None
    if known:
        try:
            _check_placeholder_is_written(part.url, known)
            limit = _check_url_or_template(kind, known, is_named=part.kind is not None)
        except ValueError as error:
            node.add_error(str(error), name, "url")
    secret = node.resolve_secret(part.secret, name, "secret", used=used) if part.secret else None
    if part.kind or scheme:  # else the whole URL is a secret that is not looked up, and may be of any kind
        _check_other_keys(name, part, kind, base, node)
        _check_signature(name, part, kind, secret, node)
        _check_buttons(name, part, kind, node)
    prefix = ("" if kind.names_sender else DEFAULT_PREFIX) if part.prefix is None else part.prefix
    return Channel(
        name,
        kind.name,
        url if secret or not part.secret else None,  # without its secret, nothing is sent
        part.allow_private,
        part.uncertain,
        base,
        limit,
        needs_target=PLACEHOLDER in part.url,
        prefix=prefix,
        host=host,
        signing_secret=secret,
        signature_header=part.signature_header,
        buttons=part.buttons and kind.has_buttons,
    )


def _build_program_channel(name: str, kind: str, part: models.Channel, host: str, node: ConfigNode) -> Channel:
    for key, is_written in (("url", part.url), ("base_url", part.base_url), ("allow_private", part.allow_private)):
        if is_written:
            node.add_error(f"a command channel has no address; remove {key}", name, key)
    if not part.argv:
        node.add_error("is missing; write argv: [program, argument]", name, "argv")
    _check_signature(name, part, registry.kind_for(kind, ""), None, node)
    _check_buttons(name, part, registry.kind_for(kind, ""), node)
    return Channel(
        name,
        kind,
        None,
        allow_private=False,
        uncertain=part.uncertain,
        argv=part.argv,
        folder=node.context.folder,
        prefix=DEFAULT_PREFIX if part.prefix is None else part.prefix,
        host=host,
    )


def _with_links(channel: Channel, part: models.Channel, node: ConfigNode) -> Channel:
    """The channel with links in its messages, if it can have links."""
    if not registry.kind_of(channel).has_links:
        others = " and ".join(each.name for each in registry.KINDS if each.has_links)
        node.add_error(f"only {others} has links; remove links", channel.name, "links")
        return channel
    if not part.secret:
        node.add_error("links are signed; write a secret for this channel", channel.name, "links")
    if not channel.public_url:
        node.add_error('links need the address of the daemon; write server: {public_url: "https://..."}', channel.name, "links")
    return replace(channel, links=True)


def _check_buttons(name: str, part: models.Channel, kind: ChannelKind, node: ConfigNode) -> None:
    if part.buttons and not kind.has_buttons:
        others = " and ".join(each.name for each in registry.KINDS if each.has_buttons)
        node.add_error(f"only {others} has buttons; remove buttons", name, "buttons")


def _check_signature(name: str, part: models.Channel, kind: ChannelKind, secret: Secret | None, node: ConfigNode) -> None:
    if part.secret and not kind.is_signed:
        others = " and ".join(each.name for each in registry.KINDS if each.is_signed)
        node.add_error(f"only {others} can be signed; remove secret", name, "secret")
    elif secret and not node.context.secrets.is_disabled and len(secret.reveal()) < LEAST_SECRET:
        problem = f"this secret is shorter than {LEAST_SECRET} characters; make one with: openssl rand -hex 32"
        node.add_error(problem, name, "secret")
    else:
        node.warn_of_plain_secret(part.secret, name, "secret")


def _check_placeholder_is_written(written: str, known: str) -> None:
    """{target} must be in the file itself, because values of references are not searched for it."""
    if PLACEHOLDER in known and written.count(PLACEHOLDER) != known.count(PLACEHOLDER):
        raise ValueError(f"{PLACEHOLDER} must be in this file and not in a referenced value; write it here")


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


def _check_other_keys(name: str, part: models.Channel, kind: ChannelKind, base: Secret | None, node: ConfigNode) -> None:
    if part.base_url and not kind.has_base_url:
        others = " and ".join(each.name for each in registry.KINDS if each.has_base_url)
        problem, advice = f"only {others} use base_url", f"remove it, because url has the whole address of a {kind.name} channel"
        node.add_error(f"{problem}; {advice}", name, "base_url")
    elif base and not node.context.secrets.is_disabled and not is_web_address(base.reveal()):
        node.add_error("this is not the address of a server; write http:// or https:// with a host", name, "base_url")
    if part.allow_private and kind.own_connections:
        problem = f"{kind.name.capitalize()} opens its own connections and may always reach private addresses"
        node.add_error(f"{problem}; remove allow_private", name, "allow_private")
