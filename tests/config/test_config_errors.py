"""Tests the errors of a config: each has its position, its problem and its advice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from config_file import ENVIRON, RIGHT, SMALL, complaints, warnings
from loops import loop_over

from scheduler.config.file.diagnostics import ConfigError, Diagnostic
from scheduler.config.keys import validation
from scheduler.config.settings.load import load_config

# fmt: off
FAULTS = [
    # a text of the valid file, the text in its place, and the resulting error
    ('30m', 'soon', "config.yaml:14:17: agents.ops.heartbeat.interval: 'soon' is not a duration; write 90s, 30m or 1h30m"),
    ('30m', '30', 'config.yaml:14:17: agents.ops.heartbeat.interval: 30 has no unit; write 90s, 30m or 1h30m'),
    ('30m', '1.5h', "config.yaml:14:17: agents.ops.heartbeat.interval: '1.5h' is not a duration; write 90s, 30m or 1h30m"),
    ('30m', '30 minutes', "config.yaml:14:17: agents.ops.heartbeat.interval: '30 minutes' is not a duration; write 90s, 30m or 1h30m"),
    ('30m', "'30'", "config.yaml:14:17: agents.ops.heartbeat.interval: '30' is not a duration; write 90s, 30m or 1h30m"),
    ('30m', 'yes', "config.yaml:14:17: agents.ops.heartbeat.interval: 'yes' is not a duration; write 90s, 30m or 1h30m"),
    ('30m', 'true', 'config.yaml:14:17: agents.ops.heartbeat.interval: true is not a duration; write 90s, 30m or 1h30m'),
    ('30m', '', 'config.yaml:14:16: agents.ops.heartbeat.interval: an empty value is not a duration; write 90s, 30m or 1h30m'),
    ('30m', '[30m]', 'config.yaml:14:17: agents.ops.heartbeat.interval: a list is not a duration; write 90s, 30m or 1h30m'),
    ('30m', '9999d', "config.yaml:14:17: agents.ops.heartbeat.interval: '9999d' is more than ten years; write at most 3660d"),
    ('      interval: 30m\n', '', 'config.yaml:13:5: agents.ops.heartbeat.interval: is missing; write interval: 30m, schedule: "0 9 * * *", or interval: none for an agent that runs only when woken'),
    ('retries: 2', 'schedule: "0 9 * * *"', 'config.yaml:16:17: agents.ops.heartbeat.schedule: interval and schedule exclude each other; keep one of them'),
    ('interval: 30m', 'schedule: "0 9 * *"', 'config.yaml:14:17: agents.ops.heartbeat.schedule: the expression has 4 fields; write five: minute hour day-of-month month day-of-week'),
    ('interval: 30m', 'schedule: "@reboot"', 'config.yaml:14:17: agents.ops.heartbeat.schedule: @reboot is not a time of day; write five fields, such as 0 3 * * *'),
    ('interval: 30m', 'schedule: "0 3 * * *"', 'config.yaml:14:17: agents.ops.heartbeat.schedule: no time of the schedule is inside the active hours; change schedule or active_hours'),
    ('interval: 30m', 'schedule: 0 9 * * *\n      stagger: 2d', "config.yaml:15:16: agents.ops.heartbeat.stagger: 2d is more than the shortest interval, 1d; write 1d or less"),
    ('interval: 30m', 'schedule: 0 9 * * *\n      backoff_on_failure: true', 'config.yaml:15:27: agents.ops.heartbeat.backoff_on_failure: there is no interval to double; remove backoff_on_failure, or write interval: 30m'),
    ('interval: 30m', 'interval: none\n      backoff_on_failure: true', 'config.yaml:15:27: agents.ops.heartbeat.backoff_on_failure: there is no interval to double; remove backoff_on_failure, or write interval: 30m'),
    ('retries: 2', 'backoff_on_failure: 8', 'config.yaml:16:27: agents.ops.heartbeat.backoff_on_failure: 8 is not true or false; write true or false'),
    ('interval', 'intervall', 'config.yaml:14:7: agents.ops.heartbeat.intervall: unknown key; did you mean interval?'),
    ('  heartbeat:\n', '  hartbeat:\n', 'config.yaml:13:5: agents.ops.hartbeat: unknown key; did you mean heartbeat?'),
    ('wake_heartbeat: ops', 'wakeheartbeat: ops', 'config.yaml:21:5: cron.nightly.wakeheartbeat: unknown key; did you mean wake_heartbeat?'),
    ('\ncron:', '\ncrons:', 'config.yaml:17:1: crons: unknown key; did you mean cron?'),
    ('retries: 2', 'retries: 11', 'config.yaml:16:16: agents.ops.heartbeat.retries: 11 is out of range; write 10 or less'),
    ('retries: 2', "retries: '2'", "config.yaml:16:16: agents.ops.heartbeat.retries: '2' is not a whole number; write a number such as 2"),
    ('retries: 2', 'retries: 02', "config.yaml:16:16: agents.ops.heartbeat.retries: '02' is not a whole number; write a number such as 2"),
    ('retries: 2', 'retries: 2.0', 'config.yaml:16:16: agents.ops.heartbeat.retries: 2.0 is not a whole number; write a number such as 2'),
    ('retries: 2', 'retries: 2\n      retries: 3', 'config.yaml:17:7: agents.ops.heartbeat.retries: is given twice; the first is on line 16'),
    ('retries: 2', 'show_ok: yes', "config.yaml:16:16: agents.ops.heartbeat.show_ok: 'yes' is not true or false; write true or false"),
    ('retries: 2', 'ok_match: edge', "config.yaml:16:17: agents.ops.heartbeat.ok_match: 'edge' is not allowed here; did you mean edges?"),
    ('retries: 2', 'stagger: 110%', "config.yaml:16:16: agents.ops.heartbeat.stagger: '110%' is neither a percentage up to 100% nor a duration; write 10% or 90s"),
    ('retries: 2', 'stagger: lots', "config.yaml:16:16: agents.ops.heartbeat.stagger: 'lots' is neither a percentage up to 100% nor a duration; write 10% or 90s"),
    ('retries: 2', 'stagger: 2h', 'config.yaml:16:16: agents.ops.heartbeat.stagger: 2h is more than the shortest interval, 30m; write 30m or less'),
    ('retries: 2', 'timeout: 0s', "config.yaml:16:16: agents.ops.heartbeat.timeout: '0s' is zero; write 90s, 30m or 1h30m"),
    ('context: [SOUL.md]', 'executor: {queue: gpu}', 'config.yaml:12:23: agents.ops.executor.queue: the daemon executes all runs itself; write executor: {kind: procrastinate, dsn: ...} at the top of the file'),
    ('retries: 2', 'deliver: hok', "config.yaml:16:16: agents.ops.heartbeat.deliver: 'hok' is not a declared channel; did you mean hook?"),
    ('retries: 2', 'deliver: [log, hook, log]', "config.yaml:16:28: agents.ops.heartbeat.deliver[2]: 'log' is listed twice; remove one of them"),
    ('retries: 2', 'checklist: ../x', "config.yaml:16:18: agents.ops.heartbeat.checklist: '../x' is outside the workspace; write the name of a file inside it"),
    ('retries: 2', 'checklist: "- Look."', "config.yaml:16:18: agents.ops.heartbeat.checklist: '- Look.' has no line break, so it would be the name of a file; to write the checklist here, end it with a line break, in double quotes: \"- Look.\\n\""),
    ('retries: 2', "checklist: '# Mail\\n'", "config.yaml:16:18: agents.ops.heartbeat.checklist: '# Mail\\\\n' has no line break, so it would be the name of a file; to write the checklist here, end it with a line break, in double quotes: \"- Look.\\n\""),
    ('retries: 2', 'checklist: /etc/passwd', "config.yaml:16:18: agents.ops.heartbeat.checklist: '/etc/passwd' is outside the workspace; write the name of a file inside it"),
    ('retries: 2', 'dedup: 24h', 'config.yaml:16:14: agents.ops.heartbeat.dedup: this must be a map of keys with values; write {window: 24h}'),
    ('retries: 2', 'prompt: 5', 'config.yaml:16:15: agents.ops.heartbeat.prompt: this is not read as text; put it in quotes'),
    ('retries: 2', 'model: 022', 'config.yaml:16:14: agents.ops.heartbeat.model: this is not read as text; put it in quotes'),
    ('retries: 2', 'misfire: {grace: -1s}', "config.yaml:16:24: agents.ops.heartbeat.misfire.grace: '-1s' is not a duration; write 90s, 30m or 1h30m"),
    ('"08:00"', '08:00x', 'config.yaml:15:29: agents.ops.heartbeat.active_hours.start: a colon is not expected inside brackets; put the text in quotes, like "08:00" or "127.0.0.1:8080"'),
    ('{start: "08:00", end: "22:00"}', '\n        start: 08:00\n        end: "22:00"', 'config.yaml:16:16: agents.ops.heartbeat.active_hours.start: \'08:00\' must be in quotes, because other programs read it as a number; write "08:00", two digits each'),
    ('"08:00"', '"8:00"', 'config.yaml:15:29: agents.ops.heartbeat.active_hours.start: \'8:00\' is not a time; write "08:00", two digits each'),
    ('"08:00"', '480', 'config.yaml:15:29: agents.ops.heartbeat.active_hours.start: 480 is not a time; write "08:00", two digits each'),
    ('"08:00"', '"22:00"', 'config.yaml:15:7: agents.ops.heartbeat.active_hours: start and end are the same; write two different times, or active_hours: always'),
    ('"08:00"', '"24:00"', 'config.yaml:15:29: agents.ops.heartbeat.active_hours.start: 24:00 cannot be a start; write "00:00"'),
    ('end: "22:00"', 'days: mon', 'config.yaml:15:7: agents.ops.heartbeat.active_hours.end: is missing; write end: "22:00"'),
    ('end: "22:00"', 'end: "22:00", days: [mon, tuesday]', "config.yaml:15:64: agents.ops.heartbeat.active_hours.days[1]: 'tuesday' is not a day; write mon, tue, wed, thu, fri, sat or sun, or a range like mon-fri"),
    ('end: "22:00"', 'end: "22:00", timezone: Berlin', "config.yaml:15:62: agents.ops.heartbeat.active_hours.timezone: 'Berlin' is not a time zone; did you mean Europe/Berlin?"),
    ('{start: "08:00", end: "22:00"}', 'daytime', 'config.yaml:15:21: agents.ops.heartbeat.active_hours: \'daytime\' is not a window; write "08:00-22:00" or {start: "08:00", end: "22:00"}'),
    ('{start: "08:00", end: "22:00"}', '["08:00-12:00", "14:00-1800"]', 'config.yaml:15:37: agents.ops.heartbeat.active_hours[1]: \'1800\' is not a time; write "22:00", two digits each'),
    ('[SOUL.md]', '[SOUL.md, ../../secret]', "config.yaml:12:24: agents.ops.context[1]: '../../secret' is outside the workspace; write the name of a file inside it"),
    ('[SOUL.md]', '[SOUL.md, 5]', 'config.yaml:12:24: agents.ops.context[1]: this is not read as text; put it in quotes'),
    ('[cat]', 'cat', 'config.yaml:8:33: defaults.runner.argv: this must be a list, not a string; write [program, argument]'),
    ('[cat]', '[]', 'config.yaml:8:33: defaults.runner.argv: no program is named; write [program, argument]'),
    ('[cat]', '[cat, 5]', 'config.yaml:8:39: defaults.runner.argv[1]: this is not read as text; put it in quotes'),
    (', argv: [cat]', '', 'config.yaml:8:3: defaults.runner.argv: is missing; write argv: [program, argument]'),
    ('kind: command', 'kind: commando', "config.yaml:8:18: defaults.runner.kind: 'commando' is not allowed here; did you mean command?"),
    ('argv: [cat]', 'argv: [cat], env: {A: 5}', 'config.yaml:8:49: defaults.runner.env.A: this is not read as text; put it in quotes'),
    ('argv: [cat]', 'argv: [cat], env: {A-B: x}', "config.yaml:8:46: defaults.runner.env.A-B: 'A-B' is not the name of a variable; use A-Z, a-z, 0-9 and _, not starting with a digit"),
    ('argv: [cat]', 'argv: [cat], env: {A: "${NOPE}"}', 'config.yaml:8:49: defaults.runner.env.A: NOPE is not set; export it before heartbeatd starts, or write it into the env_file'),
    ('argv: [cat]', 'argv: [cat], env: {A: "${NOPE:-x}"}', 'config.yaml:8:49: defaults.runner.env.A: this contains an invalid reference; write ${NAME} or ${file:PATH}'),
    ('argv: [cat]', 'argv: [cat], env: {A: "${file:none.txt}"}', 'config.yaml:8:49: defaults.runner.env.A: none.txt cannot be read: No such file or directory'),
    ('argv: [cat]', 'argv: [cat], env: [A=b]', 'config.yaml:8:45: defaults.runner.env: this must be a map of names with values; write {NAME: VALUE}'),
    ('agents/ops\n', '~\n', 'config.yaml:11:16: agents.ops.workspace: this must be a string, not an empty value; write "TEXT"'),
    ('agents/ops\n', '5\n', 'config.yaml:11:16: agents.ops.workspace: this is not read as text; put it in quotes'),
    ('Europe/Berlin', 'Europe', "config.yaml:1:11: timezone: 'Europe' is not a time zone; write an IANA name, like Europe/Berlin or UTC"),
    ('Europe/Berlin', 'Europe/Berln', "config.yaml:1:11: timezone: 'Europe/Berln' is not a time zone; did you mean Europe/Berlin?"),
    ('Europe/Berlin', 'berlin', "config.yaml:1:11: timezone: 'berlin' is not a time zone; did you mean Europe/Berlin?"),
    ('Europe/Berlin', "''", "config.yaml:1:11: timezone: '' is not a time zone; write an IANA name, like Europe/Berlin or UTC"),
    ('Europe/Berlin', 'CEST', "config.yaml:1:11: timezone: 'CEST' is not a time zone; write an IANA name, like Europe/Berlin or UTC"),
    ('127.0.0.1:7857', '7857', 'config.yaml:2:18: server.listen: this is not an address with a port; write "127.0.0.1:7857"'),
    ('127.0.0.1:7857', '127.0.0.1:99999', 'config.yaml:2:18: server.listen: this is not an address with a port; write "127.0.0.1:7857"'),
    ('"127.0.0.1:7857", tokens: {bot: {value: "${TOKEN}", may: [read, wake], agents: [ops]}}', '"0.0.0.0:7857"', 'config.yaml:2:18: server.listen: 0.0.0.0 can be reached from other machines; declare server.tokens, or listen on 127.0.0.1:7857'),
    ('${TOKEN}', '${SHORT}', 'config.yaml:2:58: server.tokens.bot.value: this token is shorter than 16 bytes; make one with: openssl rand -hex 16'),
    ('${TOKEN}', '${BLANKS}', 'config.yaml:2:58: server.tokens.bot.value: a token is sent in a header; use only ASCII letters, digits and punctuation, no spaces'),
    ('${TOKEN}', '${SAME}', 'config.yaml:2:58: server.tokens.bot.value: this token is easy to guess; make one with: openssl rand -hex 16'),
    ('${TOKEN}', '${AGAIN}', 'config.yaml:2:58: server.tokens.bot.value: this token is easy to guess; make one with: openssl rand -hex 16'),
    ('${TOKEN}', '${ROW}', 'config.yaml:2:58: server.tokens.bot.value: this token is easy to guess; make one with: openssl rand -hex 16'),
    ('${TOKEN}', '${NOPE}', 'config.yaml:2:58: server.tokens.bot.value: NOPE is not set; export it before heartbeatd starts, or write it into the env_file'),
    ('[read, wake]', '[read, write]', "config.yaml:2:82: server.tokens.bot.may[1]: 'write' is not allowed here; write read, wake, operate or edit"),
    ('[read, wake]', '[]', 'config.yaml:2:75: server.tokens.bot.may: the list is empty; write at least one item'),
    (', may: [read, wake]', '', 'config.yaml:2:45: server.tokens.bot.may: is missing; write may: [read, wake]'),
    ('agents: [ops]', 'agents: [opps]', "config.yaml:2:98: server.tokens.bot.agents[0]: 'opps' is not a declared agent; did you mean ops?"),
    ('concurrency: 8', 'concurrency: 0', 'config.yaml:3:23: limits.concurrency: 0 is out of range; write 1 or more'),
    ('5 per 10m', '5 in 10m', "config.yaml:3:38: limits.wake_flood: '5 in 10m' is not a rate; write 5 per 10m"),
    ('5 per 10m', '0 per 10m', "config.yaml:3:38: limits.wake_flood: '0 per 10m' is not a rate; write 5 per 10m"),
    ('  hook:', '  log:', 'config.yaml:5:3: channels.log: log is reserved in deliver:; use another name'),
    ('  hook:', '  none:', 'config.yaml:5:3: channels.none: none is reserved in deliver:; use another name'),
    ('{kind: webhook, url: "https://example.org/x"}', '["tgram://1/2"]', 'config.yaml:5:9: channels.hook: this must be a map of keys with values; write {url: "tgram://TOKEN/CHAT"}'),
    ('{kind: webhook, url: "https://example.org/x"}', 'tgram://1:canary', 'config.yaml:5:9: channels.hook: this is not the URL of a Telegram chat; write tgram://TOKEN/CHAT, or tgram://TOKEN/CHAT:TOPIC'),
    ('{kind: webhook, url: "https://example.org/x"}', 'discord://canary/1', 'config.yaml:5:9: channels.hook: this is not the URL of a Discord webhook; write discord://ID/TOKEN, or the https:// one that Discord shows'),
    ('{kind: webhook, url: "https://example.org/x"}', 'https://example.org/canary', 'config.yaml:5:9: channels.hook: an https:// address alone names no kind; write {kind: webhook, url: "https://..."} or kind: discord'),
    ('{kind: webhook, url: "https://example.org/x"}', 'carrier://pigeon:canary@host', 'config.yaml:5:9: channels.hook: carrier:// cannot be used: this is not a URL of a service that Apprise supports, or a part of it is missing'),
    ('{kind: webhook, url: "https://example.org/x"}', 'slack://canary', 'config.yaml:5:9: channels.hook: slack:// cannot be used: this is not a URL of a service that Apprise supports, or a part of it is missing'),
    ('{kind: webhook, url: "https://example.org/x"}', 'canary', "config.yaml:5:9: channels.hook: this is not a URL; write tgram://TOKEN/CHAT, discord://ID/TOKEN or an Apprise URL"),
    ('{kind: webhook, url: "https://example.org/x"}', "''", 'config.yaml:5:9: channels.hook: the string is empty; write a value'),
    ('{kind: webhook, url: "https://example.org/x"}', '{kind: apprise, url: "ntfy://topic", allow_private: true}', 'config.yaml:5:61: channels.hook.allow_private: Apprise opens its own connections and may always reach private addresses; remove allow_private'),
    ('/x"}', '/x", base_url: "http://a"}', 'config.yaml:5:65: channels.hook.base_url: only telegram and discord use base_url; remove base_url'),
    ('{kind: webhook, url: "https://example.org/x"}', '{url: "tgram://1/2", base_url: canary}', 'config.yaml:5:40: channels.hook.base_url: this is not the address of a server; write http:// or https:// with a host'),
    ('/x"}', '/x", uncertain: perhaps}', "config.yaml:5:66: channels.hook.uncertain: 'perhaps' is not allowed here; write resend or hold"),
    ('retries: 2', 'deliver: tgram://1:canary/2', 'config.yaml:16:16: agents.ops.heartbeat.deliver: this is a URL and not a declared channel; declare it and write its name here'),
    ('https://example.org/x', 'ftp://example.org/x', 'config.yaml:5:30: channels.hook.url: this is not the address of a webhook; write http:// or https:// with a host'),
    ('https://example.org/x', 'https://', 'config.yaml:5:30: channels.hook.url: this is not the address of a webhook; write http:// or https:// with a host'),
    (', url: "https://example.org/x"', '', 'config.yaml:5:3: channels.hook.url: is missing; write url: "https://..."'),
    ('webhook', 'telegram', 'config.yaml:5:31: channels.hook.url: this is not the URL of a Telegram chat; write tgram://TOKEN/CHAT, or tgram://TOKEN/CHAT:TOPIC'),
    ('{kind: webhook, url: "https://example.org/x"}', '{kind: command}', 'config.yaml:5:3: channels.hook.argv: is missing; write argv: [program, argument]'),
    ('{kind: webhook, url: "https://example.org/x"}', '{argv: [./tell.sh]}', 'config.yaml:5:16: channels.hook.argv: only channels of kind command use argv; write kind: command, or remove it'),
    ('{kind: webhook, url: "https://example.org/x"}', '{kind: command, argv: ./tell.sh}', 'config.yaml:5:31: channels.hook.argv: this must be a list, not a string; write [program, argument]'),
    ('kind: webhook, url:', 'kind: command, argv: [./tell.sh], url:', 'config.yaml:5:49: channels.hook.url: a command channel has no address; remove url'),
    ('{kind: webhook, url: "https://example.org/x"}', '{kind: command, argv: [./tell.sh], allow_private: true}', 'config.yaml:5:59: channels.hook.allow_private: a command channel has no address; remove allow_private'),
    ('webhook', 'carrier', "config.yaml:5:16: channels.hook.kind: 'carrier' is not allowed here; write webhook, telegram, discord, command or apprise"),
    ('webhook', '~', "config.yaml:5:16: channels.hook.kind: an empty value is not allowed here; write webhook, telegram, discord, command or apprise"),
    ('"0 3 * * *"', '0 3 30 2 *', 'config.yaml:19:15: cron.nightly.schedule: day-of-month 30 does not occur in month 2; write L for the last day of the month'),
    ('"0 3 * * *"', '"0 25 * * *"', "config.yaml:19:15: cron.nightly.schedule: hour '25' is out of range; write 0 to 23"),
    ('"0 3 * * *"', '*/5 * * * *', 'config.yaml:19:15: cron.nightly.schedule: text that begins with * must be in quotes: "*/5 * * * *"'),
    ('"0 3 * * *"', '@reboot', 'config.yaml:19:15: cron.nightly.schedule: text that begins with @ must be in quotes: "@reboot"'),
    ('"0 3 * * *"', '* * * * *', 'config.yaml:19:15: cron.nightly.schedule: text that begins with * must be in quotes: "*/5 * * * *"'),
    ('"0 3 * * *"', '%x', 'config.yaml:19:15: cron.nightly.schedule: text that begins with % must be in quotes'),
    ('    schedule: "0 3 * * *"\n', '', 'config.yaml:18:3: cron.nightly: the job has no times; write schedule: "0 3 * * *", every: 6h, at: "2030-12-24T18:00", or after: JOB'),
    ('schedule: "0 3 * * *"', 'at: tomorrow', 'config.yaml:19:9: cron.nightly.at: \'tomorrow\' is not a date with a time; write at: "2030-12-24T18:00"'),
    ('schedule: "0 3 * * *"', 'at: 2026-12-24', 'config.yaml:19:9: cron.nightly.at: \'2026-12-24\' is not a date with a time; write at: "2030-12-24T18:00"'),
    ('schedule: "0 3 * * *"', 'at: 2026-02-30T18:00', 'config.yaml:19:9: cron.nightly.at: \'2026-02-30T18:00\' is not a valid time; write at: "2030-12-24T18:00"'),
    ('schedule: "0 3 * * *"', 'at: 2026-12-24T24:00', 'config.yaml:19:9: cron.nightly.at: \'2026-12-24T24:00\' is not a date with a time; write at: "2030-12-24T18:00"'),
    ('schedule: "0 3 * * *"', 'at: 0001-01-01T00:00', 'config.yaml:19:9: cron.nightly.at: \'0001-01-01T00:00\' is not a valid time; write at: "2030-12-24T18:00"'),
    ('schedule: "0 3 * * *"', 'at: 2026-12-24T18:00 Europe/Berlin', 'config.yaml:19:9: cron.nightly.at: \'2026-12-24T18:00 Europe/Berlin\' is not a date with a time; write at: "2030-12-24T18:00"'),
    ('schedule: "0 3 * * *"', 'at: 2011-12-30T18:00\n    timezone: Pacific/Apia', 'config.yaml:19:9: cron.nightly.at: \'2011-12-30T18:00\' does not exist in Pacific/Apia, because its clocks skipped that day; write at: "2030-12-24T18:00"'),
    ('schedule: "0 3 * * *"', 'at: 2026-12-24T18:00\n    stagger: 10%', "config.yaml:20:14: cron.nightly.stagger: a job that runs once has no period to take a percentage of; write a duration, such as 10m"),
    ('"0 3 * * *"', '"@reboot"\n    stagger: 10m', "config.yaml:20:14: cron.nightly.stagger: @reboot runs when the daemon starts and cannot be delayed; remove stagger"),
    ('"0 3 * * *"', '"*/5 * * * *"\n    stagger: 10m', "config.yaml:20:14: cron.nightly.stagger: 10m is more than the shortest interval, 5m; write 5m or less"),
    ('schedule: "0 3 * * *"', 'at: 20261224', 'config.yaml:19:9: cron.nightly.at: this is not read as text; put it in quotes'),
    ('"0 3 * * *"', '"0 3 * * *"\n    at: 2026-12-24T18:00', 'config.yaml:20:9: cron.nightly.at: schedule and at exclude each other; keep one of them'),
    ('"0 3 * * *"', '"0 3 * * *"\n    skip_on: holidays', "config.yaml:20:14: cron.nightly.skip_on: 'holidays' is not a declared calendar; declare it under calendars:"),
    ('wake_heartbeat: ops\n', 'wake_heartbeat: ops\n    skip_on: x\ncalendars: {aa: {days: sun}, bb: {days: sun}, cc: {days: sun}, dd: {days: sun}, ee: {days: sun}, ff: {days: sun}}\n', "config.yaml:22:14: cron.nightly.skip_on: 'x' is not a declared calendar; write aa, bb, cc, dd, ee or another of the 6 declared, or declare it under calendars:"),
    ('\nagents:', '\nagent:', 'config.yaml:9:1: agent: unknown key; did you mean agents?'),
    ('\ndefaults:', '\ndefault:', 'config.yaml:6:1: default: unknown key; did you mean defaults?'),
    ('wake_heartbeat: ops\n', 'wake_heartbeat: ops\n    only_on: [holiday]\ncalendars: {holidays: {dates: 2026-12-25}}\n', "config.yaml:22:15: cron.nightly.only_on[0]: 'holiday' is not a declared calendar; did you mean holidays?"),
    ('retries: 2', 'skip_on: [weekend, holidays, weekend]', "config.yaml:16:16: agents.ops.heartbeat.skip_on: 'weekend' is listed twice; remove one of them"),
    ('agents:\n', 'calendars: {h: {dates: [2026-12-25, 2026-02-30]}}\nagents:\n', "config.yaml:9:37: calendars.h.dates[1]: '2026-02-30' is not a day; write 2026-12-25, or 2026-12-24..2026-12-31"),
    ('agents:\n', 'calendars: {h: {dates: 2026-12-31..}}\nagents:\n', "config.yaml:9:24: calendars.h.dates: '2026-12-31..' is not a day; write 2026-12-25, or 2026-12-24..2026-12-31"),
    ('agents:\n', 'calendars: {h: {dates: 20261231x}}\nagents:\n', "config.yaml:9:24: calendars.h.dates: '20261231x' is not a day; write 2026-12-25, or 2026-12-24..2026-12-31"),
    ('agents:\n', 'calendars: {h: {dates: 2026-12-31..2026-12-24}}\nagents:\n', "config.yaml:9:24: calendars.h.dates: '2026-12-31..2026-12-24' ends before it starts; write 2026-12-24..2026-12-31"),
    ('agents:\n', 'calendars: {h: {dates: [12-25]}}\nagents:\n', "config.yaml:9:25: calendars.h.dates[0]: '12-25' is not a day; write 2026-12-25, or 2026-12-24..2026-12-31"),
    ('agents:\n', 'calendars: {h: {dates: [2026]}}\nagents:\n', "config.yaml:9:25: calendars.h.dates[0]: 2026 is not a day; write 2026-12-25, or 2026-12-24..2026-12-31"),
    ('agents:\n', 'calendars: {h: {days: weekend}}\nagents:\n', "config.yaml:9:23: calendars.h.days: 'weekend' is not a day; write mon, tue, wed, thu, fri, sat or sun, or a range like mon-fri"),
    ('agents:\n', 'calendars: {h: {}}\nagents:\n', "config.yaml:9:13: calendars.h: no day is named; write dates: [2026-12-25], or days: sat-sun"),
    ('agents:\n', 'calendars: {none: {days: sun}}\nagents:\n', "config.yaml:9:13: calendars.none: none is reserved in skip_on:; use another name"),
    ('agents:\n', 'calendars: {-h: {days: sun}}\nagents:\n', "config.yaml:9:13: calendars.-h: '-h' is not a name; use 1 to 63 characters from A-Z a-z 0-9 . _ -, not starting with . or -"),
    ('"0 3 * * *"', '"0 3 * * *"\n    every: 6h', 'config.yaml:20:12: cron.nightly.every: schedule and every exclude each other; keep one of them'),
    ('    command: ./backup.sh\n    wake_heartbeat: ops\n', '', 'config.yaml:18:3: cron.nightly: the job does nothing; write command: ./script.sh, prompt: TEXT with agent: NAME, or wake_heartbeat: AGENT'),
    ('command: ./backup.sh', 'prompt: Write.', 'config.yaml:20:13: cron.nightly.prompt: no agent is named for the prompt; write agent: NAME'),
    ('command: ./backup.sh', 'prompt: Write.\n    agent: opps', "config.yaml:21:12: cron.nightly.agent: 'opps' is not a declared agent; did you mean ops?"),
    ('command: ./backup.sh', 'prompt: Write.\n    agent: [ops]', 'config.yaml:21:12: cron.nightly.agent: this must be a string, not a list; write "TEXT"'),
    ('command: ./backup.sh', 'prompt: ""\n    agent: ops', 'config.yaml:20:13: cron.nightly.prompt: the string is empty; write a value'),
    ('command: ./backup.sh', 'prompt: Write.\n    agent: ops\n    command: x', 'config.yaml:20:13: cron.nightly.prompt: prompt and command exclude each other; keep one of them, or write a second job'),
    ('command: ./backup.sh', 'command: x\n    agent: ops', 'config.yaml:21:12: cron.nightly.agent: this key applies only to a prompt, and the job has none; remove agent, or write prompt: TEXT'),
    ('command: ./backup.sh', 'command: x\n    async_timeout: 2h', 'config.yaml:21:20: cron.nightly.async_timeout: this key applies only to a prompt, and the job has none; remove async_timeout, or write prompt: TEXT'),
    ('command: ./backup.sh', 'command: x\n    strip_reasoning: false', 'config.yaml:21:22: cron.nightly.strip_reasoning: this key applies only to a prompt, and the job has none; remove strip_reasoning, or write prompt: TEXT'),
    ('command: ./backup.sh', 'command: x\n    model: y', 'config.yaml:21:12: cron.nightly.model: this key applies only to a prompt, and the job has none; remove model, or write prompt: TEXT'),
    ('command: ./backup.sh', 'prompt: Write.\n    agent: ops\n    stdin: x', 'config.yaml:22:12: cron.nightly.stdin: this key applies only to a command, and the job has none; remove stdin'),
    ('command: ./backup.sh', 'prompt: Write.\n    agent: ops\n    env: {A: b}', 'config.yaml:22:5: cron.nightly.env: this key applies only to a command, and the job has none; remove env'),
    ('./backup.sh', '[]', 'config.yaml:20:14: cron.nightly.command: no program is named; write [program, argument]'),
    ('./backup.sh', "''", 'config.yaml:20:14: cron.nightly.command: the string is empty; write a value'),
    ('wake_heartbeat: ops', 'wake_heartbeat: opps', "config.yaml:21:21: cron.nightly.wake_heartbeat: 'opps' is not a declared agent; did you mean ops?"),
    ('wake_heartbeat: ops', 'wake_heartbeat: ops\n    wake_on: fail', "config.yaml:22:14: cron.nightly.wake_on: 'fail' is not allowed here; write always, success or failure"),
    ('wake_heartbeat: ops', 'deliver: [hook, phone]', "config.yaml:21:21: cron.nightly.deliver[1]: 'phone' is not a declared channel; write log, or declare it under channels:"),
    ('wake_heartbeat: ops', 'timezone: Mars/Base', "config.yaml:21:15: cron.nightly.timezone: 'Mars/Base' is not a time zone; write an IANA name, like Europe/Berlin or UTC"),
    ('timezone: Europe/Berlin', 'timezone: !!str UTC', 'config.yaml:1:11: timezone: YAML tags are not supported; remove the word that begins with !'),
    ('timezone: Europe/Berlin', 'timezone: *zone', 'config.yaml:1:11: timezone: no anchor above has the name of this alias; if the star is text, put the text in quotes'),
    ('timezone: Europe/Berlin', '\tzone: x', 'config.yaml:1:1: a tab cannot indent; use spaces'),
    ('timezone: Europe/Berlin', "timezone: 'UTC", 'config.yaml:1:11: timezone: the quote that opens here is not closed'),
    ('timezone: Europe/Berlin', 'timezone: a: b', "config.yaml:1:12: a colon is not expected here: put the text in quotes, or correct the indentation"),
    ('timezone: Europe/Berlin', '1: b', 'config.yaml:1:1: this key is not read as text; put it in quotes'),
    ('timezone: Europe/Berlin', '[a]: b', 'config.yaml:1:1: a key must be a word'),
    ('timezone: Europe/Berlin', '<<: [a]', 'config.yaml:1:5: << takes a map that has an anchor, as in <<: *name, or a list of them'),
    ('timezone: Europe/Berlin', 'timezone UTC', 'config.yaml:1:1: this is not `key: value`; put a space after the colon'),
    ('timezone: Europe/Berlin', 'timezone: "a\\0"', 'config.yaml:1:11: timezone: a string cannot contain the character U+0000'),
    ('timezone: Europe/Berlin', 'state: "a\\0"', 'config.yaml:1:8: state: a string cannot contain the character U+0000'),
    ('timezone: Europe/Berlin', 'timezone: [UTC', 'config.yaml:2:7: timezone: the bracket that opens on line 1 is not closed here'),
    ('timezone: Europe/Berlin', 'env_file: none.env', 'config.yaml:1:11: env_file: none.env cannot be read: No such file or directory'),
    ('timezone: Europe/Berlin', 'state: [a]', 'config.yaml:1:8: state: this must be a string, not a list; write "TEXT"'),
    ('timezone: Europe/Berlin', 'state: "${DSN}"', 'config.yaml:1:8: state: variables are not substituted here, only in secrets, headers, env and the URLs of runners and channels; write the path or address, or set HEARTBEATD_SET__state in the environment'),
    ('timezone: Europe/Berlin', 'state: $DSN', 'config.yaml:1:8: state: variables are not substituted here, only in secrets, headers, env and the URLs of runners and channels; write the path or address, or set HEARTBEATD_SET__state in the environment'),
    ('timezone: Europe/Berlin', 'state: "postgresql://bot@${HOST}/beats"', 'config.yaml:1:8: state: variables are not substituted here, only in secrets, headers, env and the URLs of runners and channels; write the path or address, or set HEARTBEATD_SET__state in the environment'),
    ('timezone: Europe/Berlin', 'provider: {a: {kind: openai, api_key: k}}', 'config.yaml:1:1: provider: unknown key; did you mean providers?'),
]
# fmt: on


def test_the_base_config_of_these_tests_is_valid(tmp_path: Path) -> None:
    assert complaints(tmp_path, RIGHT) == []


GUESSABLE = {"SAME": "a" * 16, "AGAIN": "password" * 2, "ROW": "1234567890123456"}


@loop_over(("right", "wrong", "line"), FAULTS)
def test_an_error_has_its_position_and_advice(tmp_path: Path, right: str, wrong: str, line: str) -> None:
    environ = {**ENVIRON, "SHORT": "0123456789abcde", "BLANKS": "0123456789abcdef 123", **GUESSABLE}
    assert right in RIGHT
    assert "\n".join(complaints(tmp_path, RIGHT.replace(right, wrong, 1), environ)) == line


ASKED = """\
providers: {local: {kind: openai, base_url: "http://127.0.0.1:1/v1"}}
prices: {claude-haiku-5-5: {input: 1, output: 1}}
limits: {min_interval: 10m}
agents:
  ops:
    runner: {kind: openai, provider: local}
    heartbeat: {interval: none, model: tiny, deliver: log}
  off: {heartbeat: {enabled: false, interval: 30m, deliver: log}}
cron:
  ask: {schedule: "0 9 * * *", prompt: Write., agent: ops, model: tiny}
"""


# fmt: off
ASKING = [
    ("deliver: log", "deliver: log", ""),
    ("ops, model: tiny", "ops", "config.yaml:10:3: cron.ask.model: is missing; write model: NAME, with a model of provider local"),
    ("ops, model: tiny", "off", "config.yaml:10:55: cron.ask.agent: off is disabled and cannot be called; if only jobs call it, write heartbeat: {interval: none} there"),
    ("ops, model: tiny", "off, enabled: false", ""),
    ('schedule: "0 9 * * *"', "every: 5m", "config.yaml:10:16: cron.ask.every: 5m is below limits.min_interval, which is 10m; write 10m or more, or lower the limit"),
    ("0 9 * * *", "*/5 9 * * *", "config.yaml:10:19: cron.ask.schedule: its shortest interval is 5m, but limits.min_interval is 10m; space the times out, or lower the limit"),
    ("base_url", "base_ur", "config.yaml:1:35: providers.local.base_ur: unknown key; did you mean base_url?"),
    ("deliver: log}\n  off", "deliver: log, provider: locl}\n  off", "config.yaml:7:70: agents.ops.heartbeat.provider: 'locl' is not a declared provider; did you mean local?"),
]
# fmt: on


@loop_over(("right", "wrong", "line"), ASKING)
def test_a_prompt_needs_an_enabled_agent_and_a_long_enough_interval(tmp_path: Path, right: str, wrong: str, line: str) -> None:
    assert right in ASKED
    assert "\n".join(complaints(tmp_path, ASKED.replace(right, wrong, 1))) == line


FIVE = """\
timezone: Europe/Berln
defaults:
  heartbeat: {retries: 11}
agents:
  ops:
    runner: {kind: command, argv: [cat]}
    heartbeat:
      interval: soon
      deliverr: log
  other:
    runner: {kind: command, argv: [cat]}
    heartbeat: {interval: 30m}
cron:
  nightly: {schedule: "0 25 * * *", command: x}
"""


def test_five_errors_are_five_lines_in_the_order_of_the_file(tmp_path: Path) -> None:
    assert complaints(tmp_path, FIVE) == [
        "config.yaml:1:11: timezone: 'Europe/Berln' is not a time zone; did you mean Europe/Berlin?",
        "config.yaml:3:24: defaults.heartbeat.retries: 11 is out of range; write 10 or less",
        "config.yaml:8:17: agents.ops.heartbeat.interval: 'soon' is not a duration; write 90s, 30m or 1h30m",
        "config.yaml:9:7: agents.ops.heartbeat.deliverr: unknown key; did you mean deliver?",
        "config.yaml:14:23: cron.nightly.schedule: hour '25' is out of range; write 0 to 23",
    ]


def test_an_invalid_name_is_one_error(tmp_path: Path) -> None:
    paths = [line.split(": ")[1] for line in complaints(tmp_path, RIGHT.replace("  ops:", "  .ops:"))]
    assert paths == ["agents..ops"]


def test_an_error_in_json_has_its_line_column_path_and_message(tmp_path: Path) -> None:
    complaint = Diagnostic(3, 24, "limits.concurrency", "0 is out of range")
    assert complaint.as_json() == {"line": 3, "column": 24, "path": "limits.concurrency", "message": "0 is out of range"}
    assert str(ConfigError([complaint])) == "config.yaml:3:24: limits.concurrency: 0 is out of range"


@loop_over(
    "text",
    ["", "\n\n", "# nothing\n", "---\n", "null\n", "{}\n", "x-a: 1\n", "agents:\n", "agents: {}\ncron: {}\n"],
)
def test_a_file_without_entries_is_rejected(tmp_path: Path, text: str) -> None:
    (line,) = complaints(tmp_path, text)
    assert "the file holds no keys" in line or "there is nothing to do" in line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# c\n\n- a\n- b\n", "config.yaml:3:1: this must be keys with values, not a list; "),
        ("\n  word\n", "config.yaml:2:3: this must be keys with values, not a string; "),
        ("agents: [ops]\n", "config.yaml:1:9: agents: this must be a map of names with values; write {NAME: VALUE}"),
        ("cron: 5\n", "config.yaml:1:7: cron: this must be a map of names with values; write {NAME: VALUE}"),
    ],
)
def test_a_value_that_is_not_a_map_is_one_error_at_its_position(tmp_path: Path, text: str, line: str) -> None:
    (found,) = complaints(tmp_path, text)
    assert found.startswith(line)


@loop_over("value", ("", "x", "30m", "[a]"))
def test_a_heartbeat_outside_an_agent_is_an_unknown_key_whatever_its_value(tmp_path: Path, value: str) -> None:
    found = complaints(tmp_path, f"heartbeat: {value}\n{RIGHT}")
    assert any("heartbeat: unknown key here; it belongs under" in each for each in found), found


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file or directory"):
        load_config(tmp_path / "none.yaml", {})


def test_a_folder_whose_name_is_not_utf_8_is_an_error_and_no_crash_at_the_start(tmp_path: Path) -> None:
    (folder := tmp_path / os.fsdecode(b"B\xfcro")).mkdir()
    (folder / "config.yaml").write_text(RIGHT, "utf-8")
    with pytest.raises(ConfigError, match=r"a name in the path of this file is not UTF-8; rename it"):
        load_config(folder / "config.yaml", ENVIRON)


def test_every_prefix_of_a_file_is_loaded_or_rejected(tmp_path: Path) -> None:
    agent = "  agent-{n}:\n    runner: {{kind: command, argv: [cat]}}\n    heartbeat: {{interval: 30m, deliver: log}}\n"
    text = "agents:\n" + "".join(agent.format(n=number) for number in range(3))
    for end in range(len(text)):
        lines = complaints(tmp_path, text[:end])
        assert all(line.startswith("config.yaml:") for line in lines)
    assert complaints(tmp_path, text) == []
    assert complaints(tmp_path, text[:1]) != []


# fmt: off
ELSEWHERE = [
    # a text of the valid file, the text in its place, and the message about the key
    ('    workspace: agents/ops\n', '    interval: 30m\n', 'agents.ops.interval: unknown key here; it belongs under agents.ops.heartbeat'),
    ('    workspace: agents/ops\n', '    show_ok: true\n', 'agents.ops.show_ok: unknown key here; it belongs under agents.ops.heartbeat'),
    ('    workspace: agents/ops\n', '    every: 30m\n', 'agents.ops.every: unknown key here; it belongs under deadman or cron.NAME'),
    ('    workspace: agents/ops\n', '    wake_on: failure\n', 'agents.ops.wake_on: unknown key here; it belongs under cron.NAME'),
    ('retries: 2', 'usd_per_day: 1', 'agents.ops.heartbeat.usd_per_day: unknown key here; it belongs under agents.ops.heartbeat.budget'),
    ('retries: 2', 'context: SOUL.md', 'agents.ops.heartbeat.context: unknown key here; it belongs under agents.ops'),
    ('retries: 2', 'api_key: x', 'agents.ops.heartbeat.api_key: unknown key here; it belongs under providers.NAME'),
    ('retries: 2', 'budget: {usd_per_run: 0.1}', 'agents.ops.heartbeat.budget.usd_per_run: this key is called usd_per_try now; write usd_per_try: 1'),
    ('# for every agent', 'agent: {}', 'defaults.agent: this key no longer exists; write its keys one level up, such as defaults.runner and defaults.model'),
    ('# for every agent', 'deliver: phone', 'defaults.deliver: unknown key here; it belongs under defaults.heartbeat or defaults.cron'),
    ('wake_heartbeat: ops', 'light_context: true', 'cron.nightly.light_context: unknown key here; it belongs under agents.NAME.heartbeat'),
    ('wake_heartbeat: ops', 'grace: 5m', 'cron.nightly.grace: unknown key here; it belongs under cron.nightly.misfire'),
    ('timezone: Europe/Berlin', 'concurrency: 4', 'concurrency: unknown key here; it belongs under limits'),
    ('timezone: Europe/Berlin', 'shard: {of: 4}', 'shard: shards no longer exist; remove this key; several machines share one database on a PostgreSQL server, and one lease (docs/scaling.md)'),
    ('timezone: Europe/Berlin', "channels: {a: {url: 'https://x.test', kind: webhook, links: true}}", 'channels.a.links: links no longer exist; remove this key; messages in Telegram can have buttons, and the HTTP API does the same'),
    ('timezone: Europe/Berlin', 'min_interval: 5m', 'min_interval: unknown key here; it belongs under limits'),
    ('timezone: Europe/Berlin', 'interval: 30m', 'interval: unknown key here; it belongs under agents.NAME.heartbeat'),
    ('retries: 2', "channels: {a: 'tgram://1:x/2'}", 'agents.ops.heartbeat.channels: unknown key here; it belongs at the top of the file'),
    ('    workspace: agents/ops\n', '    runner: {kind: command, url: cat}\n', 'agents.ops.runner.url: unknown key here; url is for kind: http'),
    ('workspace:', 'cwd:', 'agents.ops.cwd: unknown key; write workspace, runner, model, effort, fallbacks, context, executor or heartbeat'),
    ('interval: 30m', 'every: 30m', 'agents.ops.heartbeat.every: unknown key here; it belongs under deadman or cron.NAME'),
    ('active_hours:', 'activeHours:', 'agents.ops.heartbeat.activeHours: unknown key; did you mean active_hours?'),
    ('retries: 2', 'max_retries: 2', 'agents.ops.heartbeat.max_retries: unknown key; did you mean retries?'),
    ('schedule: "0 3', 'cron: "0 3', 'cron.nightly.cron: unknown key; `heartbeatd docs reference` lists all keys'),
    ('wake_heartbeat: ops', 'wake: ops', 'cron.nightly.wake: unknown key; did you mean wake_on?'),
    ('schedule: "0 3 * * *"', 'every: "0 3 * * *"', "cron.nightly.every: '0 3 * * *' is not a duration; write 90s, 30m or 1h30m"),
    ('interval: 30m', "interval: '@daily'", "agents.ops.heartbeat.interval: '@daily' is not a duration; write 90s, 30m or 1h30m"),
    ('schedule: "0 3 * * *"', 'schedule: 6h', 'cron.nightly.schedule: the expression has 1 field; write five: minute hour day-of-month month day-of-week'),
    ('"0 3 * * *"', "'08:30'", 'cron.nightly.schedule: the expression has 1 field; write five: minute hour day-of-month month day-of-week'),
    ('schedule: "0 3 * * *"', "at: '18:00'", 'cron.nightly.at: \'18:00\' is not a date with a time; write at: "2030-12-24T18:00"'),
    ('schedule: "0 3 * * *"', 'at: 24.12.2030 6pm', 'cron.nightly.at: \'24.12.2030 6pm\' is not a date with a time; write at: "2030-12-24T18:00"'),
]
# fmt: on


@loop_over(("right", "wrong", "line"), ELSEWHERE)
def test_an_unknown_key_gets_the_closest_one_or_the_map_that_has_it(tmp_path: Path, right: str, wrong: str, line: str) -> None:
    messages = [found.split(": ", 1)[1] for found in complaints(tmp_path, RIGHT.replace(right, wrong, 1))]
    assert line in messages


def test_an_unknown_key_beside_one_that_is_missing_is_taken_for_it(tmp_path: Path) -> None:
    (line,) = complaints(tmp_path, SMALL.replace("argv", "command"))  # which other maps have
    assert line.endswith("agents.ops.runner.command: unknown key; did you mean argv?")


# fmt: off
SENTENCES_OF = {
    # a type of error of pydantic: the keys of a heartbeat, or of the whole config, and the error
    "bool_type": ("show_ok: 1", "show_ok: 1 is not true or false; write true or false"),
    "int_type": ("session_keep: many", "session_keep: 'many' is not a whole number; write a number such as 8"),
    "float_type": ("budget: {usd_per_day: a lot}", "budget.usd_per_day: 'a lot' is not a number; write a number such as 1"),
    "finite_number": ("budget: {usd_per_day: .nan}", "budget.usd_per_day: nan is not a number; write a number such as 1"),
    "greater_than_equal": ("budget: {usd_per_day: -1}", "budget.usd_per_day: -1 is out of range; write 0.0001 or more"),
    "less_than_equal": ("retries: 11", "retries: 11 is out of range; write 10 or less"),
    "multiple_of": ("session_keep: 5", "session_keep: 5 is not a multiple of 2; write a number such as 8"),
    "too_long": (f"TOOLS{list(range(21))}", "runner.tools.mcp: there are more than 20; remove some"),
    "list_type": ("TOOLS{}", "runner.tools.mcp: this must be a list, not a map; write [{name: disk}]"),
    "dict_type": ("TOOLS[{env: x}]", "runner.tools.mcp[0].env: this must be a map of names with values; write {NAME: VALUE}"),
    "model_type": ("dedup: 24h", "dedup: this must be a map of keys with values; write {window: 24h}"),
    "model_attributes_type": ("RUNNER5", "runner: this must be a map of keys with values; write {kind: anthropic}"),
    "missing": ("RUNNER{kind: http}", 'runner.url: is missing; write url: "https://..."'),
    "union_tag_not_found": ("RUNNER{}", "runner.kind: is missing; write kind: anthropic, openai, claude-code, command, http or python"),
    "union_tag_invalid": ("RUNNER{kind: comand}", "runner.kind: 'comand' is not allowed here; did you mean command?"),
    "literal_error": ("ok_match: x", "ok_match: 'x' is not allowed here; write edges, anywhere or exact"),
}
# fmt: on


def test_every_type_of_error_has_a_sentence_with_the_fault_and_an_example(tmp_path: Path) -> None:
    assert SENTENCES_OF.keys() == validation.SENTENCES.keys()
    for kind, (wrong, sentence) in SENTENCES_OF.items():
        assert "; " in sentence, "the fault, and what to write"
        beat, runner = f"{{interval: 1h, {wrong}}}", "{kind: command, argv: [cat]}"
        if wrong.startswith("TOOLS"):
            beat, runner = "{interval: 1h}", f"{{kind: anthropic, tools: {{mcp: {wrong[5:]}}}}}"
        if wrong.startswith("RUNNER"):
            beat, runner = "{interval: 1h}", wrong[6:]
        lines = complaints(tmp_path, f"agents: {{ops: {{runner: {runner}, heartbeat: {beat}}}}}\n")
        assert any(line.endswith(sentence) for line in lines), (kind, lines)


def test_all_wrong_values_and_keys_are_reported_at_once(tmp_path: Path) -> None:
    beat = "{retries: two, interval: soon, show_ok: {}, what: ever, active_hours: {start: 8}}"
    text = (
        f"timezone: Berln\nserver: {{lissten: x}}\nagents:\n  ops: {{runner: {{kind: comand}}, heartbeat: {beat}}}\n"
        "  other: {heartbeat: 5}\ncron:\n  a: {schedule: soon, retries: x, stagger: lots, command: []}\n"
    )
    assert [line.split(": ")[1] for line in complaints(tmp_path, text)] == [
        "timezone",
        "server.lissten",
        "agents.ops.runner.kind",
        "agents.ops.heartbeat.retries",
        "agents.ops.heartbeat.interval",
        "agents.ops.heartbeat.show_ok",
        "agents.ops.heartbeat.what",
        "agents.ops.heartbeat.active_hours.end",
        "agents.ops.heartbeat.active_hours.start",
        "agents.other.heartbeat",
        "cron.a.schedule",
        "cron.a.retries",
        "cron.a.stagger",
        "cron.a.command",
    ]


def test_a_combination_of_values_is_checked_when_all_values_are_right(tmp_path: Path) -> None:
    text = "agents:\n  ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 1h, deliver: hok, retries: RETRIES}}\n"
    (line,) = complaints(tmp_path, text.replace("RETRIES", "two"))
    assert "agents.ops.heartbeat.retries: 'two'" in line
    (line,) = complaints(tmp_path, text.replace("RETRIES", "2"))
    assert "agents.ops.heartbeat.deliver: 'hok'" in line


def test_no_error_shows_a_secret_in_place_of_a_name_or_a_value(tmp_path: Path) -> None:
    for wrong in ("env: {TOKEN=canary: x}", "env: {A: [canary]}", "env: [TOKEN=canary]", "stdin: [canary]", "env: canary"):
        lines = complaints(tmp_path, f"cron: {{a: {{every: 1h, command: x, {wrong}}}}}\n")
        assert lines and "canary" not in str(lines), lines


def test_a_misspelt_key_is_not_reported_as_missing(tmp_path: Path) -> None:
    text = RIGHT.replace('start: "08:00"', 'strat: "08:00"')
    assert [line.split(": ", 1)[1] for line in complaints(tmp_path, text)] == [
        "agents.ops.heartbeat.active_hours.strat: unknown key; did you mean start?"
    ]


# fmt: off
ZONES = [
    # a name that is no time zone, and the closest zone; empty for none
    ("berlin", "Europe/Berlin"), ("Europe/Berln", "Europe/Berlin"), ("Zürich", "Europe/Zurich"), ("New York", "America/New_York"),
    ("America/LosAngeles", "America/Los_Angeles"), ("utc", "UTC"), ("Hanoi", ""), ("GMT+2", ""), ("+02:00", ""), ("CEST", ""), ("Mars/Base", ""),
]
# fmt: on


@loop_over(("name", "closest"), ZONES)
def test_a_misspelt_zone_gets_the_closest_one_but_no_offset_and_no_guess(tmp_path: Path, name: str, closest: str) -> None:
    (line,) = complaints(tmp_path, f'timezone: "{name}"\n{SMALL}')
    assert line.endswith(f"; did you mean {closest}?" if closest else "; write an IANA name, like Europe/Berlin or UTC")


@loop_over("word", ["schedulle", "shcedule", "chedule", "scheduling", "sched", "sxhedulx"])
def test_a_key_is_suggested_only_for_a_similar_word(tmp_path: Path, word: str) -> None:
    (line, *_) = complaints(tmp_path, f"cron: {{a: {{{word}: '@daily', command: x}}}}\n")
    assert ("did you mean schedule?" in line) == (word in ("schedulle", "shcedule", "chedule")), line


BROKEN = [
    # a text with a syntax error, its place and what is wrong
    ("  a: {schedule: */5 * * * *, command: [x}\n", "10:17: cron.a.schedule: text that begins with * must be in quotes"),
    ("  a: {every: 5m, command: [x}\n  b: {every: 5}\n", "10:29: cron.a.command: "),
    ("  a: {every: 5m\n  b: {every: 5, command: x}\n", "11:4: cron.a: the bracket that opens on line 10 is not closed here"),
    ('  a: {every: 5m, command: "x}\n  b: {every: 5}\n', "10:27: cron.a.command: the quote that opens here is not closed"),
    ("  a:\n\tevery: 5m\n  b: {every: 5, command: x}\n", "11:1: cron.a: a tab cannot indent; use spaces"),
    ("  a:\n    every 5m\n    command: x\n", "11:5: cron: this is not `key: value`; put a space after the colon"),
    ("  a:\n    every:5m\n    command: x\n", "11:5: cron: this is not `key: value`; put a space after the colon"),
    ("  a: {command: x, env: {A: ${B}}}\n", '10:28: cron.a.env: inside brackets, a reference must be in quotes: "${NAME}"'),
]


@loop_over(("text", "error"), BROKEN)
def test_of_broken_yaml_only_the_first_syntax_error_is_reported(tmp_path: Path, text: str, error: str) -> None:
    head = "timezone: Berlin\nagents:\n  ops:\n    runner: {kind: command, argv: [cat]}\n    heartbeat:\n      interval: soon\n\n\ncron:\n"
    (line,) = complaints(tmp_path, head + text)
    assert line.startswith(f"config.yaml:{error}"), line


def test_a_variable_that_is_empty_is_not_called_unset(tmp_path: Path) -> None:
    text = 'providers: {anthropic: {api_key: "${KEY}"}}\nagents: {ops: {heartbeat: {interval: 30m, deliver: log}}}\n'
    assert complaints(tmp_path, text, {"KEY": ""})[0].endswith(
        "KEY is empty; export it before heartbeatd starts, or write it into the env_file"
    )
    assert complaints(tmp_path, text, {})[0].endswith(
        "KEY is not set; export it before heartbeatd starts, or write it into the env_file"
    )
    assert complaints(tmp_path, text.replace("${KEY}", "$KEY"), {})[0].endswith('a reference needs braces; write "${KEY}"')


def test_an_agent_with_the_name_of_a_key_gets_the_same_errors(tmp_path: Path) -> None:
    for name in ("runner", "heartbeat", "ops"):
        yaml = f"agents:\n  {name}: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{interval: 1h, on_empty: [no], ok_mach: x}}}}\n"
        found = "\n".join(complaints(tmp_path, yaml)).replace(f"agents.{name}.", "agents.NAME.")
        assert "agents.NAME.heartbeat.ok_mach: unknown key; did you mean ok_match?" in found, name
        assert "agents.NAME.heartbeat.on_empty: a list is not allowed here; write skip or run" in found, name


@pytest.mark.parametrize(
    "text",
    [
        "providers: {openai: WRONG}",
        "calendars: {off: WRONG}",
        "defaults: {heartbeat: WRONG}",
        "defaults: {heartbeat: {misfire: WRONG}}",
        "defaults: {heartbeat: {postcheck: WRONG}}",
        "defaults: {fallbacks: [WRONG]}",
        "runners: {spare: {kind: claude-code, account: WRONG}}",
    ],
)
def test_a_map_that_a_message_advises_is_accepted(tmp_path: Path, text: str) -> None:
    text += "\nagents: {ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 30m, deliver: log}}}\n"
    (line,) = complaints(tmp_path, text.replace("WRONG", "[7]"))
    _, _, advice = line.partition("this must be a map of keys with values; write ")
    assert complaints(tmp_path, text.replace("WRONG", advice), {"NAME": "k" * 20}) == []


def test_each_of_two_wrong_keys_gets_the_name_of_a_missing_one(tmp_path: Path) -> None:
    lines = complaints(tmp_path, SMALL + "prices: {q: {in: 1.0, out: 5.0}}\n")
    assert [line.partition(": ")[2] for line in lines] == [
        "prices.q.in: unknown key; did you mean input?",
        "prices.q.out: unknown key; did you mean output?",
    ]


def test_a_private_address_that_is_not_allowed_is_a_warning_which_does_not_name_it(tmp_path: Path) -> None:
    text = """\
deadman: {url: "http://[::1]/x", every: 5m}
channels:
  lan: {kind: webhook, url: "${LAN}"}
  here: {kind: webhook, url: "https://localhost/x"}
  odd: {kind: webhook, url: "https://2130706433/x"}
  bot: {url: "tgram://1:A/2", base_url: "http://10.0.0.1:8081"}
  meant: {kind: webhook, url: "http://192.168.1.5/x", allow_private: true}
  public: {kind: webhook, url: "https://example.org/x"}
  chat: {url: "tgram://1:A/2"}
  own: {url: "ntfy://127.0.0.1/topic"}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, checklist: "- x\\n", deliver: [lan, here, odd, bot, meant, public, chat, own]}
"""
    found = warnings(tmp_path, text, {"LAN": "http://192.168.1.5/x"})
    private = [line for line in found if "private" in line]
    assert [line.split(": ")[1] for line in private] == [
        "deadman.url", "channels.lan.url", "channels.here.url", "channels.odd.url", "channels.bot.base_url"
    ]  # fmt: skip
    assert not any("192.168" in line for line in found)
    advice = "nothing is sent to it; to send to it, write allow_private: true"
    assert all(line.endswith(advice) for line in private)
