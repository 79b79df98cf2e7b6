"""Defines the Operations dashboard: the daemon itself, its queue, database, deliveries, providers and HTTP API."""

from __future__ import annotations

from panels import (
    BAD,
    COLORS,
    GOOD,
    HERE,
    Panel,
    Row,
    increase,
    quantile,
    render,
    series,
    top_ten,
)

EXHAUSTED = f"max by (scope, kind, name, budget) ({series('budget_exhausted', HERE)})"

DAEMON = Row(
    "The daemon",
    (
        Panel(
            "Which daemons are up?",
            "`DOWN` means that Prometheus cannot reach the daemon. Run `heartbeatd status` on its machine: it also works "
            "while the daemon is down.",
            {"{{instance}}": f"min by (instance) (up{{{HERE}}})"},
            kind="stat",
            width=4,
            height=4,
            states={0: ("DOWN", BAD), 1: ("up", GOOD)},
            no_value="not scraped",
        ),
        Panel(
            "How long ago was the last tick?",
            "Age of the last tick, which is one iteration of the daemon's main loop. There is a tick at least every 30 "
            "seconds. Above 90 s, the main loop hangs or cannot write to its database: look at `/readyz` and the log.",
            {"{{instance}}": f"time() - {series('last_tick_timestamp_seconds', HERE)}"},
            kind="stat",
            unit="s",
            width=4,
            height=4,
            thresholds=(60, 90),
        ),
        Panel(
            "Is the saved config active?",
            "`no` means that the saved file was rejected and the previous config is still active. `heartbeatd check` names "
            "line and column.",
            {"{{instance}}": series("config_last_reload_successful", HERE)},
            kind="stat",
            width=4,
            height=4,
            states={0: ("no", BAD), 1: ("yes", GOOD)},
        ),
        Panel(
            "How long has it been running?",
            "Time since the start of the process. A value that stays small means that the daemon crashes again and again: "
            "read the end of the log.",
            {"{{instance}}": f"time() - process_start_time_seconds{{{HERE}}}"},
            kind="stat",
            unit="s",
            width=4,
            height=4,
            thresholds=(300, 900),
            more_is_better=True,
        ),
        Panel(
            "Is the disk reserve in place?",
            "Disk space that heartbeatd keeps for the moment when the disk is full. `none` means that the disk is full or "
            "nearly full.",
            {"{{instance}}": series("reserve_bytes", HERE)},
            kind="stat",
            unit="bytes",
            width=4,
            height=4,
            states={0: ("none", BAD)},
            base=GOOD,
        ),
        Panel(
            "Which version is running?",
            "The version of heartbeatd, and of the time zone data that its schedules use.",
            {"{{version}}, tzdata {{tzdata}}": series("build_info", HERE)},
            kind="stat",
            width=4,
            height=4,
            shows_legend=True,
            base=COLORS["planned skip"],
        ),
    ),
)

QUEUE = Row(
    "Queue and lateness",
    (
        Panel(
            "Is there room for more runs?",
            "Runs in progress, their limit, and the number of due runs that wait. If the limit is reached while runs wait, "
            "raise `limits.concurrency`.",
            {
                "running {{kind}}": f"sum by (kind) ({series('running', HERE)})",
                "limit": f"sum({series('concurrency_limit', HERE)})",
                "due": f"sum({series('due_entries', HERE)})",
            },
            width=8,
        ),
        Panel(
            "How late do planned runs start?",
            "Time from the due time of a run to its start, or to the moment when it was recorded as `missed`. Milliseconds "
            "are normal. Seconds mean that `limits.concurrency` was reached: raise it, or spread the runs with `stagger`.",
            {
                "{{kind}} median": quantile(0.5, "dispatch_lateness_seconds", HERE, "kind"),
                "{{kind}} p99": quantile(0.99, "dispatch_lateness_seconds", HERE, "kind"),
            },
            unit="s",
            width=8,
            no_value="no planned runs",
        ),
        Panel(
            "How long has the oldest due run waited?",
            "The time for which the oldest due run has waited for its start. Runs that have started do not count, so this also "
            "shows lateness while nothing starts.",
            {"{{instance}}": f"time() - {series('oldest_due_timestamp_seconds', HERE)}"},
            unit="s",
            width=8,
            no_value="nothing waits",
        ),
        Panel(
            "Do planned runs start on time?",
            "Planned runs that started at most a minute after they were due, and those that started later or never.",
            {"{{result}}": increase("slots_on_time_total", HERE, "result")},
            width=8,
            bars=True,
            no_value="no planned runs",
        ),
        Panel(
            "Which work was retried, recovered or discarded?",
            "Retried attempts, runs that a crashed daemon left open, results that came too late, and daemon processes that ended "
            "without a clean stop. Retries are an early sign of an unreliable provider or command.",
            {
                "retries {{kind}}": increase("retries_total", HERE, "kind"),
                "orphans {{kind}}": increase("orphans_recovered_total", HERE, "kind"),
                "stale results": increase("stale_results_total", HERE),
                "crashes": increase("crashes_total", HERE),
            },
            width=8,
            bars=True,
            no_value="none",
        ),
        Panel(
            "Which wakes were refused?",
            "Wakes that never reached an agent, by source and reason. `rejected` wakes came from the agent's own run, or "
            "too many wakes were waiting. `expired` wakes waited longer than `limits.wake_keep`.",
            {"{{source}} {{reason}}": increase("wakes_refused_total", HERE, "source, reason")},
            width=8,
            bars=True,
            no_value="no wake was refused",
        ),
    ),
)

PROVIDERS = Row(
    "Providers",
    (
        Panel(
            "How do calls to providers end?",
            "Calls by provider and result: `ok`, or the class of the error. `auth`, `payment` and `not_found` need your "
            "action: check the key, the account or the name of the model.",
            {"{{provider}} {{result}}": increase("provider_requests_total", HERE, "provider, result")},
            width=8,
            bars=True,
            no_value="no model calls",
        ),
        Panel(
            "How long do calls to models take?",
            "Median and 99th percentile by model. If they are close to a `timeout`, its runs will soon time out.",
            {
                "{{model}} median": quantile(0.5, "provider_request_duration_seconds", HERE, "model"),
                "{{model}} p99": quantile(0.99, "provider_request_duration_seconds", HERE, "model"),
            },
            unit="s",
            width=8,
            no_value="no model calls",
        ),
        Panel(
            "Which circuit breakers are open?",
            "Providers and models to which no call is made, because they refused calls. `heartbeatd status` shows the reason and "
            "the time of the next trial call.",
            {
                "{{provider}}": f"max by (provider) ({series('breaker_open', HERE)}) > 0",
                "{{provider}} {{model}}": f"max by (provider, model) ({series('breaker_model_open', HERE)}) > 0",
            },
            width=8,
            maximum=1,
            no_value="none is open",
        ),
        Panel(
            "How many tokens are used?",
            "Tokens by requested model. A model that uses unexpectedly many tokens is visible here first.",
            {"{{model}}": increase("tokens_total", HERE, "model")},
            width=8,
            bars=True,
            no_value="no model calls",
        ),
        Panel(
            "Which models have no price, or differ from the requested one?",
            "Tokens of models without a price in the config, so their cost is unknown: add the model to `prices`. Mismatches "
            "are answers by a different model than the requested one.",
            {
                "{{model}} unpriced tokens": increase("unpriced_tokens_total", HERE, "model"),
                "{{name}} mismatches": top_ten(increase("model_mismatches_total", HERE, "kind, name")),
            },
            width=8,
            bars=True,
            no_value="none",
            entry="labels",
        ),
        Panel(
            "Which budgets are exhausted?",
            "Budgets of today that leave no room for another run. Runs are skipped with the reason `budget` until the next day.",
            {"{{scope}} {{name}} {{budget}}": top_ten(f"{EXHAUSTED} > 0")},
            width=8,
            maximum=1,
            no_value="none is exhausted",
            entry="labels",
        ),
        Panel(
            "Which agents and jobs does a fallback answer for?",
            "Runs that a fallback has answered, because the agent itself could not be called. `heartbeatd explain "
            "NAME` shows since when, and why.",
            {"{{kind}}/{{name}}": top_ten(increase("fallbacks_total", HERE, "kind, name"))},
            bars=True,
            no_value="no fallback is in use",
            entry="labels",
        ),
        Panel(
            "Which accounts have reached their usage limit?",
            "The time until the limit of the account ends. Until then, no program with this account is called. Agents and "
            "jobs run again by themselves.",
            {"{{account}}": f"max by (account) ({series('account_limited_until_timestamp_seconds', HERE)}) - time()"},
            unit="s",
            no_value="none",
        ),
    ),
)

DELIVERY = Row(
    "Deliveries",
    (
        Panel(
            "How many messages are pending or dead?",
            "Messages by channel that are not sent yet (pending), and messages that are not sent any more, because "
            "their last attempt failed (dead). `heartbeatd outbox` lists them.",
            {
                "{{channel}} pending": f"sum by (channel) ({series('outbox_pending', HERE)}) > 0",
                "{{channel}} dead": f"sum by (channel) ({series('outbox_dead', HERE)}) > 0",
            },
            width=8,
            no_value="all delivered",
        ),
        Panel(
            "How old is the oldest undelivered message?",
            "Age by channel. A message is retried for one day.",
            {"{{channel}}": f"time() - min by (channel) ({series('outbox_oldest_timestamp_seconds', HERE)})"},
            unit="s",
            width=8,
            no_value="all delivered",
        ),
        Panel(
            "How did deliveries end?",
            "Deliveries by channel and result. `retried` messages will be sent again. `uncertain` messages may have arrived. "
            "`dead` messages are not sent any more.",
            {"{{channel}} {{result}}": increase("deliveries_total", HERE, "channel, result")},
            width=8,
            bars=True,
            no_value="no messages",
        ),
        Panel(
            "Do messages arrive on time?",
            "Messages that were delivered within five minutes, and messages that took longer or were not delivered.",
            {"{{channel}} {{result}}": increase("messages_on_time_total", HERE, "channel, result")},
            bars=True,
            no_value="no messages",
        ),
        Panel(
            "Who presses buttons?",
            "Presses of buttons under messages, by channel and result. `forged`, `wrong_chat` and `replayed` presses come "
            "from a user who may not press them.",
            {"{{channel}} {{result}}": increase("button_presses_total", HERE, "channel, result")},
            bars=True,
            no_value="no button was pressed",
        ),
    ),
)

WORKERS = Row(
    "Workers on other machines",
    (
        Panel(
            "Can the queue of the workers be used?",
            "`no` means that the daemon cannot use the queue in PostgreSQL, so no run starts. `heartbeatd doctor` shows the "
            "reason. The panels of this row have data only with `executor: {kind: procrastinate}` in the config.",
            {"{{instance}}": series("queue_available", HERE)},
            kind="stat",
            width=6,
            height=8,
            states={0: ("no", BAD), 1: ("yes", GOOD)},
            no_value="not in use, or unknown",
        ),
        Panel(
            "How many workers are running?",
            "Workers that take runs of a queue. Without a worker, its runs wait. There is no value while the queues cannot be "
            "used.",
            {"{{instance}} {{queue}}": series("workers", HERE)},
            width=6,
            no_value="not in use, or unknown",
        ),
        Panel(
            "How many runs wait for a worker?",
            "Runs of a queue that no worker has taken yet. If the number grows, start another worker of this queue.",
            {"{{instance}} {{queue}}": series("queue_waiting", HERE)},
            width=6,
            no_value="not in use, or unknown",
        ),
        Panel(
            "How long has the oldest run waited for a worker?",
            "The time for which the first run of a queue has waited. If it stays above a minute, all workers are busy: start "
            "another worker, or raise `--concurrency` of `heartbeatd worker`.",
            {"{{instance}} {{queue}}": f"time() - {series('queue_oldest_timestamp_seconds', HERE)}"},
            unit="s",
            width=6,
            no_value="no run waits",
        ),
    ),
)

LEADER = Row(
    "Leader and standbys",
    (
        Panel(
            "Which daemon leads?",
            "One of the daemons that share a database on a server leads, and starts the runs. The panels of this row have data "
            "only with `state: postgresql://...` in the config.",
            {"{{instance}}": series("standby", HERE)},
            kind="stat",
            width=8,
            height=8,
            states={0: ("leads", GOOD), 1: ("on standby", COLORS["planned skip"])},
            no_value="no server in use",
        ),
        Panel(
            "How often has the leader changed?",
            "The epoch counts how many times a daemon has begun to lead: at a start, or as it took over. If it grows often, "
            "the leader loses its lease again and again: read `leadership_lost` in its log.",
            {"epoch": f"max({series('leader_epoch', HERE)})"},
            width=8,
            no_value="no server in use",
        ),
        Panel(
            "How long ago did the leader renew its lease?",
            "It renews its lease every second. After 4 s without a renewal, it ends its runs. After 6 s, another daemon can "
            "lead.",
            {"{{instance}}": series("leader_lag_seconds", HERE)},
            unit="s",
            width=8,
            no_value="no server in use",
        ),
    ),
)

PROCESS = Row(
    "Database and process",
    (
        Panel(
            "How large is the database?",
            "Size of the database (`db`) and of its write-ahead log (`wal`). If the log stays above 4 MiB, another program keeps "
            "a read transaction open.",
            {"{{file}}": f"sum by (file) ({series('db_bytes', HERE)})"},
            unit="bytes",
            width=6,
        ),
        Panel(
            "Are there problems with the database or the clock?",
            "Ticks that could not write to the database (another program has locked it, or the disk is full), changes of the "
            "system clock (or a suspended machine), and skipped runs that became due again after such a change.",
            {
                "database busy": increase("db_busy_total", HERE),
                "clock {{direction}}": increase("clock_jumps_total", HERE, "direction"),
                "skips taken back": increase("skips_taken_back_total", HERE),
            },
            width=6,
            bars=True,
            no_value="none",
        ),
        Panel(
            "Which parts of the daemon had internal errors?",
            "Unexpected exceptions, by the part of the main loop in which they occurred. All other parts continued. The log has "
            "a line for each, such as `part_broken`.",
            {"{{part}}": increase("internal_errors_total", HERE, "part")},
            width=6,
            bars=True,
            no_value="none",
        ),
        Panel(
            "Does the dead man's switch get its pings?",
            "Pings to the dead man's switch by result. After failed pings, it raises an alarm although the daemon works.",
            {"{{result}}": increase("deadman_pings_total", HERE, "result")},
            width=6,
            bars=True,
            no_value="no dead man's switch is set",
        ),
        Panel(
            "How much CPU time does the process use?",
            "CPU seconds per second of the daemon. The commands and prechecks that it starts are not included.",
            {"{{instance}}": f"rate(process_cpu_seconds_total{{{HERE}}}[$__rate_interval])"},
            width=8,
        ),
        Panel(
            "How much memory does the process use?",
            "Resident memory of the daemon. If it grows for days, report it with the size of the config.",
            {"{{instance}}": f"process_resident_memory_bytes{{{HERE}}}"},
            unit="bytes",
            width=8,
        ),
        Panel(
            "How many files does the process keep open?",
            "Open file descriptors and their limit. Each run of a command and each connection needs some.",
            {
                "{{instance}}": f"process_open_fds{{{HERE}}}",
                "{{instance}} limit": f"process_max_fds{{{HERE}}}",
            },
            width=8,
        ),
    ),
)

HTTP = Row(
    "HTTP API and scrapes",
    (
        Panel(
            "Which requests does the HTTP API get?",
            "Requests by route and status code. Unknown paths are counted together as `unknown`.",
            {"{{route}} {{code}}": top_ten(increase("http_requests_total", HERE, "route, code"))},
            width=8,
            bars=True,
            no_value="no requests",
        ),
        Panel(
            "Are tokens refused?",
            "Requests with a missing or wrong token. A few come from a mistyped token. Many may be an attack.",
            {"refused": increase("http_tokens_refused_total", HERE)},
            width=8,
            bars=True,
            no_value="no token was refused",
        ),
        Panel(
            "How many agents and jobs have no series?",
            "Agents and jobs beyond `server.metrics_entries`. They run, but have no metrics of their own. If this is not 0, "
            "raise the limit.",
            {"{{instance}}": series("entries_without_series", HERE)},
            kind="stat",
            width=8,
            height=8,
            thresholds=(1,),
        ),
    ),
)


def dashboard() -> str:
    """The dashboard as JSON text."""
    return render(
        uid="heartbeatd-operations",
        title="heartbeatd: Operations",
        description="Queue, lateness, providers, deliveries, workers, leader, database, process and HTTP API of heartbeatd.",
        rows=(DAEMON, QUEUE, PROVIDERS, DELIVERY, WORKERS, LEADER, PROCESS, HTTP),
        variables=(),
    )
