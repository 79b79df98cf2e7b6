"""Defines the tables of the database, as migrations. A migration is never edited after its release.

A new column of `run` also concerns AttemptResult in scheduler/model/outcome.py, the statements in scheduler/store/runs.py and
run_history.py, and heartbeatd/answers.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

Change = Callable[[Any], None]


class Migration(NamedTuple):
    """One change of the tables. `fn` is called with an object whose `conn` is the connection."""

    name: str
    fn: Change


class Migrations:
    """The changes of the tables, in their order. The library that applies them is slow to import, so readers do without it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.all: list[Migration] = []

    def __call__(self, *, name: str | None = None) -> Callable[[Change], Change]:
        """Decorate a function as the next migration, with its own name unless another one is given."""

        def add(change: Change) -> Change:
            self.all.append(Migration(name or change.__name__, change))
            return change

        return add

    def applied(self, connection: sqlite3.Connection) -> list[str]:
        """The names of the migrations that this database has, also of unknown ones."""
        if connection.execute("select 1 from sqlite_master where name = '_sqlite_migrations'").fetchone() is None:
            return []
        found = connection.execute("select name from _sqlite_migrations where migration_set = ? order by rowid", (self.name,))
        return [row[0] for row in found]

    def pending(self, connection: sqlite3.Connection) -> list[Migration]:
        """The migrations that this database does not have yet."""
        applied = self.applied(connection)
        return [each for each in self.all if each.name not in applied]

    def obstacle(self, applied: Collection[str]) -> str | None:
        """Why this version cannot use a database with these migrations, as the end of a sentence; None: it can."""
        known = [each.name for each in self.all]
        if applied and known[0] not in applied:
            return (
                f"was written by an older heartbeatd (schema {max(applied)}, this version supports {known[0]} and later); nothing"
                " was changed; start the version before this one, which upgrades it, and then this one"
            )
        if newer := [name for name in applied if name > known[0] and name not in known]:
            return (
                f"was written by a newer heartbeatd (schema {max(newer)}, this version supports {known[-1]}); nothing was"
                " changed; upgrade heartbeatd"
            )
        return None

    def apply(self, connection: sqlite3.Connection, *, stop_before: str | None = None) -> None:
        """Apply the missing migrations, each in a transaction, up to `stop_before`."""
        import sqlite_utils

        steps = sqlite_utils.Migrations(self.name)
        for each in self.all:
            steps(name=each.name)(each.fn)
        steps.apply(sqlite_utils.Database(connection), stop_before=stop_before)


migrations = Migrations("heartbeatd")


@migrations()
def m023_repeated_runs(db: Any) -> None:
    """All tables, as the version of 24 November 2026 has them. Its name is that of the last migration of that version."""
    for statement in FIRST_SCHEMA.split(";\n"):
        db.conn.execute(statement)


# The ids of runs, wakes, messages and conditions (`autoincrement`) are never reused, even if the newest rows are deleted: people
# write them down, and other rows refer to them.
FIRST_SCHEMA = """
create table entry (
  id integer primary key,
  kind text not null,
  name text not null,
  state text not null,              -- active, disabled, removed
  pace text not null,               -- what decides the slots, as canonical text
  first_seen_at integer not null,
  anchor integer not null,          -- where the grid of slots stands
  settled_until integer not null,   -- every slot up to here has its row
  slot integer,                     -- the next slot
  due_at integer,                   -- when to look at this entry next; null while it runs or nothing is planned
  paused_until integer,
  last_slot integer,                -- the last slot of the grid that ran
  last_ended_at integer,
  last_woken_at integer,            -- end of the last run that a wake started
  last_success_at integer,
  failures integer not null default 0,
  quiet integer not null default 0,
  alerting integer not null default 0,
  troubles integer not null default 0,
  precheck text,                    -- digest of what the precheck last printed
  queue integer,                    -- what waits for the agent, as a gateway last reported
  approvals integer,                -- what waits for its user
  active_at integer,                -- when the gateway did
  flapping integer not null default 0,
  conditions integer not null default 0,
  unconfirmed text,
  unconfirmed_answers integer not null default 0,
  looked_at integer,
  looked_lines text,
  muted_until integer,
  mute text,                        -- who muted it, and what was known then, as JSON
  paused_at integer,
  paused_by text,
  expected_at integer,              -- when the slot comes due that is to be answered next; null: none is expected
  expected_before integer,          -- when the slot after it comes due
  good_slots integer not null default 0,
  bad_slots integer not null default 0,
  unique (kind, name)
) strict;

create index entry_due on entry (due_at) where due_at is not null;

create table run (
  id integer primary key autoincrement,
  kind text not null,
  name text not null,
  slot integer not null,
  trigger text not null,
  slots integer not null default 1,
  state text not null,              -- running, waiting (for its next attempt), reported (for an instant), closed
  outcome text,
  reason text,
  suppression text,
  attempt integer not null default 0,
  crashes integer not null default 0,
  fence integer not null default 0,
  owner text,
  not_before integer,
  started_at integer,
  finished_at integer,
  model_requested text,
  model_used text,
  tokens text,
  cost_usd real,
  charged_nanos integer,            -- what it counts for in its budgets; null: it has none
  charged_tokens integer,
  prompt_parts text,
  precheck_exit integer,
  precheck_output text,             -- null: no precheck was made
  asked text,                       -- what an answer that is still to come will have dealt with, as JSON
  exit_code integer,
  tool_calls text,                  -- the tools that the agent used, as JSON
  log text,                         -- what it said for the log alone
  text text,
  error text,
  config_hash text,
  truncated integer not null default 0,
  precheck_error text,
  result_due_at integer,            -- until when its result is awaited, else null
  cut_at integer,                   -- when it was interrupted: time without a daemon is not part of its duration
  request_id text,                  -- the provider's id of the last request, which its support asks for
  left_out text,                    -- what was to be in the prompt and was left out, as JSON; null: nothing
  findings text,                    -- the conditions that it reported, and what became of each, as JSON
  woken_by text,                    -- the sender of the wake that started it; null: no wake did
  model_usage text,                 -- its usage by model, as JSON
  worker text,                      -- that executed the last attempt; null: the daemon itself
  repeats text,                     -- the runs whose messages have the content of an answer that was not sent again, as JSON
  unique (kind, name, trigger, slot)
) strict;

create unique index run_open on run (kind, name) where state in ('running', 'waiting');

create index run_of_entry on run (kind, name, id);

create index run_finished on run (finished_at) where state = 'closed';

create index run_started on run (kind, name, trigger, started_at);

create index run_awaited on run (result_due_at) where result_due_at is not null;

create table wake (
  id integer primary key autoincrement,
  name text not null,
  kind text not null,
  source text not null,
  sender text not null,
  text text not null,
  outcome text,
  count integer not null default 1,
  created_at integer not null,
  updated_at integer not null,
  due_at integer,                   -- when it may start a run; null: it waits for the next one
  held_until integer,               -- until then it waits for others that are to come with it
  tries integer not null default 0, -- runs that were to deliver it, and did not
  state text not null,              -- waiting, taken, ended
  run_id integer,
  token text not null default '',   -- that a program used; empty for users and jobs
  waits_for text,                   -- why it started no run at once: a reason of a run, wake_gap or wake_flood
  started integer not null default 0  -- 1: it started the run that has taken it
) strict;

create unique index wake_waiting on wake (kind, name, source, sender, token) where state = 'waiting';

create index wake_start on wake (kind, name, due_at, held_until, waits_for, state) where state = 'waiting';

create index wake_kept on wake (kind, name, token, state) where state in ('waiting', 'taken');

create index wake_ended on wake (updated_at) where state = 'ended';

create index wake_run on wake (run_id) where run_id is not null;

create table outbox (
  id integer primary key autoincrement,
  key text not null,
  channel text not null,
  whom text not null default '',    -- the recipient there, if its URL leaves that open
  run_id integer not null,
  kind text not null,
  name text not null,
  trigger text not null,
  slot integer not null,
  part integer not null,
  parts integer not null,
  title text not null,
  text text not null,
  notice text,                      -- what it says about its run; null: it has the answer of the run
  state text not null,
  attempts integer not null default 0,
  not_before integer not null,
  created_at integer not null,
  sending_at integer,
  doubted_at integer,               -- when it was first unknown whether it had arrived
  finished_at integer,
  error text,
  awaits text,                      -- the agents that may report the failure instead, as JSON; null: it is not held back
  hold_note text,                   -- what became of a message that was held back
  unique (key, channel)
) strict;

create index outbox_pending on outbox (not_before) where state = 'pending';

create index outbox_sending on outbox (id) where state in ('sending', 'uncertain', 'held');

create index outbox_channel on outbox (channel, state, created_at);

create index outbox_run on outbox (run_id);

create index outbox_held_back on outbox (name, id) where awaits is not null and state = 'pending';

create index outbox_of_entry on outbox (kind, name, channel, state, id);

create table digest (
  kind text not null,
  name text not null,
  channel text not null,
  whom text not null,
  hash text not null,
  outbox_id integer not null,
  until_at integer not null,        -- until then the same text is no news
  window integer not null,          -- how long that is from its delivery on, in milliseconds
  primary key (kind, name, channel, whom, hash)
) strict, without rowid;

create table incident (
  kind text not null,               -- heartbeat, cron, channel
  name text not null,
  whom text not null,               -- the recipient, on a channel that leaves it open, else empty
  since integer not null,           -- when it first went wrong
  faults text not null,             -- how it went wrong so far, each by its hash, as JSON
  reason text,                      -- of the last failure, else of the last skip
  told_at integer,                  -- when it was last reported; null: not yet
  provider text,                    -- with `model`: the one at fault; null: the fault is the entry's own
  model text,
  flapping_at integer,
  primary key (kind, name, whom)
) strict, without rowid;

create index incident_of_circuit on incident (provider, model) where provider is not null;

create table target (
  id integer primary key,           -- the largest is the last
  name text not null,               -- the agent's
  channel text not null,
  whom text not null,
  title text not null,
  at integer not null,
  unique (name, channel, whom)
) strict;

create table item (
  name text not null,               -- the agent's
  hash text not null,               -- of the item's text
  asked integer not null,           -- the slot at which it was last asked about
  primary key (name, hash)
) strict, without rowid;

create table once (
  hash text primary key,            -- of a job's name and its one moment, which has been seen to come or has still to
  seen_at integer not null
) strict, without rowid;

create table spend (
  day text not null,                -- of the budget's zone, as 2027-03-28
  kind text not null,               -- of the entry; kind and name are empty in the row of all
  name text not null,
  nanos integer not null,           -- billionths of a USD
  tokens integer not null,
  runs integer not null,
  ends_at integer not null,         -- when the day is over
  usd_per_day real,                 -- the budget as it last stood
  tokens_per_day integer,
  runs_per_day integer,
  primary key (day, kind, name)
) strict, without rowid;

create table hold (
  name text not null,               -- the agent whose lane it is
  holder text not null,
  until_at integer not null,
  primary key (name, holder)
) strict, without rowid;

create table message (
  id integer primary key,
  name text not null,
  role text not null,
  text text not null,
  at integer not null
) strict;

create index message_of_agent on message (name, id);

create index message_age on message (at);

create table former (
  id integer primary key,
  kind text not null,
  name text not null,
  state text not null,              -- what the entry was
  pace text not null,
  anchor integer not null,
  until_at integer not null         -- and until when
) strict;

create index former_of_entry on former (kind, name);

create index former_age on former (until_at);

create table jump (
  id integer primary key,
  at integer not null,              -- what the wall clock showed right after it
  by_ms integer not null,           -- how far it had moved; negative: back
  down integer not null default 0,  -- 1: no daemon ran, so that it is not known whether the clock was right
  slept_ms integer not null default 0  -- so long the machine was suspended
) strict;

create table stall (
  id integer primary key,
  since integer not null,           -- when a turn was to begin
  until integer not null,           -- when it began
  cause text                        -- `stopped` if a signal had stopped the process; null: not known
) strict;

create table boot (
  id integer primary key,
  instance text not null,
  pid integer not null,
  version text not null,
  tzdata text not null,
  started_at integer not null,
  last_tick_at integer not null,
  ended_at integer,                 -- null after a stop that was not clean
  config_hash text,
  config_problem text,              -- the faults of a config that was refused and waits
  config_refused_at integer,
  deadman_problem text,             -- why pings to the dead man's switch do not arrive
  workers_problem text,             -- why no worker on another machine executes a run
  database_server text              -- the PostgreSQL server on which it began to lead, and its timeline; null: a file
) strict;

create table breaker (
  provider text not null,
  model text not null,              -- * for the provider as a whole; empty where requests name none
  reason text not null,             -- class of the failure that opened it
  error text not null,              -- what the provider said
  opened_at integer not null,
  probe_at integer not null,        -- from then on one run may probe
  half_open_at integer not null,    -- when the present round of probes could begin
  tried_by integer,                 -- the run that probes; null: none, or it has ended
  turns text not null,              -- which entries could probe since it opened, the latest last, as JSON
  primary key (provider, model)
) strict, without rowid;

create table outage (
  provider text not null,
  model text not null,              -- * for the provider as a whole
  since integer not null,           -- when it began to fail, or to work again
  reason text not null,             -- class of the last failure
  error text not null,              -- what the provider said
  failing integer not null,         -- 0: it works at present, but flaps
  reported integer not null,        -- 1: notices of this failure are sent
  flapping_at integer,              -- when it was found to flap
  primary key (provider, model)
) strict, without rowid;

create table outage_notice (
  provider text not null,
  model text not null,
  channel text not null,
  whom text not null,
  told_at integer not null,         -- when this target was last notified of the outage
  faults text not null,             -- and of which kinds of failure so far, as JSON
  primary key (provider, model, channel, whom)
) strict, without rowid;

create table change (
  id integer primary key,
  kind text not null,               -- heartbeat, cron, provider
  name text not null,
  at integer not null               -- when it began to fail, or worked again
) strict;

create index change_of_entry on change (kind, name, at);

create table condition (
  id integer primary key autoincrement,
  name text not null,               -- the agent
  key text not null,                -- for comparisons: without case and blanks
  label text not null,              -- the key as the agent wrote it
  severity text not null,           -- info, warning, critical
  text text not null,               -- what the agent last said about it
  state text not null,              -- open, closed
  opened_at integer not null,
  last_seen_at integer not null,
  closed_at integer,
  ended_by text,                    -- resolved, not_mentioned, user, job; null while it is open
  missed integer not null default 0,  -- answers in a row that did not mention it
  wrongly_closed integer not null default 0,  -- times that it was closed as not mentioned, and then mentioned again
  openings text not null,           -- when it was opened within the last day, as JSON
  lines text not null,              -- digests of the lines of the precheck that came with it, as JSON
  senders text not null,            -- senders of the wakes that came with it, as JSON
  first_run_id integer not null,
  last_run_id integer not null,
  jobs text not null default '[]',  -- the failed cron jobs that it is about, as JSON
  acked_at integer,
  acked_severity text,              -- if the severity rises above it, it is reported
  acked_by text not null default '',
  unique (name, key)
) strict;

create index condition_open on condition (name) where state = 'open';

create index condition_of_job on condition (name) where state = 'open' and (jobs <> '[]' or senders <> '[]');

create table condition_report (
  condition_id integer not null,
  channel text not null,
  whom text not null,
  kind text not null,               -- what the recipient last got: open, flapping, ended
  severity text not null,
  reported_at integer not null,
  outbox_id integer,                -- the message
  primary key (condition_id, channel, whom)
) strict, without rowid;

create table config_in_force (
  id integer primary key check (id = 1),
  at integer not null,              -- when it was put in force
  path text not null,
  hash text not null,
  mode text not null,               -- watch, manual
  overrides text not null,          -- names of the environment variables that changed it, as JSON
  snapshot blob not null,           -- its data without secrets, as compressed JSON; empty if it was too large
  zone text,                        -- of the times that commands print; null: that of the host
  overridden text                   -- the environment variables that set values, with the values of the file, as JSON
) strict;

create table config_event (
  id integer primary key autoincrement,
  at integer not null,
  result text not null,             -- applied, refused, started (the config had changed before a start)
  actor text not null,              -- file watch, SIGHUP, command, token NAME, start
  config_hash text not null,        -- of the config in force afterwards
  diff text not null,               -- old and new values without secrets, as JSON
  problem text                      -- the errors of a refused config
) strict;

create table used_button (
  outbox_id integer not null,
  action text not null,
  used_at integer not null,
  primary key (outbox_id, action)
) strict, without rowid;

create table budget (
  kind text not null,               -- of the entry; kind and name are empty in the row of all
  name text not null,
  zone text not null,               -- its day begins at midnight there
  usd_per_day real,
  tokens_per_day integer,
  runs_per_day integer,
  counted text not null,            -- the entries that it counts, as JSON
  primary key (kind, name)
) strict, without rowid;

create table budget_share (
  day text not null,                -- of the zone of the budget of all entries
  kind text not null,
  name text not null,
  nanos integer not null,           -- billionths of a USD
  tokens integer not null,
  runs integer not null,
  primary key (day, kind, name)
) strict, without rowid;

create table rejected_wake (
  id integer primary key,
  agent text not null,
  source text not null,             -- cron, manual, api, webhook
  sender text not null,             -- the job; of programs the latest one
  why text not null,                -- disabled, removed, own_run, too_many_wakes, expired
  count integer not null,
  first_at integer not null,
  at integer not null               -- of the latest one
) strict;

create index rejected_wake_at on rejected_wake (at)
"""


@migrations()
def m024_problems(db: Any) -> None:
    """Problems replace incidents and outages. What was sent about open ones is kept, so that no message is repeated."""
    for statement in PROBLEMS.split(";\n"):
        db.conn.execute(statement)


# problem.count: how often in a row it was seen. opened_at: null until it was seen often enough. openings: the latest, as JSON.
# Three openings at the time at which an incident was found to flap keep it unstable for a day.
PROBLEMS = """
create table problem (
  id integer primary key,
  kind text not null,               -- heartbeat, cron, provider, channel
  name text not null,
  part text not null,               -- the model of a provider, the recipient on a channel, else empty
  key text not null,
  severity text not null,
  text text not null,
  reason text not null,             -- the class of the error
  fault text not null,              -- what distinguishes one error from another
  cause_id integer,                 -- the problem of which it is a consequence; null: none
  count integer not null,
  since integer not null,
  last_seen_at integer not null,
  opened_at integer,
  over_at integer,
  openings text not null,
  unique (kind, name, part, key)
) strict;

create index problem_of_cause on problem (cause_id) where cause_id is not null;

create table problem_notice (
  problem_id integer not null,
  channel text not null,
  whom text not null,
  kind text not null,               -- what the recipient last got: open, unstable, over
  severity text not null,
  told_at integer not null,
  faults text not null,             -- the errors of which it was notified, as JSON
  outbox_id integer,                -- the last part of the last message; null: nothing was sent
  known integer not null default 0, -- 1: an earlier message about the same opening has arrived
  primary key (problem_id, channel, whom)
) strict, without rowid;

insert into problem (kind, name, part, key, severity, text, reason, fault, count, since, last_seen_at, opened_at, over_at,
    openings)
  select 'provider', provider, model, case when reason in ('auth', 'payment', 'not_found') then 'refused' else 'unreachable' end,
    case when reason = 'payment' or (reason = 'auth' and model = '*') then 'critical' else 'warning' end, error, reason,
    case when reason in ('auth', 'payment', 'not_found', 'tls') then reason else 'unavailable' end, 1, since, since,
    case when reported = 1 or failing = 0 then since end, case when failing = 0 then since end,
    case when flapping_at is not null then '[' || flapping_at || ', ' || flapping_at || ', ' || flapping_at || ']'
      when reported = 1 then '[' || since || ']' else '[]' end
  from outage;

insert into problem_notice (problem_id, channel, whom, kind, severity, told_at, faults, outbox_id)
  select problem.id, told.channel, told.whom, case when outage.flapping_at is null then 'open' else 'unstable' end,
    problem.severity, told.told_at, told.faults, (select max(id) from outbox where outbox.channel = told.channel
      and outbox.whom = told.whom and outbox.notice is not null and outbox.title = 'provider ' || told.provider ||
      case when told.model = '*' then '' when told.model = '' then ', its only model' else ', model ' || told.model end)
  from outage_notice as told join outage on outage.provider = told.provider and outage.model = told.model
  join problem on problem.kind = 'provider' and problem.name = told.provider and problem.part = told.model;

insert into problem (kind, name, part, key, severity, text, reason, fault, cause_id, count, since, last_seen_at, opened_at,
    over_at, openings)
  select incident.kind, incident.name, incident.whom, case when incident.kind = 'channel' then 'undelivered'
      when incident.provider is not null then 'failed'
      when reason = 'precheck_failed' and (select outcome from run where run.kind = incident.kind and run.name = incident.name
        order by run.id desc limit 1) in ('ok', 'alert') then 'precheck'
      when reason in ('breaker_open', 'budget', 'checklist_too_large', 'checklist_unreadable', 'precheck_failed',
        'prompt_too_large') then 'stopped' else 'failed' end,
    case when incident.kind = 'channel' then 'critical' when reason = 'budget' then 'info' else 'warning' end,
    case when incident.kind = 'channel' then 'it takes no messages' else coalesce(reason, 'failed') end,
    coalesce(reason, 'failed'), case when incident.kind = 'channel' then 'undelivered' else '' end,
    (select id from problem where problem.kind = 'provider' and problem.name = incident.provider
      and problem.part = incident.model),
    max(1, coalesce(entry.troubles, 1)), since, since, case when incident.told_at is not null then since end,
    case when entry.troubles = 0 then since end,
    case when incident.flapping_at is not null
      then '[' || incident.flapping_at || ', ' || incident.flapping_at || ', ' || incident.flapping_at || ']'
      when incident.told_at is not null then '[' || incident.told_at || ']' else '[]' end
  from incident left join entry on entry.kind = incident.kind and entry.name = incident.name;

insert into problem_notice (problem_id, channel, whom, kind, severity, told_at, faults, outbox_id)
  select problem.id, outbox.channel, outbox.whom, case when incident.flapping_at is null then 'open' else 'unstable' end,
    problem.severity, incident.told_at, case when incident.kind = 'channel' then '["undelivered"]' else incident.faults end,
    max(outbox.id)
  from incident join problem on problem.kind = incident.kind and problem.name = incident.name and problem.part = incident.whom
  join outbox on outbox.created_at >= incident.told_at and (
    incident.kind = 'channel' and outbox.notice = 'undelivered ' || incident.name
    or outbox.kind = incident.kind and outbox.name = incident.name
      and outbox.notice in ('failing', 'changed', 'reminder', 'flapping', 'steady'))
  group by problem.id, outbox.channel, outbox.whom, incident.flapping_at, problem.severity, incident.told_at, incident.kind,
    incident.faults;

insert into problem (kind, name, part, key, severity, text, reason, fault, count, since, last_seen_at, opened_at, over_at,
    openings)
  select kind, name, '', 'failed', 'warning', mute ->> 'recovery', 'failed', '', 1, cast(mute ->> 'since' as bigint),
    cast(mute ->> 'since' as bigint), cast(mute ->> 'since' as bigint), cast(mute ->> 'since' as bigint),
    '[' || (mute ->> 'since') || ']'
  from entry where mute is not null and mute ->> 'recovery' <> ''
    and not exists (select 1 from incident where incident.kind = entry.kind and incident.name = entry.name);

insert into problem_notice (problem_id, channel, whom, kind, severity, told_at, faults, outbox_id)
  select problem.id, outbox.channel, outbox.whom, 'open', 'warning', problem.since, '[]', max(outbox.id)
  from problem join outbox on outbox.kind = problem.kind and outbox.name = problem.name
  where outbox.notice in ('failing', 'changed', 'reminder', 'flapping', 'steady') and problem.kind in ('heartbeat', 'cron')
    and not exists (select 1 from incident where incident.kind = problem.kind and incident.name = problem.name)
  group by problem.id, outbox.channel, outbox.whom, problem.since;

update outbox set notice = 'opened p' || (select max(id) from problem where problem.kind = outbox.kind
    and problem.name = outbox.name)
  where awaits is not null and state = 'pending'
    and exists (select 1 from problem where problem.kind = outbox.kind and problem.name = outbox.name);

update entry set troubles = (select count(*) from problem where problem.kind = entry.kind and problem.name = entry.name);

drop table incident;

drop table outage_notice;

drop table outage;

drop table change;

alter table entry drop column flapping
"""


@migrations()
def m025_aliases(db: Any) -> None:
    """The other keys that an agent has used for a condition, as JSON."""
    db.conn.execute("alter table condition add column aliases text not null default '[]'")


@migrations()
def m026_reported_problems(db: Any) -> None:
    """What agents report are problems too. What was sent about them is kept, so that no message is repeated."""
    for statement in REPORTED_PROBLEMS.split(";\n"):
        db.conn.execute(statement)


# The table is made again, because messages name a problem by its number: that of a deleted problem is not used again. A server
# never does that, so `replace`, which is not repeated there, copies the rows (postgresql_schema.py).
# The end of a condition that recipients were not notified of is sent later only if it was unstable, or if its agent is muted.
REPORTED_PROBLEMS = """
create table numbered_problem (
  id integer primary key autoincrement,
  kind text not null,               -- heartbeat, cron, provider, channel
  name text not null,
  part text not null,               -- `reported` by an agent, the model of a provider, the recipient on a channel, else empty
  key text not null,
  severity text not null,
  text text not null,
  reason text not null,             -- the class of the error
  fault text not null,              -- what distinguishes one error from another
  cause_id integer,                 -- the problem of which it is a consequence; null: none
  count integer not null,
  since integer not null,
  last_seen_at integer not null,
  opened_at integer,
  over_at integer,
  openings text not null,
  ended_by text,                    -- observed, resolved, not_mentioned, gone, user, job; null while it is not over
  label text not null default '',   -- of what an agent reports: its key as the agent wrote it
  first_run_id integer not null default 0,
  last_run_id integer not null default 0,
  missed integer not null default 0,
  wrongly_closed integer not null default 0,
  lines text not null default '[]', -- the evidence, as JSON: lines of the precheck, senders of wakes, failed jobs
  senders text not null default '[]',
  jobs text not null default '[]',
  aliases text not null default '[]',
  acked_at integer,
  acked_severity text,
  acked_by text not null default '',
  unique (kind, name, part, key)
) strict;

replace into numbered_problem (id, kind, name, part, key, severity, text, reason, fault, cause_id, count, since, last_seen_at,
    opened_at, over_at, openings)
  select id, kind, name, part, key, severity, text, reason, fault, cause_id, count, since, last_seen_at, opened_at, over_at,
    openings
  from problem;

drop table problem;

alter table numbered_problem rename to problem;

create index problem_of_cause on problem (cause_id) where cause_id is not null;

insert into problem (kind, name, part, key, severity, text, reason, fault, count, since, last_seen_at, opened_at, over_at,
    openings, ended_by, label, first_run_id, last_run_id, missed, wrongly_closed, lines, senders, jobs, aliases, acked_at,
    acked_severity, acked_by)
  select 'heartbeat', name, 'reported', key, severity, text, 'reported', '', 1, opened_at, last_seen_at, opened_at, closed_at,
    openings, ended_by, label, first_run_id, last_run_id, missed, wrongly_closed, lines, senders, jobs, aliases, acked_at,
    acked_severity, acked_by
  from condition;

insert into problem_notice (problem_id, channel, whom, kind, severity, told_at, faults, outbox_id)
  select problem.id, told.channel, told.whom,
    case when told.kind = 'flapping' then 'unstable' when told.kind = 'ended' then 'over'
      when problem.over_at is not null and entry.muted_until is null
        and (select count(*) from json_each(case when json_valid(problem.openings) then problem.openings else '[]' end)) < 3
        then 'over' else 'open' end,
    told.severity, told.reported_at, '[""]', told.outbox_id
  from condition_report as told join condition on condition.id = told.condition_id
  join problem on problem.kind = 'heartbeat' and problem.name = condition.name and problem.part = 'reported'
    and problem.key = condition.key
  left join entry on entry.kind = 'heartbeat' and entry.name = condition.name;

update problem set key = 'heartbeatd:new-problems', label = 'heartbeatd:new-problems'
  where part = 'reported' and key = 'heartbeatd:new-conditions';

update entry set conditions = (select count(*) from problem where problem.kind = entry.kind and problem.name = entry.name
  and part = 'reported' and (over_at is null or exists (select 1 from problem_notice where problem_id = problem.id
  and problem_notice.kind <> 'over')));

create index problem_of_job on problem (name)
  where part = 'reported' and over_at is null and (jobs <> '[]' or senders <> '[]');

drop table condition_report;

drop table condition
"""


@migrations()
def m027_severity_before(db: Any) -> None:
    """The highest severity of earlier messages about the same opening that were not given up; null: there was none."""
    db.conn.execute("alter table problem_notice add column severity_before text")
    db.conn.execute("update problem_notice set severity_before = severity where known = 1")
    db.conn.execute("alter table problem_notice drop column known")


@migrations()
def m028_daemon_problems(db: Any) -> None:
    """What is wrong with the daemon itself is a problem too. A start finds out anew whether it still is."""
    for column in ("config_problem", "config_refused_at", "workers_problem"):
        db.conn.execute(f"alter table boot drop column {column}")


@migrations()
def m029_failures_since_resumed(db: Any) -> None:
    """The failures in a row that count for the longer interval, and those that count for the pause after failures."""
    db.conn.execute("alter table entry add column failures_for_backoff integer not null default 0")
    db.conn.execute("alter table entry add column failures_for_pause integer not null default 0")
    db.conn.execute("update entry set failures_for_backoff = failures")


@migrations()
def m030_monthly_budget(db: Any) -> None:
    """A budget may limit a month too: the sum of the days."""
    for table in ("spend", "budget"):
        db.conn.execute(f"alter table {table} add column usd_per_month real")


@migrations()
def m031_reminders(db: Any) -> None:
    """A reminder is a wake with the state `planned` until its time, `due_at`. `timer` 1: its time was given as a span."""
    merged = "state = 'waiting' and source <> 'reminder'"
    for statement in (
        "alter table wake add column timer integer not null default 0",
        "drop index wake_waiting",
        f"create unique index wake_waiting on wake (kind, name, source, sender, token) where {merged}",
        "create index wake_planned on wake (due_at) where state = 'planned'",
    ):
        db.conn.execute(statement)


@migrations()
def m032_job_after_job(db: Any) -> None:
    """The run after which another job runs."""
    db.conn.execute("alter table wake add column after_run integer")


@migrations()
def m033_held_messages(db: Any) -> None:
    """Messages that were held for the hours of their recipient may be sent as one: `merged_into` is the last part of that one."""
    db.conn.execute("alter table outbox add column merged_into integer")
    db.conn.execute("create index outbox_merged on outbox (merged_into) where merged_into is not null")


@migrations()
def m034_prompt_cache(db: Any) -> None:
    """The part of a prompt that is the same in each run, how long the provider was asked to keep it, and what that saved."""
    db.conn.execute("alter table run add column static_digest text")
    db.conn.execute("alter table run add column cache_ttl text")
    db.conn.execute("alter table run add column cache_saved_usd real")
    db.conn.execute("create index run_with_static_part on run (kind, name, id) where static_digest is not null")


@migrations()
def m035_fallbacks(db: Any) -> None:
    """The fallback that a run has called last, and why; null: it has called none."""
    db.conn.execute("alter table run add column fallback text")
    db.conn.execute("alter table run add column fallback_why text")


@migrations()
def m036_receipts(db: Any) -> None:
    """The number of a delivered message in its chat, which an answer to it names."""
    db.conn.execute("alter table outbox add column receipt text")
    db.conn.execute("create index outbox_receipt on outbox (receipt) where receipt is not null")


@migrations()
def m037_paused_after_failures(db: Any) -> None:
    """How many failures have paused an entry; 0: a person has. Until now only the text in `paused_by` said so."""
    db.conn.execute("alter table entry add column paused_after_failures integer not null default 0")
    db.conn.execute(
        "update entry set paused_after_failures = case when failures_for_pause > 0 then failures_for_pause else 1 end"
        " where paused_by in ('1 failure', '1,000 failures', cast(failures_for_pause as text) || ' failures')"
    )


@migrations()
def m038_undo_of_edits(db: Any) -> None:
    """What an edit of an agent over HTTP has replaced: values in the config, or its whole checklist, as JSON; null: no undo.

    The result of an edited checklist is `checklist`.
    """
    db.conn.execute("alter table config_event add column undo text")


@migrations()
def m039_questions(db: Any) -> None:
    """Questions of runs to people. `waits_since`: since then the run has waited for at least one answer without a break."""
    for statement in (
        """create table question (
  id integer primary key,
  run_id integer not null,
  kind text not null,
  name text not null,
  key text not null,                -- by which its run asks it again
  fence integer not null,           -- of the attempt that has asked it last
  text text not null,
  options text not null,            -- as JSON
  people text not null,             -- who may answer in chats, as JSON
  asked_by text not null,
  asked_at integer not null,
  waits_since integer not null,
  ends_at integer not null,
  state text not null,              -- open, answered, ended
  answer text,
  answered_by text,
  why text,                         -- it has ended without an answer
  ended_at integer
) strict""",
        "create unique index question_key on question (run_id, key)",
        "create index question_open on question (ends_at) where state = 'open'",
    ):
        db.conn.execute(statement)


@migrations()
def m040_source_state(db: Any) -> None:
    """What an agent has seen of the source of its precheck, as JSON; null: none of its looks was recorded."""
    db.conn.execute("alter table entry add column source_state text")
