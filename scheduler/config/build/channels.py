"""The channels as the config declares them: which transport each URL is for, and whether it can be used."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scheduler.channels import address, limits
from scheduler.config.build.config_node import ConfigNode
from scheduler.config.file.remedies import InvalidValue, Remedy, suggest_removal
from scheduler.config.keys import models
from scheduler.config.keys.value_parsers import is_web_address
from scheduler.model.secret import Secret
from scheduler.model.settings import LAST_TARGET, Channel, Transport

LOG_CHANNEL = Channel("log", "log", None, allow_private=False, uncertain="resend")

_OF_SCHEME: Mapping[str, Transport] = {"tgram": "telegram", "discord": "discord", "http": "webhook", "https": "webhook"}
SAMPLE_TARGETS = ("123456789", "someone@example.org", "+15551234567", "#general")  # as services know people; one must fit
_WITH_BASE_URL = ("telegram", "discord")  # kinds whose server may be another


def build_channels(parts: Mapping[str, models.Channel], used: Collection[str], node: ConfigNode) -> dict[str, Channel]:
    """The channels by name, `log` among them; an unset secret is a fault only for those `used`."""
    made = {name: _build_channel(name, part, node, used=name in used) for name, part in parts.items()}
    for name, channel in made.items():
        if channel.needs_target and LAST_TARGET not in used:
            node.add_warning(
                f"its URL holds {address.SLOT}, which only `deliver: last` leads to, and nothing is delivered there", name, "url"
            )
    return {"log": LOG_CHANNEL, **made}


def _build_channel(name: str, part: models.Channel, node: ConfigNode, *, used: bool) -> Channel:
    if part.kind == "command":
        return _build_command_channel(name, part, node)
    if part.argv:
        words = "write kind: command, or remove it"
        other = () if part.url or part.kind else (Remedy(beside=(("kind", "command"),)),)
        first = other or (Remedy(remove=True),)
        node.add_error(InvalidValue("only a command has an argv", *first, advice=words), name, "argv")
    elif part.url is None:
        node.add_error('is missing; write url: "https://..."', name, "url")
    if part.url is None:
        return LOG_CHANNEL  # of no use, for there is a fault
    url = node.resolve_secret(part.url, name, "url", used=used)
    if not node.is_readable(name, "kind"):
        return LOG_CHANNEL
    base = node.resolve_secret(part.base_url, name, "base_url", used=used) if part.base_url else None
    known = url.reveal() if url and not node.context.secrets.is_disabled else ""
    scheme = address.scheme(known or part.url)
    kind = part.kind or _OF_SCHEME.get(scheme, "apprise")
    limit = None
    if known:
        try:
            _check_placeholder(part.url, known)
            limit = _length_limit_of_template(kind, known, said=part.kind is not None)
        except ValueError as error:
            node.add_error(error if isinstance(error, InvalidValue) else str(error), name, "url")
    if part.kind or scheme:  # else the whole URL is a secret that is not looked up, and may be of any kind
        _check_server(name, part, kind, base, node)
    return Channel(name, kind, url, part.allow_private, part.uncertain, base, limit, needs_target=address.SLOT in part.url)


def _check_placeholder(written: str, known: str) -> None:
    """The slot stands in the file: what a reference brings in is not read again."""
    if address.SLOT in known and written.count(address.SLOT) != known.count(address.SLOT):
        raise ValueError(f"{address.SLOT} stands in this file, and not in what a reference brings in; write it here")


def _length_limit_of_template(kind: Transport, url: str, *, said: bool) -> int | None:
    """As `_limit`, for a URL that may leave open whom to tell: somebody must be able to stand there."""
    if address.SLOT not in url:
        return _length_limit(kind, url, said=said)
    address.check_slot(url)
    before = url.partition(address.SLOT)[0]
    if kind == "webhook" and "#" in before:
        raise ValueError(f"what stands behind # is never sent; write {address.SLOT} before it")
    if kind == "discord" and "?" not in before:
        raise ValueError(
            f"a webhook of Discord leaves nothing open but its thread; write discord://ID/TOKEN?thread={address.SLOT}"
        )
    fault = ValueError()
    for somebody in SAMPLE_TARGETS:
        try:
            return _length_limit(kind, address.fill(url, somebody), said=said)
        except ValueError as error:
            fault = error
    raise fault


def _build_command_channel(name: str, part: models.Channel, node: ConfigNode) -> Channel:
    for key, is_written in (("url", part.url), ("base_url", part.base_url), ("allow_private", part.allow_private)):
        if is_written:
            node.add_error(suggest_removal("a command is started and not called at an address", f"remove {key}"), name, key)
    if not part.argv:
        node.add_error("is missing; write argv: [program, argument]", name, "argv")
    return Channel(
        name, "command", None, allow_private=False, uncertain=part.uncertain, argv=part.argv, folder=node.context.folder
    )


def _length_limit(kind: Transport, url: str, *, said: bool) -> int | None:
    """How long a message may be. ValueError, which shows at most the scheme, for a URL that is not of this kind."""
    if kind == "telegram":
        address.bot(url)
        return limits.TELEGRAM
    if kind == "discord":
        address.hook(url)
        return limits.DISCORD
    if kind == "apprise":
        return _apprise_limit(url)
    if not said:
        raise ValueError('a web address alone does not say what is understood there; write {kind: webhook, url: "https://..."}')
    if not is_web_address(url):
        raise ValueError("this is not the address of a webhook; write http:// or https:// with a host")
    return None


def _apprise_limit(url: str) -> int:
    from scheduler.channels import apprise  # a fifth of a second and 20 MiB, for those who use it alone

    scheme = address.scheme(url)
    if not scheme:
        raise ValueError("this is not a URL; write tgram://TOKEN/CHAT, discord://ID/TOKEN or one of Apprise's")
    try:
        return apprise.limit(url)
    except ValueError as error:
        raise ValueError(f"{scheme}:// leads nowhere: {error}") from None


def _check_server(name: str, part: models.Channel, kind: Transport, base: Secret | None, node: ConfigNode) -> None:
    if part.base_url and kind not in _WITH_BASE_URL:
        words = f"remove it, as {kind} has all in url"
        node.add_error(suggest_removal("only telegram and discord have a base_url", words), name, "base_url")
    elif base and not node.context.secrets.is_disabled and not is_web_address(base.reveal()):
        node.add_error("this is not the address of a server; write http:// or https:// with a host", name, "base_url")
    if part.allow_private and kind == "apprise":
        problem = "Apprise opens its own connections, to private addresses too"
        node.add_error(suggest_removal(problem, "remove allow_private"), name, "allow_private")
