"""Hands a message to a program: the text on its standard input, the result by its exit code."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from scheduler.channels.channel_kind import ChannelKind, SendContext, prefixed_text
from scheduler.channels.http_post import clean_reason
from scheduler.model.message import DeliveryResult, Message
from scheduler.model.settings import Channel


async def send(channel: Channel, message: Message, context: SendContext) -> DeliveryResult:
    """Hand `message` once to the channel's program, started in its folder.

    No word of the message is ever in `argv`. Variables give its kind, its name, the host and HEARTBEATD_KEY, which is the same
    when a message comes again. Exit 0 means that it was accepted. If the program is ended from outside, the delivery is
    uncertain.
    """
    about = {
        "HEARTBEATD_KEY": message.key,
        "HEARTBEATD_KIND": message.kind,
        "HEARTBEATD_NAME": message.name,
        "HEARTBEATD_HOST": channel.host,
    }
    timeout = timedelta(seconds=context.seconds)
    text = prefixed_text(channel, message).encode(errors="replace")
    process = await context.start(channel.argv, stdin=text, env=about, cwd=channel.folder, timeout=timeout)
    program, error_text = Path(channel.argv[0]).name, clean_reason(process.errors.decode(errors="replace").strip(), ())
    because = f": {error_text}" if error_text else ""
    if process.exit_code is None:
        return DeliveryResult("retry", process.problem or "it was not started, because the daemon is stopping")
    if process.ended_by is not None:
        late = f"did not end within {context.seconds:.0f} s"
        problem = late if process.ended_by == "timeout" else "was ended with the daemon"
        return DeliveryResult("uncertain", f"{program} {problem}{because}")
    if process.problem is None and process.exit_code == 0:
        return DeliveryResult("delivered")
    return DeliveryResult("retry", f"{program} {process.problem or f'ended with exit code {process.exit_code}'}{because}")


KIND = ChannelKind("command", send, runs_program=True)
