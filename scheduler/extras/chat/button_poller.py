"""Polls Telegram for pressed buttons while the daemon runs, and passes them to the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from scheduler.extras.chat import telegram_buttons
from scheduler.extras.chat.buttons import PressButton
from scheduler.extras.chat.replies import ReplyToMessage
from scheduler.extras.chat.telegram_buttons import Bot, Press, Presses, Reply
from scheduler.model.settings import Channel
from scheduler.net.http_client import HttpClient
from scheduler.system.log import log_event
from scheduler.system.process import Children
from scheduler.work.executor import Executor, LocalExecutor, WorkerLoop

FIRST_PAUSE = 5.0  # seconds after a poll that failed; doubled after each further one
LONGEST_PAUSE = 300.0
SHORTEST_POLL = 1.0  # seconds from a request without presses to the next one, for a server that does not wait for presses


@dataclass(frozen=True, slots=True)
class BotCall:
    """A request to a bot: for presses and replies from an offset, or the answer to one of them."""

    bot: Bot
    offset: int = 0
    with_replies: bool = False
    press: Press | Reply | None = None
    text: str = ""


Submit = Callable[[PressButton | ReplyToMessage], Future[object]]  # gives a request to the engine, which answers with a text


@dataclass(slots=True)
class _BotState:
    """A bot that is polled. `channel` is one that has it. `problem` says why the last poll failed.

    `pending` are the answers of the engine to what the last poll found. The next one confirms that it has arrived, so it waits.
    """

    channel: str
    with_replies: bool = False
    pending: list[Future[object]] = field(default_factory=list)
    offset: int = 0
    next_at: float = 0.0
    asked_at: float = 0.0
    pause: float = FIRST_PAUSE
    problem: str = ""


class ButtonPoller:
    """Keeps one request for presses open for each bot with buttons. The engine's thread calls it after each tick.

    A bot has one open request, because Telegram ends the earlier of two.
    """

    def __init__(self, calls: Executor[BotCall, Presses], submit: Submit) -> None:
        self._executor = calls
        self._submit = submit
        self._numbers = count(1)
        self._channels: Mapping[str, Channel] | None = None
        self._bots: dict[Bot, _BotState] = {}

    def poll(self, monotonic: float, channels: Mapping[str, Channel]) -> float | None:
        """Pass on the presses that have arrived, and ask for more. Returns the seconds until the next call; None: no limit."""
        if channels is not self._channels:
            self._adopt_channels(channels)
        # Read before the results, so that a request that ends in between is not sent again before its result is read. It also
        # lists requests of a bot that one reload has removed and a later one has declared again.
        asked = {call.bot for call in self._executor.inflight().values() if call.press is None}
        for number, done in self._executor.results():
            self._executor.ack([number])
            state = self._bots.get(done.task.bot)
            if done.task.press is None and state is not None:
                error = f"{type(done.exception).__name__} while asking for presses"
                self._settle_poll(done.task.bot, state, done.result or Presses(offset=done.task.offset, error=error), monotonic)
        free = [(bot, each) for bot, each in self._bots.items() if bot not in asked and all(one.done() for one in each.pending)]
        for bot, state in free:
            if state.next_at <= monotonic:
                state.asked_at = monotonic
                self._executor.submit(next(self._numbers), BotCall(bot, state.offset, state.with_replies))
        return min((state.next_at - monotonic for _, state in free if state.next_at > monotonic), default=None)

    def _adopt_channels(self, channels: Mapping[str, Channel]) -> None:
        """Poll the bots of these channels from now on. The offset of a bot that stays is kept."""
        self._channels = channels
        used = [each for each in channels.values() if each.can_be_answered]
        used.sort(key=lambda each: not each.allow_private)  # of equal bots, the first is polled
        bots: dict[Bot, str] = {}
        for each in used:
            if bot := telegram_buttons.bot_of(each):
                bots.setdefault(bot, each.name)
        self._bots = {bot: self._bots.get(bot) or _BotState(name) for bot, name in bots.items()}
        for bot, state in self._bots.items():
            state.channel = bots[bot]  # the one that it was found by may be removed
            state.with_replies = any(each.people for each in used if telegram_buttons.bot_of(each) == bot)

    def _settle_poll(self, bot: Bot, state: _BotState, found: Presses, monotonic: float) -> None:
        state.offset = found.offset
        if bool(found.error) != bool(state.problem):
            log_event(logging.WARNING, "buttons", channel=state.channel, problem=found.error or None)
        state.problem = found.error
        earliest = monotonic if found.presses or found.replies else state.asked_at + SHORTEST_POLL
        state.next_at = monotonic + state.pause if found.error else max(monotonic, earliest)
        state.pause = min(2 * state.pause, LONGEST_PAUSE) if found.error else FIRST_PAUSE
        asked: list[tuple[Press | Reply, Future[object]]] = []
        asked += [(each, self._submit(PressButton(state.channel, each))) for each in found.presses]
        asked += [(each, self._submit(ReplyToMessage(state.channel, each))) for each in found.replies]
        state.pending = [answer for _, answer in asked]
        for each, answer in asked:
            answer.add_done_callback(partial(self._answer, bot, each))

    def _answer(self, bot: Bot, press: Press | Reply, answer: Future[object]) -> None:
        text = None if answer.cancelled() or answer.exception() is not None else answer.result()
        if isinstance(text, str) and text:
            self._executor.submit(next(self._numbers), BotCall(bot, press=press, text=text))


def make_poller(http: HttpClient, loop: WorkerLoop, notify: Callable[[], None], submit: Submit) -> ButtonPoller:
    """The poller of a daemon. Its requests are sent in the thread of `loop`, and `notify` is called after each answer."""

    async def call(task: BotCall, _: Children) -> Presses:  # starts no programs
        return await call_bot(task, http)

    calls: LocalExecutor[BotCall, Presses] = LocalExecutor(call, lambda _: "", notify, loop)
    return ButtonPoller(calls, submit)


async def call_bot(call: BotCall, http: HttpClient) -> Presses:
    """Send a request to a bot. Errors of the network are in the result."""
    if call.press is not None:
        await telegram_buttons.answer_person(call.bot, call.press, call.text, http)
        return Presses()
    return await telegram_buttons.get_presses(call.bot, call.offset, http, with_replies=call.with_replies)
