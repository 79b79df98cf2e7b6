"""The metrics page of a world, as Prometheus reads it."""

from __future__ import annotations

from contextlib import closing

from prometheus_client.parser import text_string_to_metric_families
from world import World

from scheduler.model.daemon_health import ReloadState
from scheduler.store.locations import open_read_only
from scheduler.telemetry.metrics import Metrics, ScrapeState


class Page:
    """A world's metrics page, read as Prometheus reads it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.metrics = Metrics(world.engine.plan.settings, version="1.2.3", tzdata="2026a")
        self.reload_state = ReloadState(successful=True, succeeded_at=world.clock.now)
        self.running: dict[str, int] = {}
        self._counted = len(world.events)

    def text(self) -> str:
        """The page with all events, also those of series that are new and shown with 0 to the first scrape."""
        self.scrape()
        return self.scrape()

    def scrape(self) -> str:
        """The page as Prometheus gets it."""
        self.count_events()
        return self.first_page("").decode()

    def count_events(self) -> None:
        """Count the events of the world since the last call."""
        for happened in self._world.events[self._counted :]:
            self.metrics.count_event(happened)
        self._counted = len(self._world.events)

    def first_page(self, accept: str) -> bytes:
        """The page as the next scrape gets it, for this header Accept."""
        now = ScrapeState(self._world.engine.health, self.reload_state, self.running, self._world.clock.now)
        with closing(open_read_only(self._world.database)) as db:
            return self.metrics.render_page(db, now, accept).body

    def series(self, prefix: str = "") -> dict[str, float]:
        """Values by `name{label values}`, the leading heartbeatd_ left out."""
        samples = [sample for family in text_string_to_metric_families(self.text()) for sample in family.samples]
        named = {(sample.name.removeprefix("heartbeatd_"), tuple(sample.labels.items())): sample.value for sample in samples}
        assert len(named) == len(samples)
        return {
            name + ("{" + ",".join(value for _, value in sorted(labels)) + "}" if labels else ""): value
            for (name, labels), value in named.items()
            if name.startswith(prefix)
        }
