"""Defines the tables of the database, as migrations. A migration is never edited after its release.

Each also runs on a PostgreSQL server, so its SQL is such as both know. Column types are written as in FIRST_SCHEMA.

A new column of `run` also concerns AttemptResult in scheduler/model/outcome.py, the statements in scheduler/store/runs.py and
run_history.py, and heartbeatd/answers.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from typing import Any

Change = Callable[[Any], None]


class Migrations:
    """The changes of the tables by name, in their order. Each is called with an object whose `conn` is the connection.

    The library that applies them is slow to import, so readers do without it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.all: dict[str, Change] = {}

    def __call__(self, change: Change) -> Change:
        """Decorate a function as the next migration, with its name."""
        self.all[change.__name__] = change
        return change

    def applied(self, connection: sqlite3.Connection) -> list[str]:
        """The names of the migrations that this database has, also of unknown ones."""
        if connection.execute("select 1 from sqlite_master where name = '_sqlite_migrations'").fetchone() is None:
            return []
        found = connection.execute("select name from _sqlite_migrations where migration_set = ? order by rowid", (self.name,))
        return [row[0] for row in found]

    def pending(self, connection: sqlite3.Connection) -> list[str]:
        """The names of the migrations that this database does not have yet."""
        applied = self.applied(connection)
        return [name for name in self.all if name not in applied]

    def obstacle(self, applied: Collection[str]) -> str | None:
        """Why this version cannot use a database with these migrations, as the end of a sentence; None: it can."""
        known = list(self.all)
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
        for name, change in self.all.items():
            steps(name=name)(change)
        steps.apply(sqlite_utils.Database(connection), stop_before=stop_before)


migrations = Migrations("heartbeatd")


@migrations
def m046_budgets_are_recorded_once(db: Any) -> None:
    """All tables, as the version of 30 November 2026 has them. Its name is that of the last migration of that version."""
    for statement in FIRST_SCHEMA.split(";\n"):
        db.conn.execute(statement)


# The ids of runs, wakes, messages and problems (`autoincrement`) are never reused, even if the newest rows are deleted: people
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
  failures_for_backoff integer not null default 0,  -- of these, since it was last resumed
  failures_for_pause integer not null default 0,    -- of these, those that no provider has caused
  quiet integer not null default 0,
  alerting integer not null default 0,
  precheck text,                    -- digest of what the precheck last printed
  queue integer,                    -- what waits for the agent, as a gateway last reported
  approvals integer,                -- what waits for its user
  active_at integer,                -- when the gateway did
  unconfirmed text,
  unconfirmed_answers integer not null default 0,
  looked_at integer,
  looked_lines text,
  source_state text,                -- what it has seen of the source of its precheck, as JSON; null: no look was recorded
  muted_until integer,
  mute text,                        -- who muted it, and what was known then, as JSON
  paused_at integer,
  paused_by text,
  paused_after_failures integer not null default 0,  -- so many failures have paused it; 0: a person has
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
  static_digest text,               -- the part of its prompt that is the same in each run
  cache_ttl text,                   -- how long the provider was asked to keep that part; null: not at all
  cache_saved_usd real,             -- what that has saved
  fallback text,                    -- that it has called last; null: none
  fallback_why text,
  unique (kind, name, trigger, slot)
) strict;

create unique index run_open on run (kind, name) where state in ('running', 'waiting');

create index run_of_entry on run (kind, name, id);

create index run_finished on run (finished_at) where state = 'closed';

create index run_started on run (kind, name, trigger, started_at);

create index run_awaited on run (result_due_at) where result_due_at is not null;

create index run_with_static_part on run (kind, name, id) where static_digest is not null;

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
  due_at integer,                   -- when it may start a run; null: it waits for the next one. The time of a reminder
  held_until integer,               -- until then it waits for others that are to come with it
  tries integer not null default 0, -- runs that were to deliver it, and did not
  state text not null,              -- planned (a reminder before its time), waiting, taken, ended
  run_id integer,
  token text not null default '',   -- that a program used; empty for users and jobs
  waits_for text,                   -- why it started no run at once: a reason of a run, wake_gap or wake_flood
  started integer not null default 0, -- 1: it started the run that has taken it
  timer integer not null default 0, -- of a reminder. 1: its time was given as a span
  after_run integer                 -- the run after which another job runs
) strict;

create unique index wake_waiting on wake (kind, name, source, sender, token) where state = 'waiting' and source <> 'reminder';

create index wake_planned on wake (due_at) where state = 'planned';

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
  merged_into integer,              -- the last part of the message that is sent instead of it and others; null: none
  receipt text,                     -- its number in its chat, which an answer to it names
  unique (key, channel)
) strict;

create index outbox_pending on outbox (not_before) where state = 'pending';

create index outbox_sending on outbox (id) where state in ('sending', 'uncertain', 'held');

create index outbox_channel on outbox (channel, state, created_at);

create index outbox_run on outbox (run_id);

create index outbox_merged on outbox (merged_into) where merged_into is not null;

create index outbox_receipt on outbox (receipt) where receipt is not null;

create index outbox_held_back on outbox (name, id) where awaits is not null and state = 'pending';

create index outbox_of_entry on outbox (kind, name, channel, state, id);

create table question (
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
  waits_since integer not null,     -- since then the run has waited for at least one answer without a break
  ends_at integer not null,
  state text not null,              -- open, answered, ended
  answer text,
  answered_by text,
  why text,                         -- it has ended without an answer
  ended_at integer
) strict;

create unique index question_key on question (run_id, key);

create index question_open on question (ends_at) where state = 'open';

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

create table problem (
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
  count integer not null,           -- how often in a row it was seen
  since integer not null,
  last_seen_at integer not null,
  opened_at integer,                -- null until it was seen often enough
  over_at integer,
  openings text not null,           -- the latest, as JSON
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
  events text not null default '[]', -- at its source that it is about, as JSON
  acked_at integer,
  acked_severity text,
  acked_by text not null default '',
  unique (kind, name, part, key)
) strict;

create index problem_of_cause on problem (cause_id) where cause_id is not null;

create index problem_of_job on problem (name)
  where part = 'reported' and over_at is null and (jobs <> '[]' or senders <> '[]');

create index problem_not_over on problem (kind, name, part) where over_at is null;

create table problem_notice (
  problem_id integer not null,
  channel text not null,
  whom text not null,
  kind text not null,               -- what the recipient last got: open, unstable, over, lost_end
  severity text not null,
  told_at integer not null,
  faults text not null,             -- the errors of which it was notified, as JSON
  outbox_id integer,                -- the last part of the last message; null: nothing was sent
  severity_before text,             -- the highest of earlier messages about this opening that were not given up; null: none
  primary key (problem_id, channel, whom)
) strict, without rowid;

create index problem_notice_not_over on problem_notice (problem_id) where kind <> 'over';

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
  deadman_problem text,             -- why pings to the dead man's switch do not arrive
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

create table config_in_force (
  id integer primary key check (id = 1),
  at integer not null,              -- when it was put in force
  path text not null,
  hash text not null,
  mode text not null,               -- watch, manual
  overrides text not null,          -- names of the environment variables that changed it, as JSON
  snapshot blob not null,           -- its data without secrets, as compressed JSON
  zone text,                        -- of the times that commands print; null: that of the host
  overridden text                   -- the environment variables that set values, with the values of the file, as JSON
) strict;

create table config_event (
  id integer primary key autoincrement,
  at integer not null,
  result text not null,             -- applied, refused, checklist (edited), started (the config had changed before a start)
  actor text not null,              -- file watch, SIGHUP, command, token NAME, start
  config_hash text not null,        -- of the config in force afterwards
  diff text not null,               -- old and new values without secrets, as JSON
  problem text,                     -- the errors of a refused config
  undo text                         -- what an edit over HTTP has replaced, as JSON; null: no undo
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
  usd_per_month real,
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


@migrations
def m047_runs_of_accounts(db: Any) -> None:
    """A run keeps the accounts of the programs that it has called, because the runs of an account have a limit."""
    db.conn.execute("alter table run add column accounts text")  # as JSON; null: none
    db.conn.execute("create index run_with_account on run (started_at) where accounts is not null")
