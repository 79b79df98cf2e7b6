"""The client for ordinary programs. It is made from async_client.py by `make client`: edit that file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Self, overload

import httpx2

from heartbeatd.answers import (
    AcknowledgedConditions,
    AgentList,
    AgentStatus,
    CallerToken,
    CancelledRun,
    ChangedMessage,
    Checklist,
    ClosedCondition,
    ConditionList,
    ConfigEdited,
    ConfigFile,
    ConfigSuggestion,
    EntryConfig,
    ExplanationAt,
    ExplanationNow,
    ExplanationOn,
    JobList,
    LaneHeld,
    LaneReleased,
    MessageList,
    Muted,
    Overview,
    PausedEntries,
    PlanForecast,
    QueuedMessage,
    RecordedActivity,
    Reloaded,
    ResumedEntries,
    RunList,
    RunNumber,
    RunRecord,
    RunWithWakes,
    Status,
    TestedChannels,
    Unmuted,
    WakeAccepted,
    WakeNumber,
    WakeStatus,
)
from heartbeatd.daemon_address import AddressSource
from heartbeatd.errors import HeartbeatdError, error_from_answer, error_from_transport, unexpected_answer
from heartbeatd.events import READ_SECONDS, Event, StreamPosition
from heartbeatd.http_messages import (
    ANSWER_SECONDS,
    Answer,
    body_of,
    limits,
    path_of,
    query_of,
    read_answer,
    read_edit_answer,
    request_headers,
    timeouts,
)
from scheduler.model.secret import Secret
from scheduler.model.state_address import MAX_DAEMON_ANSWER

Kind = Literal["agent", "heartbeat", "cron"]
Time = datetime | str  # a string as the API reads it: 2027-03-28T01:00:00Z
Span = timedelta | str  # a string as in the config: 90s, 30m, 1h30m


class Client:
    """Requests to one daemon. `with Client() as daemon: daemon.get_status()`.

    Each method sends one request, and has the name that openapi.json gives the operation. The answer is a model of
    `heartbeatd.answers`. Every method raises HeartbeatdError. No request is repeated, since it may have been carried out.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        config: str | Path | None = None,
        state: str | Path | None = None,
        timeout: float = ANSWER_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Without arguments, the client finds the daemon as the commands do.

        The address is `url`, else `$HEARTBEATD_URL`, else that of the daemon that runs with the database `state` (a file or its
        folder) or with the database of the config file (`config`, by default config.yaml). The token is `token`, else
        `$HEARTBEATD_TOKEN`, else the one in the state folder. `timeout` is in seconds. `headers` are sent with each request, for
        a proxy that needs them.
        """
        self._source = AddressSource(
            url,
            None if token is None else Secret(token),
            None if config is None else Path(config),
            None if state is None else Path(state),
            os.environ,
        )
        self._timeout = timeout
        self._headers = dict(headers or {})
        self._http = httpx2.Client(timeout=timeouts(timeout), limits=limits(), trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- read

    def get_status(self) -> Status:
        """The whole status, limited to the agents that the token is valid for."""
        return self._get(Status, "/api/v1/status")

    def list_agents(self) -> AgentList:
        """The state of each agent."""
        return self._get(AgentList, "/api/v1/agents")

    def get_agent(self, name: str) -> AgentStatus:
        """The state of one agent, and the targets that it has talked with."""
        return self._get(AgentStatus, path_of("/api/v1/agents/{name}", name=name))

    def list_jobs(self) -> JobList:
        """The state of each cron job."""
        return self._get(JobList, "/api/v1/cron")

    def list_runs(
        self,
        *,
        kind: Kind | None = None,
        name: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        outcome: str | None = None,
        reason: str | None = None,
        limit: int | None = None,
        sort: Literal["id", "cost"] | None = None,
        cursor: str | None = None,
    ) -> RunList:
        """One page of runs: the newest first, or the most expensive (`sort`). `iterate_runs` reads all pages."""
        query = {"kind": kind, "name": name, "since": since, "until": until, "outcome": outcome, "reason": reason}
        return self._get(RunList, "/api/v1/runs", query | {"limit": limit, "sort": sort, "cursor": cursor})

    def iterate_runs(
        self,
        *,
        kind: Kind | None = None,
        name: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        outcome: str | None = None,
        reason: str | None = None,
        limit: int = 100,
        sort: Literal["id", "cost"] | None = None,
    ) -> Iterator[RunRecord]:
        """All runs in the order of `list_runs`. Each request reads `limit` of them, when they are needed."""
        cursor: str | None = None
        while True:
            page = self.list_runs(
                kind=kind,
                name=name,
                since=since,
                until=until,
                outcome=outcome,
                reason=reason,
                limit=limit,
                sort=sort,
                cursor=cursor,
            )
            for run in page.runs:
                yield run
            cursor = page.next
            if cursor is None:
                return

    def get_run(self, id: int) -> RunWithWakes:
        """One run, with the texts of the wakes in its prompt."""
        return self._get(RunWithWakes, path_of("/api/v1/runs/{id}", id=id))

    def get_wake(self, id: int) -> WakeStatus:
        """The state of a wake, what it waits for, and the run that took it."""
        return self._get(WakeStatus, path_of("/api/v1/wakes/{id}", id=id))

    def get_plan(
        self,
        *,
        for_: Span | None = None,
        from_: Time | None = None,
        name: str | None = None,
        kind: Kind | None = None,
        all: bool | None = None,
    ) -> PlanForecast:
        """What will run in the next 24 hours, or in another time. With `all`, each run is listed."""
        return self._get(PlanForecast, "/api/v1/plan", {"for": for_, "from": from_, "name": name, "kind": kind, "all": all})

    def get_overview(self, *, on: date | str | None = None, since: Time | None = None) -> Overview:
        """What happened to all agents and jobs today, on another day (`on`) or since a time: the unusual ones first."""
        return self._get(Overview, "/api/v1/explain", {"on": on, "since": since})

    @overload
    def get_explanation(self, name: str, *, kind: Kind | None = None) -> ExplanationNow: ...

    @overload
    def get_explanation(self, name: str, *, kind: Kind | None = None, at: Time) -> ExplanationAt: ...

    @overload
    def get_explanation(self, name: str, *, kind: Kind | None = None, on: date | str) -> ExplanationOn: ...

    def get_explanation(
        self, name: str, *, kind: Kind | None = None, at: Time | None = None, on: date | str | None = None
    ) -> ExplanationNow | ExplanationAt | ExplanationOn:
        """Why an agent or a job ran or did not run: now, at a time (`at`), or on a local day (`on`)."""
        path = path_of("/api/v1/explain/{name}", name=name)
        query = {"kind": kind, "at": at, "on": on}
        if at is not None:
            return self._get(ExplanationAt, path, query)
        if on is not None:
            return self._get(ExplanationOn, path, query)
        return self._get(ExplanationNow, path, query)

    def list_undelivered(self, *, limit: int | None = None, cursor: str | None = None) -> MessageList:
        """One page of the messages that are not delivered. `iterate_undelivered` reads all pages."""
        return self._get(MessageList, "/api/v1/outbox", {"limit": limit, "cursor": cursor})

    def iterate_undelivered(self, *, limit: int = 100) -> Iterator[QueuedMessage]:
        """All messages that are not delivered. Each request reads `limit` of them, when they are needed."""
        cursor: str | None = None
        while True:
            page = self.list_undelivered(limit=limit, cursor=cursor)
            for message in page.outbox:
                yield message
            cursor = page.next
            if cursor is None:
                return

    def list_conditions(self, *, agent: str | None = None, state: Literal["open", "all"] | None = None) -> ConditionList:
        """The open conditions, or the closed ones too (`state="all"`)."""
        return self._get(ConditionList, "/api/v1/conditions", {"agent": agent, "state": state})

    def get_caller(self) -> CallerToken:
        """The token of this client: its name, permissions and agents."""
        return self._get(CallerToken, "/api/v1/whoami")

    def get_config(self) -> ConfigFile:
        """The hash of the config file, and what it declares, with secrets masked."""
        return self._get(ConfigFile, "/api/v1/config")

    def get_agent_config(self, name: str) -> EntryConfig:
        """The keys of an agent in the config file, and all values in effect."""
        return self._get(EntryConfig, path_of("/api/v1/agents/{name}/config", name=name))

    def get_job_config(self, name: str) -> EntryConfig:
        """The keys of a cron job in the config file, and all values in effect."""
        return self._get(EntryConfig, path_of("/api/v1/cron/{name}/config", name=name))

    def get_checklist(self, name: str) -> Checklist:
        """The checklist of an agent."""
        return self._get(Checklist, path_of("/api/v1/agents/{name}/checklist", name=name))

    def stream_events(self, last_event_id: str | None = None) -> Iterator[Event]:
        """The events from now on, or after the event with this ID. It does not end by itself.

        If the connection is interrupted, or a reload ends the stream, the client connects again and resumes. It raises
        HeartbeatdError if the first connection fails, or if the daemon rejects the token.
        """
        position = StreamPosition(last_event_id)
        while True:
            failed: HeartbeatdError | None = None
            try:
                address = self._source.find_address()
                with self._http.sse(
                    f"{address.url}/api/v1/events",
                    headers=request_headers(address, self._headers | position.headers()),
                    timeout=timeouts(self._timeout, READ_SECONDS),
                ) as stream:
                    if stream.response.status_code != 200:
                        raise error_from_answer(_read_response(stream.response))
                    for sent in stream:
                        event = position.receive(sent)
                        if event is not None:
                            yield event
            except (httpx2.TransportError, httpx2.InvalidURL) as error:
                failed = error_from_transport(error)
            except HeartbeatdError as error:
                failed = error
            time.sleep(position.next_pause(failed))

    # --- change the config and checklists

    def patch_config(self, changes: Mapping[str, Any], hash: str, *, dry_run: bool = False) -> ConfigEdited | ConfigSuggestion:
        """Change values anywhere in the config, as a JSON merge patch. `hash` is that of `get_config`.

        Without the permission to write these values, the answer is the YAML for a person to write.
        """
        return self._edit("/api/v1/config", changes, hash, dry_run)

    def patch_agent_config(
        self, name: str, changes: Mapping[str, Any], hash: str, *, dry_run: bool = False
    ) -> ConfigEdited | ConfigSuggestion:
        """Change values of one agent. `hash` is that of `get_agent_config`."""
        return self._edit(path_of("/api/v1/agents/{name}/config", name=name), changes, hash, dry_run)

    def patch_job_config(
        self, name: str, changes: Mapping[str, Any], hash: str, *, dry_run: bool = False
    ) -> ConfigEdited | ConfigSuggestion:
        """Change values of one cron job. `hash` is that of `get_job_config`."""
        return self._edit(path_of("/api/v1/cron/{name}/config", name=name), changes, hash, dry_run)

    def put_checklist(self, name: str, text: str, hash: str | None = None) -> Checklist:
        """Replace the checklist of an agent. `hash` is that of `get_checklist`, None if there is no checklist yet."""
        path = path_of("/api/v1/agents/{name}/checklist", name=name)
        headers = {"If-None-Match": "*"} if hash is None else None
        return self._send(Checklist, "PUT", path, {"text": text, "hash": hash}, headers)

    def reload_config(self, *, dry_run: bool = False) -> Reloaded:
        """Apply the config file as it is now, or only say what that would change."""
        return self._post(Reloaded, "/-/reload", dry_run=dry_run)

    # --- runs

    def wake_agent(self, name: str, text: str = "") -> WakeAccepted:
        """Run an agent now, with a text for its prompt."""
        return self._post(WakeAccepted, path_of("/api/v1/agents/{name}/wake", name=name), text=text)

    def run_job(self, name: str) -> WakeNumber:
        """Run a cron job now."""
        return self._post(WakeNumber, path_of("/api/v1/cron/{name}/run", name=name))

    def report_result(
        self,
        id: int,
        *,
        text: str | None = None,
        findings: list[Any] | None = None,
        error: str | None = None,
        truncated: bool = False,
    ) -> RunNumber:
        """Report the result of a run that ended `async`: a text, findings, or an error."""
        path = path_of("/api/v1/runs/{id}/result", id=id)
        return self._post(RunNumber, path, text=text, findings=findings, error=error, truncated=truncated)

    def cancel_run(self, id: int) -> CancelledRun:
        """Cancel a run. One in progress ends within seconds."""
        return self._post(CancelledRun, path_of("/api/v1/runs/{id}/cancel", id=id))

    # --- gateways

    def hold_lane(self, name: str, id: str, for_: Span) -> LaneHeld:
        """Hold the lane of an agent for a time, so that no run starts. `id` names the holder."""
        path = path_of("/api/v1/agents/{name}/busy", name=name)
        return self._send(LaneHeld, "PUT", path, {"id": id, "for": for_})

    def release_lane(self, name: str, id: str) -> LaneReleased:
        """Release the lane of an agent."""
        return self._send(LaneReleased, "DELETE", path_of("/api/v1/agents/{name}/busy", name=name), {"id": id})

    def record_activity(
        self,
        name: str,
        *,
        channel: str | None = None,
        target: str | None = None,
        title: str | None = None,
        queue: int | None = None,
        pending_approvals: int | None = None,
    ) -> RecordedActivity:
        """Report the target that an agent has just talked with, and how much work waits for the agent."""
        return self._post(
            RecordedActivity,
            path_of("/api/v1/agents/{name}/activity", name=name),
            channel=channel,
            target=target,
            title=title,
            queue=queue,
            pending_approvals=pending_approvals,
        )

    # --- pause and mute

    def pause_agent(self, name: str, *, for_: Span | None = None, until: Time | None = None) -> PausedEntries:
        """Pause an agent for a time, until a time, or until it is resumed."""
        return self._post(PausedEntries, path_of("/api/v1/agents/{name}/pause", name=name), for_=for_, until=until)

    def pause_job(self, name: str, *, for_: Span | None = None, until: Time | None = None) -> PausedEntries:
        """Pause a cron job for a time, until a time, or until it is resumed."""
        return self._post(PausedEntries, path_of("/api/v1/cron/{name}/pause", name=name), for_=for_, until=until)

    def pause_all(self, *, for_: Span | None = None, until: Time | None = None) -> PausedEntries:
        """Pause all agents and jobs."""
        return self._post(PausedEntries, "/api/v1/pause", for_=for_, until=until)

    def resume_agent(self, name: str) -> ResumedEntries:
        """Resume an agent."""
        return self._post(ResumedEntries, path_of("/api/v1/agents/{name}/resume", name=name))

    def resume_job(self, name: str) -> ResumedEntries:
        """Resume a cron job."""
        return self._post(ResumedEntries, path_of("/api/v1/cron/{name}/resume", name=name))

    def resume_all(self) -> ResumedEntries:
        """Resume all agents and jobs."""
        return self._post(ResumedEntries, "/api/v1/resume")

    def mute_agent(self, name: str, *, for_: Span | None = None, until: Time | None = None, until_changed: bool = False) -> Muted:
        """Hold back the messages of an agent. Its runs go on."""
        path = path_of("/api/v1/agents/{name}/mute", name=name)
        return self._post(Muted, path, for_=for_, until=until, until_changed=until_changed)

    def mute_job(self, name: str, *, for_: Span | None = None, until: Time | None = None, until_changed: bool = False) -> Muted:
        """Hold back the messages of a cron job. Its runs go on."""
        path = path_of("/api/v1/cron/{name}/mute", name=name)
        return self._post(Muted, path, for_=for_, until=until, until_changed=until_changed)

    def unmute_agent(self, name: str) -> Unmuted:
        """Send the messages of an agent again."""
        return self._post(Unmuted, path_of("/api/v1/agents/{name}/unmute", name=name))

    def unmute_job(self, name: str) -> Unmuted:
        """Send the messages of a cron job again."""
        return self._post(Unmuted, path_of("/api/v1/cron/{name}/unmute", name=name))

    # --- messages and conditions

    def retry_message(self, id: int) -> ChangedMessage:
        """Send a message of the outbox again as soon as possible."""
        return self._post(ChangedMessage, path_of("/api/v1/outbox/{id}/retry", id=id))

    def drop_message(self, id: int) -> ChangedMessage:
        """Drop a message of the outbox for good."""
        return self._post(ChangedMessage, path_of("/api/v1/outbox/{id}/drop", id=id))

    def close_condition(self, agent: str, key: str) -> ClosedCondition:
        """Close an open condition of an agent without a message."""
        return self._post(ClosedCondition, "/api/v1/conditions/close", agent=agent, key=key)

    def acknowledge_conditions(
        self, *, agent: str | None = None, key: str | None = None, run: int | None = None
    ) -> AcknowledgedConditions:
        """Keep open conditions quiet until they get worse or end: one of an agent by its key, or those of a run."""
        return self._post(AcknowledgedConditions, "/api/v1/conditions/ack", agent=agent, key=key, run=run)

    def unacknowledge_conditions(
        self, *, agent: str | None = None, key: str | None = None, run: int | None = None
    ) -> AcknowledgedConditions:
        """Report acknowledged conditions again."""
        return self._post(AcknowledgedConditions, "/api/v1/conditions/unack", agent=agent, key=key, run=run)

    def ping_channels(self, channel: str | None = None) -> TestedChannels:
        """Send a test message to one channel (`chat:4711` with a target), or to all that need no target."""
        return self._post(TestedChannels, "/api/v1/ping", channel=channel)

    # --- what all methods use

    def _get(self, model: type[Answer], path: str, query: Mapping[str, Any] | None = None) -> Answer:
        return read_answer(self._request("GET", path, query=query), model)

    def _post(self, model: type[Answer], path: str, **body: Any) -> Answer:
        return self._send(model, "POST", path, {key.rstrip("_"): value for key, value in body.items()})

    def _edit(self, path: str, changes: Mapping[str, Any], hash: str, dry_run: bool) -> ConfigEdited | ConfigSuggestion:
        body = {"changes": dict(changes), "hash": hash, "dry_run": dry_run}
        return read_edit_answer(self._request("PATCH", path, body))

    def _send(
        self,
        model: type[Answer],
        method: str,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        return read_answer(self._request(method, path, body, headers=headers), model)

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        address = self._source.find_address()
        try:
            with self._http.stream(
                method,
                address.url + path,
                params=query_of(query),
                json=body_of(body),
                headers=request_headers(address, self._headers | dict(headers or {})),
            ) as response:
                return _read_response(response)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise error_from_transport(error) from None


def _read_response(response: httpx2.Response) -> httpx2.Response:
    """The response with its whole content. Raises HeartbeatdError for a larger one than a daemon sends."""
    content = bytearray()
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) > MAX_DAEMON_ANSWER:
            raise unexpected_answer(response)
    return httpx2.Response(response.status_code, content=bytes(content), request=response.request)
