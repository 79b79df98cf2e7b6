"""What the queue needs to know of an agent or a job, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cron.job import Job
from heartbeat.prompt import AgentActivity
from heartbeat.runners import Resources
from heartbeat.spec import Heartbeat
from heartbeat.verdict import with_cut_note, without_reasoning
from scheduler.model.budget import Reservation
from scheduler.model.circuit import Circuit, required_circuits
from scheduler.model.outcome import AttemptResult, Kind, Skip, Trigger
from scheduler.model.settings import OnFailure
from scheduler.model.wake import Wake

Key = tuple[Kind, str]


Elapsed = Callable[[], timedelta]
"""How long an attempt has been going on."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt that this daemon owns, with all that its worker needs to know; `started_at` is its `now`.

    `entry` is the config the attempt began with. `last_beat` and `failures` speak of the runs before this slot, `messages` of
    what was said in them, as (role, text). `breaker_open` says what an open circuit breaker keeps it from asking, None where
    there is none; `probes` are the open ones that this attempt may probe. `asked` holds when each item of a checklist was last
    asked about, by its hash, and `last_precheck` the digest of what a precheck last printed. `busy`: somebody else has the
    lane. `last_error` is that of the run before, if it failed; `up_since` when the daemon began, or its machine last woke up;
    `activity` what a gateway last told of the agent.
    `over_budget` says why the most that it can take no longer fits into the day, None if it does; `reserved` is what it may
    take, None without a budget.
    """

    run_id: int
    fence: int
    owner: str
    entry: Entry
    slot: datetime
    trigger: Trigger
    attempt: int
    crashes: int
    started_at: datetime
    paused: bool
    wakes: tuple[Wake, ...]
    last_beat: datetime | None
    failures: int
    breaker_open: str | None = None
    busy: bool = False
    over_budget: str | None = None
    reserved: Reservation | None = None
    probes: tuple[Circuit, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    last_checked: Mapping[str, datetime] = field(default_factory=dict)
    last_precheck: str | None = None
    last_success: datetime | None = None
    last_error: str | None = None
    up_since: datetime | None = None
    activity: AgentActivity | None = None

    @property
    def run_mark(self) -> str:
        """What every child of this attempt carries in its environment, so that it is found again after a crash."""
        return f"{self.owner}/{self.run_id}"


class Entry(ABC):
    """An agent's heartbeat or a cron job: what decides its slots, how it is carried through, whom it tells and wakes.

    What both are declared with in the same words stands here. `grace` bounds how late the latest slot may start, and `catch_up`
    False forbids it for slots that passed while the daemon was down or asleep. `schedule_text` is canonical: equal texts, equal
    slots.
    """

    __slots__ = ()
    spec: Heartbeat | Job

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def enabled(self) -> bool:
        return self.spec.enabled

    @property
    def zone(self) -> ZoneInfo:
        """The zone that its days are counted in."""
        return self.spec.zone

    @property
    def grace(self) -> timedelta:
        return self.spec.grace

    @property
    def retries(self) -> int:
        return self.spec.retries

    @property
    def timeout(self) -> timedelta:
        return self.spec.timeout

    @property
    def deliver(self) -> tuple[str, ...]:
        return self.spec.deliver

    @property
    def on_failure(self) -> OnFailure:
        """Who is told of its failures."""
        spec = self.spec
        return OnFailure(spec.on_failure_after, spec.on_failure_remind, spec.on_failure_deliver or spec.deliver)

    def checklist_remarks(self) -> tuple[str, ...]:
        """What of its checklist looks like a mark and is none, as it is now."""
        return ()

    def is_day_off(self, now: datetime) -> bool:
        """Whether its calendars leave out the day of `now`."""
        return not self.spec.calendars.open_at(now)

    @property
    @abstractmethod
    def kind(self) -> Kind: ...
    @property
    @abstractmethod
    def schedule_text(self) -> str: ...
    @property
    @abstractmethod
    def catch_up(self) -> bool: ...
    @property
    @abstractmethod
    def retries_after_crash(self) -> bool: ...
    @property
    @abstractmethod
    def model(self) -> str | None: ...

    @property
    @abstractmethod
    def models(self) -> tuple[Circuit, ...]:
        """The models that it asks at providers of the config."""

    @property
    def circuits(self) -> tuple[Circuit, ...]:
        """What must be in order for it to run: each provider that it asks, and each model there."""
        return required_circuits(self.models)

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    @abstractmethod
    def session_keep(self) -> int: ...
    @property
    @abstractmethod
    def dedup_window(self) -> timedelta: ...
    @property
    @abstractmethod
    def starts_at_boot(self) -> bool: ...

    @property
    @abstractmethod
    def lane(self) -> str | None:
        """The agent whose lane a run takes; None when it speaks to none."""

    @abstractmethod
    def preconditions(self, claim: Claim) -> Sequence[tuple[Skip, bool | None]]:
        """Each reason not to run, in their order: whether it stands in this claim's way; None if only a run can say."""

    @abstractmethod
    def is_open_at(self, now: datetime) -> bool:
        """Whether what is due may run at `now` by its calendars and active hours."""

    @abstractmethod
    def opens_at(self, now: datetime) -> datetime | None:
        """When what is due may run from `now` on by its calendars and active hours; None: not within two years."""

    @abstractmethod
    def closes_at(self, now: datetime) -> datetime | None:
        """When its window or its day closes; None when neither does within two years."""

    @abstractmethod
    def message_digest(self, message: str) -> str:
        """The hash under which a message counts as said."""

    @property
    def async_timeout(self) -> timedelta:
        """How long the result of a run that answers later may take."""
        return self.spec.async_timeout

    def answer_text(self, result: AttemptResult) -> str:
        """What a run that was answered says, as it is delivered: without reasoning, and with a note where it was cut."""
        text = without_reasoning(result.text or "", strip_reasoning=self.spec.strip_reasoning, truncated=result.truncated)
        return with_cut_note(text, truncated=result.truncated)

    @abstractmethod
    def classify_answer(self, text: str, *, truncated: bool) -> AttemptResult:
        """How a run ends that was answered with this text, which may have been cut at a limit of tokens (`truncated`)."""

    @abstractmethod
    async def carry(self, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
        """Carry one attempt through, in a worker's thread; is put aside while it waits for an answer."""

    @property
    @abstractmethod
    def agents_to_wake(self) -> tuple[str, ...]:
        """The agents whose heartbeat its end may wake at once."""

    @abstractmethod
    def wakes_caused_by(self, claim: Claim, result: AttemptResult) -> tuple[Wake, ...]:
        """The wakes that this end of the run causes."""
