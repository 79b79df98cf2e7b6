BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'heartbeatd','m001_first_schema','2026-11-22 14:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(2,'heartbeatd','m002_circuits','2026-11-22 14:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(3,'heartbeatd','m003_answers','2026-11-22 14:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(4,'heartbeatd','m004_wakes_say_what_they_wait_for','2026-11-22 14:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(5,'heartbeatd','m005_ids_never_repeat','2026-11-22 14:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(6,'heartbeatd','m007_cut_runs','2026-11-22 14:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(7,'heartbeatd','m008_request_id','2026-11-22 14:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(8,'heartbeatd','m009_left_out','2026-11-22 14:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(9,'heartbeatd','m010_conditions','2026-11-24 14:16:41.406814+00:00');
INSERT INTO "_sqlite_migrations" VALUES(10,'heartbeatd','m011_held_notices','2026-11-24 14:16:41.413881+00:00');
INSERT INTO "_sqlite_migrations" VALUES(11,'heartbeatd','m012_mutes','2026-11-24 14:16:41.415895+00:00');
INSERT INTO "_sqlite_migrations" VALUES(12,'heartbeatd','m013_config_history','2026-11-24 14:16:41.416986+00:00');
INSERT INTO "_sqlite_migrations" VALUES(13,'heartbeatd','m014_who_paused','2026-11-24 14:16:41.421593+00:00');
INSERT INTO "_sqlite_migrations" VALUES(14,'heartbeatd','m015_buttons','2026-11-24 14:16:41.423860+00:00');
INSERT INTO "_sqlite_migrations" VALUES(15,'heartbeatd','m016_costs','2026-11-24 14:16:41.425179+00:00');
INSERT INTO "_sqlite_migrations" VALUES(16,'heartbeatd','m017_causes_of_silence','2026-11-24 14:16:41.426785+00:00');
INSERT INTO "_sqlite_migrations" VALUES(17,'heartbeatd','m018_expected_slots','2026-11-24 14:16:41.431169+00:00');
INSERT INTO "_sqlite_migrations" VALUES(18,'heartbeatd','m019_overrides','2026-11-24 14:16:41.433139+00:00');
INSERT INTO "_sqlite_migrations" VALUES(19,'heartbeatd','m020_workers','2026-11-24 14:16:41.437307+00:00');
INSERT INTO "_sqlite_migrations" VALUES(20,'heartbeatd','m021_workers_problem','2026-11-24 14:16:41.439150+00:00');
INSERT INTO "_sqlite_migrations" VALUES(21,'heartbeatd','m022_database_servers','2026-11-24 14:16:41.440137+00:00');
INSERT INTO "_sqlite_migrations" VALUES(22,'heartbeatd','m023_repeated_runs','2026-11-24 14:16:41.443999+00:00');
INSERT INTO "_sqlite_migrations" VALUES(23,'heartbeatd','m024_problems','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(24,'heartbeatd','m025_aliases','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(25,'heartbeatd','m026_reported_problems','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(26,'heartbeatd','m027_severity_before','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(27,'heartbeatd','m028_daemon_problems','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(28,'heartbeatd','m029_failures_since_resumed','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(29,'heartbeatd','m030_monthly_budget','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(30,'heartbeatd','m031_reminders','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(31,'heartbeatd','m032_job_after_job','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(32,'heartbeatd','m033_held_messages','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(33,'heartbeatd','m034_prompt_cache','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(34,'heartbeatd','m035_fallbacks','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(35,'heartbeatd','m036_receipts','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(36,'heartbeatd','m037_paused_after_failures','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(37,'heartbeatd','m038_undo_of_edits','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(38,'heartbeatd','m039_questions','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(39,'heartbeatd','m040_source_state','2026-11-29 04:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(40,'heartbeatd','m041_mutes_of_earlier_versions','2026-11-30 12:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(41,'heartbeatd','m042_problems_are_counted_where_they_are','2026-11-30 12:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(42,'heartbeatd','m043_prompts_are_measured_in_tokens','2026-11-30 12:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(43,'heartbeatd','m044_prompts_on_servers_are_measured_in_tokens','2026-11-30 12:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(44,'heartbeatd','m045_problems_of_events','2026-11-30 12:00:00+00:00');
INSERT INTO "_sqlite_migrations" VALUES(45,'heartbeatd','m046_budgets_are_recorded_once','2026-11-30 12:00:00+00:00');
CREATE TABLE boot (
  id integer primary key,
  instance text not null,
  pid integer not null,
  version text not null,
  tzdata text not null,
  started_at integer not null,
  last_tick_at integer not null,
  ended_at integer,                 -- null after a stop that was not clean
  config_hash text,
  deadman_problem text              -- why pings to the dead man's switch do not arrive
, database_server text) strict
;
INSERT INTO "boot" VALUES(1,'0a1b2c3d',4001,'0','0',1772438400000,1772454780000,NULL,'4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',NULL,NULL);
CREATE TABLE "breaker" (
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
INSERT INTO "breaker" VALUES('anthropic','*','auth','HTTP 401',1772454720000,1772456580000,1772456580000,NULL,'[]');
CREATE TABLE budget (
  kind text not null,               -- of the entry; kind and name are empty in the row of all
  name text not null,
  zone text not null,               -- its day begins at midnight there
  usd_per_day real,
  tokens_per_day integer,
  runs_per_day integer,
  counted text not null, usd_per_month real,            -- the entries that it counts, as JSON
  primary key (kind, name)
) strict, without rowid;
INSERT INTO "budget" VALUES('','','UTC',5.0,NULL,NULL,'[["heartbeat", "ops"], ["heartbeat", "slow"]]',NULL);
INSERT INTO "budget" VALUES('heartbeat','ops','UTC',NULL,NULL,40,'[["heartbeat", "ops"]]',NULL);
CREATE TABLE budget_share (
  day text not null,                -- of the zone of the budget of all entries
  kind text not null,
  name text not null,
  nanos integer not null,           -- billionths of a USD
  tokens integer not null,
  runs integer not null,
  primary key (day, kind, name)
) strict, without rowid
;
INSERT INTO "budget_share" VALUES('2026-03-02','heartbeat','ops',20000000,0,2);
INSERT INTO "budget_share" VALUES('2026-03-02','heartbeat','slow',40000000,0,2);
CREATE TABLE config_event (
  id integer primary key autoincrement,
  at integer not null,
  result text not null,             -- applied, refused, started (the config had changed before a start)
  actor text not null,              -- file watch, SIGHUP, command, token NAME, start
  config_hash text not null,        -- of the config in force afterwards
  diff text not null,               -- old and new values without secrets, as JSON
  problem text                      -- the errors of a refused config
, undo text) strict
;
INSERT INTO "config_event" VALUES(1,1772453400000,'applied','token admin','a7bd8832dcc3889702ad1b1f0e4eed36b4a3d8495f715e07742ff7efaa86d572','{"added": [], "removed": [], "renamed": [], "changes": [{"key": "limits.budget.usd_per_day", "old": "5", "new": "6", "entries": [], "count": 0}, {"key": "heartbeat.interval", "old": "45m", "new": "44m", "entries": ["agent/ops"], "count": 1}], "more": 0}',NULL,NULL);
CREATE TABLE config_in_force (
  id integer primary key check (id = 1),
  at integer not null,              -- when it was put in force
  path text not null,
  hash text not null,
  mode text not null,               -- watch, manual
  overrides text not null,          -- names of the environment variables that changed it, as JSON
  snapshot blob not null            -- its data without secrets, as compressed JSON; empty if it was too large
, zone text, overridden text) strict;
INSERT INTO "config_in_force" VALUES(1,1772453400000,'/etc/heartbeatd/config.yaml','a7bd8832dcc3889702ad1b1f0e4eed36b4a3d8495f715e07742ff7efaa86d572','watch','[]',X'7801AD92D14E833014865F85345E8A16D816B73BE3F602C6BBB9908E9E4143A1A42D5B0CE1DD3D3D389DF34AE30D299C73BEFEFF7F189835C6B3553430AD1AE51D1D4FA286BC06E8F08D250DBB8DD8BE97254C8DBD9379073697E20DEB8B71C4725189B6053D8D9BCEC5886D8855AB5606CC09F695317560F556872F95F79D5BDDDFDF0CCF9BF5E3D3CB669DCF122E4616801284FC236409870784048A28A1FDF084A2488FED51A8FD26AD304D23506518B0E5116BDB6992ED02A40261FD1EC4E45EB51EEC519083D98CB2715E942531197781525450D45AB930C1E248A3EFD7F62A45D4E12E629C719C3B278B359CE4773C99A2D0EA48F82DFB8C7647FE9C3627B2F29FAE32FE4B5712CE022FD68676BC6AC0F414C2BCBAB2FFC36A4AFB2A3C5ACD2BD3DBB02D96A42BCEE324C3272E347414D6846C066685053A9CB787ED163A633DED916E4D79BA887916F379C4975F0C83695A25817E880075424F2A0FBC588A2C61E33BC54DF27F','UTC','[]');
CREATE TABLE digest (
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
INSERT INTO "digest" VALUES('heartbeat','ops','chat','4711','15f1d5a86dc63eca9d82063e40e964eca943b206c98fe6ba029f52938553276c',5,1772528400000,86400000);
INSERT INTO "digest" VALUES('heartbeat','ops','chat','4711','88488ca91fc4c86cf04fab97046706d5b184142a0237a2732e69771f545cb469',9,1772540100000,86400000);
INSERT INTO "digest" VALUES('heartbeat','ops','chat','4711','ef142a1cad2d5da5d8f50cebae9c50292b457accc96f0c121411a073676b8a70',7,1772537400000,86400000);
INSERT INTO "digest" VALUES('heartbeat','ops','ops-room','','15f1d5a86dc63eca9d82063e40e964eca943b206c98fe6ba029f52938553276c',4,1772528400000,86400000);
INSERT INTO "digest" VALUES('heartbeat','ops','ops-room','','88488ca91fc4c86cf04fab97046706d5b184142a0237a2732e69771f545cb469',8,1772540100000,86400000);
INSERT INTO "digest" VALUES('heartbeat','ops','ops-room','','cfb93aa80df5096030e88176cc76b30c219996ca415af25ccf4015392413d0b6',1,1772524800000,86400000);
INSERT INTO "digest" VALUES('heartbeat','ops','ops-room','','ef142a1cad2d5da5d8f50cebae9c50292b457accc96f0c121411a073676b8a70',6,1772537400000,86400000);
INSERT INTO "digest" VALUES('heartbeat','slow','dead-room','','33c627b6bd7078d349e578dc59ab437b45b5de9b75aa4a9438962ffd47507aec',2,1772524800000,86400000);
CREATE TABLE entry (
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
  precheck text,                    -- digest of what the precheck last printed
  queue integer,                    -- what waits for the agent, and for its user, as a gateway last told
  approvals integer,
  active_at integer, unconfirmed text, unconfirmed_answers integer not null default 0, looked_at integer, looked_lines text, muted_until integer, mute text, paused_at integer, paused_by text, expected_at integer, expected_before integer, good_slots integer not null default 0, bad_slots integer not null default 0, failures_for_backoff integer not null default 0, failures_for_pause integer not null default 0, paused_after_failures integer not null default 0, source_state text,                -- when it did
  unique (kind, name)
) strict;
INSERT INTO "entry" VALUES(1,'heartbeat','ops','active','{"interval":2700.0,"stagger":0.0,"hours":[]}',1772438400000,1772445600000,1772454720000,1772456400000,1772454810000,NULL,1772453700000,1772453700000,NULL,1772453700000,0,0,1,NULL,2,1,1772441400000,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1772454810000,NULL,0,0,0,0,0,NULL);
INSERT INTO "entry" VALUES(2,'heartbeat','slow','active','{"interval":1800.0,"stagger":0.0,"hours":[]}',1772438400000,1772438400000,1772454600000,1772456400000,NULL,NULL,1772454600000,1772452800000,NULL,1772452800000,0,8,1,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1772456400000,NULL,0,0,0,0,0,NULL);
INSERT INTO "entry" VALUES(3,'cron','retried','active','{"schedule":"*/20 * * * *","zone":"UTC","offset":0.0}',1772438400000,1772438400000,1772455206594,1772456400000,1772456400000,NULL,1772455200000,1772455206594,NULL,NULL,14,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1772456400000,NULL,0,0,14,0,0,NULL);
INSERT INTO "entry" VALUES(4,'cron','later','active','{"at":"2026-03-05T09:00:00","zone":"UTC","offset":0.0}',1772438400000,1772438400000,1772438399999,1772701200000,1772701200000,NULL,NULL,NULL,NULL,NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1772701200000,NULL,0,0,0,0,0,NULL);
CREATE TABLE former (
  id integer primary key,
  kind text not null,
  name text not null,
  state text not null,              -- what the entry was
  pace text not null,
  anchor integer not null,
  until_at integer not null         -- and until when
) strict;
INSERT INTO "former" VALUES(1,'heartbeat','ops','active','{"interval":3600.0,"stagger":0.0,"hours":[]}',1772438400000,1772448600000);
CREATE TABLE hold (
  name text not null,               -- the agent whose lane it is
  holder text not null,
  until_at integer not null,
  primary key (name, holder)
) strict, without rowid;
INSERT INTO "hold" VALUES('ops','gateway',1772456520000);
CREATE TABLE item (
  name text not null,               -- the agent's
  hash text not null,               -- of the item's text
  asked integer not null,           -- the slot at which it was last asked about
  primary key (name, hash)
) strict, without rowid;
INSERT INTO "item" VALUES('ops','99cdab74f238b974510419c919a4d8415b3253669e8c0e3063bbcabb6eed69e1',1772453700000);
CREATE TABLE jump (
  id integer primary key,
  at integer not null,              -- what the wall clock showed right after it
  by_ms integer not null            -- how far it had moved; negative: back
, down integer not null default 0, slept_ms integer not null default 0) strict;
INSERT INTO "jump" VALUES(1,1772452320000,1200000,0,0);
CREATE TABLE message (
  id integer primary key,
  name text not null,
  role text not null,
  text text not null,
  at integer not null
) strict;
INSERT INTO "message" VALUES(1,'ops','assistant','The disk is 91 % full.',1772451180000);
CREATE TABLE once (
  hash text primary key,            -- of a job's name and its one moment, which has been seen to come or has still to
  seen_at integer not null
) strict, without rowid;
INSERT INTO "once" VALUES('0006745ab722a9f22513f54fd7c6f9d82ad00c5de133a2bbcb0e2188d8a63aae',1772438400000);
CREATE TABLE "outbox" (
  id integer primary key autoincrement,
  key text not null,
  channel text not null,
  whom text not null default '',    -- whom to tell there, if its URL leaves that open
  run_id integer not null,
  kind text not null,
  name text not null,
  trigger text not null,
  slot integer not null,
  part integer not null,
  parts integer not null,
  title text not null,
  text text not null,
  notice text,                      -- what it tells of its run; null: what the run itself had to say
  state text not null,
  attempts integer not null default 0,
  not_before integer not null,
  created_at integer not null,
  sending_at integer,
  doubted_at integer,               -- when it was first unknown whether it had arrived
  finished_at integer,
  error text, awaits text, hold_note text, merged_into integer, receipt text,
  unique (key, channel)
) strict;
INSERT INTO "outbox" VALUES(1,'4a42efba6cfa24158ce0235b1a54b69c41f7d47928e0ee9210b92f513bb62758','ops-room','',1,'heartbeat','ops','interval',1772438400000,1,1,'ops','The disk is 91 % full.',NULL,'delivered',1,1772438400000,1772438400000,1772438400000,NULL,1772438400000,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "outbox" VALUES(2,'50640a58b6633c14940bc227a3445a18331e3eebc95bd792eb049193c153603d','dead-room','',2,'heartbeat','slow','interval',1772438400000,1,1,'slow','Nothing new, but a word.',NULL,'pending',6,1772462160000,1772438400000,1772454960000,NULL,NULL,'HTTP 503',NULL,NULL,NULL,NULL);
INSERT INTO "outbox" VALUES(3,'7261eb1ecc5f7fdf3068597e2df761223513df3f8cbdeedf830d9c628824bb29','ops-room','',3,'cron','retried','schedule',1772438400000,1,1,'retried','Cron job retried failed at 2026-03-02 08:00 UTC.
exit: exit code 3
More: heartbeatd show 3','failing','delivered',1,1772438406862,1772438406862,1772438406862,NULL,1772438406862,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "outbox" VALUES(4,'57f8c32d8b801bc80165203bc777f1a8d1a2e59c65964f3b08576802a52083e0','ops-room','',7,'heartbeat','ops','interval',1772442000000,1,1,'ops','The disk is 92 % full.',NULL,'delivered',1,1772442000000,1772442000000,1772442000000,NULL,1772442000000,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "outbox" VALUES(5,'57f8c32d8b801bc80165203bc777f1a8d1a2e59c65964f3b08576802a52083e0','chat','4711',7,'heartbeat','ops','interval',1772442000000,1,1,'ops','The disk is 92 % full.',NULL,'delivered',1,1772442000000,1772442000000,1772442000000,NULL,1772442000000,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "outbox" VALUES(6,'257ef463d61eaa83f8f66be057fd691c3e40ea87db2ec5c80521b7b128b0ed91','ops-room','',22,'heartbeat','ops','interval',1772451000000,1,1,'ops','The disk is 94 % full.',NULL,'delivered',1,1772451000000,1772451000000,1772451000000,NULL,1772451000000,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "outbox" VALUES(7,'257ef463d61eaa83f8f66be057fd691c3e40ea87db2ec5c80521b7b128b0ed91','chat','4711',22,'heartbeat','ops','interval',1772451000000,1,1,'ops','The disk is 94 % full.',NULL,'delivered',1,1772451000000,1772451000000,1772451000000,NULL,1772451000000,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "outbox" VALUES(8,'71835f3330840d40c8f75a880f00aedab8ef460083fa637ad7f33fd8659e9ce9','ops-room','',27,'heartbeat','ops','interval',1772453700000,1,1,'ops','The disk is 95 % full.',NULL,'delivered',1,1772453700000,1772453700000,1772453700000,NULL,1772453700000,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "outbox" VALUES(9,'71835f3330840d40c8f75a880f00aedab8ef460083fa637ad7f33fd8659e9ce9','chat','4711',27,'heartbeat','ops','interval',1772453700000,1,1,'ops','The disk is 95 % full.',NULL,'delivered',1,1772453700000,1772453700000,1772453700000,NULL,1772453700000,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE "problem" (
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
  acked_by text not null default '', events text not null default '[]',
  unique (kind, name, part, key)
) strict;
INSERT INTO "problem" VALUES(1,'provider','anthropic','*','refused','critical','HTTP 401','auth','auth',NULL,1,1772454720000,1772454720000,1772454720000,NULL,'[1772454720000]',NULL,'',0,0,0,0,'[]','[]','[]','[]',NULL,NULL,'','[]');
INSERT INTO "problem" VALUES(2,'cron','retried','','failed','warning','exit','exit','',NULL,14,1772438406862,1772438406862,1772438406862,NULL,'[1772438406862]',NULL,'',0,0,0,0,'[]','[]','[]','[]',NULL,NULL,'','[]');
INSERT INTO "problem" VALUES(3,'heartbeat','slow','reported','disk:/var','warning','92 % full','reported','',NULL,1,1772449800000,1772452500000,1772449800000,NULL,'[1772449800000]',NULL,'disk:/var',29,29,0,0,'[]','[]','[]','[]',NULL,NULL,'','[]');
CREATE TABLE problem_notice (
  problem_id integer not null,
  channel text not null,
  whom text not null,
  kind text not null,               -- what the recipient last got: open, unstable, over
  severity text not null,
  told_at integer not null,
  faults text not null,             -- the errors of which it was notified, as JSON
  outbox_id integer,                -- the last part of the last message; null: nothing was sent
  severity_before text, -- 1: an earlier message about the same opening has arrived
  primary key (problem_id, channel, whom)
) strict, without rowid;
INSERT INTO "problem_notice" VALUES(1,'ops-room','','open','critical',1772454720000,'["auth"]',NULL,NULL);
INSERT INTO "problem_notice" VALUES(2,'ops-room','','open','warning',1772438406862,'["956bfd9f43302b7ce74d783aa69ad3b26d70ef79fd1eebd3b12db5fe34650fbe"]',3,NULL);
INSERT INTO "problem_notice" VALUES(3,'dead-room','','open','warning',1772449800000,'[""]',1,NULL);
CREATE TABLE question (
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
) strict;
INSERT INTO "question" VALUES(1,1,'heartbeat','ops','deploy',1,'Deploy now?','["yes", "no"]','[]','agent ops',1772438400000,1772438400000,1772445600000,'answered','yes','token phone',NULL,1772440000000);
CREATE TABLE rejected_wake (
  id integer primary key,
  agent text not null,
  source text not null,             -- cron, manual, api, webhook
  sender text not null,             -- the job; of programs the latest one
  why text not null,                -- disabled, removed, own_run, too_many_wakes, expired
  count integer not null,
  first_at integer not null,
  at integer not null               -- of the latest one
) strict;
INSERT INTO "rejected_wake" VALUES(1,'slow','api','pager','expired',3,1772448600000,1772451000000);
CREATE TABLE "run" (
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
  config_hash text, truncated integer not null default 0, precheck_error text, result_due_at integer, cut_at integer, request_id text, left_out text, findings text, woken_by text, model_usage text, worker text, repeats text, static_digest text, cache_ttl text, cache_saved_usd real, fallback text, fallback_why text,
  unique (kind, name, trigger, slot)
) strict;
INSERT INTO "run" VALUES(1,'heartbeat','ops',1772438400000,'interval',1,'closed','alert',NULL,NULL,1,0,1,'0a1b2c3d',NULL,1772438400000,1772438400000,NULL,NULL,NULL,NULL,10000000,0,'{"contract": 144, "time": 18, "last_beat": 8, "checklist": 15}',NULL,NULL,NULL,NULL,NULL,NULL,'The disk is 91 % full.',NULL,'4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(2,'heartbeat','slow',1772438400000,'interval',1,'closed','alert',NULL,NULL,1,0,1,'0a1b2c3d',NULL,1772438400000,1772438400000,NULL,NULL,NULL,NULL,20000000,0,'{"contract": 144, "time": 18, "last_beat": 8, "checklist": 6}',NULL,NULL,NULL,NULL,NULL,NULL,'Nothing new, but a word.',NULL,'4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(3,'cron','retried',1772438400000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772438400000,1772438406862,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(4,'cron','retried',1772439600000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772439600000,1772439606552,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(5,'heartbeat','slow',1772440200000,'interval',1,'closed','alert',NULL,'duplicate',1,0,1,'0a1b2c3d',NULL,1772440200000,1772440200000,NULL,NULL,NULL,NULL,20000000,0,'{"contract": 144, "time": 18, "last_beat": 11, "checklist": 6}',NULL,NULL,NULL,NULL,NULL,NULL,'Nothing new, but a word.',NULL,'4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(6,'cron','retried',1772440800000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772440800000,1772440805859,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(7,'heartbeat','ops',1772442000000,'interval',1,'closed','alert',NULL,NULL,1,0,1,'0a1b2c3d',NULL,1772442000000,1772442000000,NULL,NULL,NULL,NULL,10000000,0,'{"contract": 144, "time": 18, "last_beat": 10, "activity": 23, "checklist": 10}',NULL,NULL,NULL,NULL,NULL,NULL,'The disk is 92 % full.',NULL,'4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(8,'heartbeat','slow',1772442000000,'interval',1,'closed','alert',NULL,'duplicate',1,0,1,'0a1b2c3d',NULL,1772442000000,1772442000000,NULL,NULL,NULL,NULL,20000000,0,'{"contract": 144, "time": 18, "last_beat": 11, "checklist": 6}',NULL,NULL,NULL,NULL,NULL,NULL,'Nothing new, but a word.',NULL,'4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(9,'cron','retried',1772442000000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772442000000,1772442005716,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(10,'cron','retried',1772443200000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772443200000,1772443206535,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(11,'heartbeat','slow',1772443800000,'interval',1,'closed','alert',NULL,'duplicate',1,0,1,'0a1b2c3d',NULL,1772443800000,1772443800000,NULL,NULL,NULL,NULL,20000000,0,'{"contract": 144, "time": 18, "last_beat": 11, "checklist": 6}',NULL,NULL,NULL,NULL,NULL,NULL,'Nothing new, but a word.',NULL,'4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(12,'cron','retried',1772444400000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772444400000,1772444407883,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(13,'heartbeat','ops',1772445600000,'interval',1,'closed','ok',NULL,'heartbeat_ok',1,0,1,'0a1b2c3d',NULL,1772445600000,1772445600000,NULL,NULL,NULL,NULL,10000000,0,'{"contract": 144, "time": 18, "last_beat": 10, "activity": 24, "checklist": 10}',NULL,NULL,NULL,NULL,NULL,NULL,'HEARTBEAT_OK',NULL,'4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(14,'heartbeat','slow',1772445600000,'interval',1,'closed','alert',NULL,'duplicate',1,0,1,'0a1b2c3d',NULL,1772445600000,1772445600000,NULL,NULL,NULL,NULL,20000000,0,'{"contract": 144, "time": 18, "last_beat": 11, "checklist": 6}',NULL,NULL,NULL,NULL,NULL,NULL,'Nothing new, but a word.',NULL,'4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(15,'cron','retried',1772445600000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772445600000,1772445607886,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(16,'cron','retried',1772446800000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772446800000,1772446806710,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(17,'heartbeat','slow',1772447400000,'interval',1,'closed','alert',NULL,'duplicate',1,0,1,'0a1b2c3d',NULL,1772447400000,1772447400000,NULL,NULL,NULL,NULL,20000000,0,'{"contract": 144, "time": 18, "last_beat": 11, "checklist": 6}',NULL,NULL,NULL,NULL,NULL,NULL,'Nothing new, but a word.',NULL,'4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(18,'cron','retried',1772448000000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772448000000,1772448006055,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4a5ba43eef7b07ec06da7c28da553cbaea2484f5d5ecce769ae14998d758749b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(19,'heartbeat','slow',1772449200000,'interval',1,'closed','alert',NULL,'duplicate',1,0,1,'0a1b2c3d',NULL,1772449200000,1772449200000,NULL,NULL,NULL,NULL,20000000,0,'{"contract": 144, "time": 18, "last_beat": 11, "checklist": 6}',NULL,NULL,NULL,NULL,NULL,NULL,'Nothing new, but a word.',NULL,'4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(20,'cron','retried',1772449200000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772449200000,1772449207001,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(21,'cron','retried',1772450400000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772450400000,1772450825967,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(22,'heartbeat','ops',1772451000000,'interval',1,'closed','alert',NULL,NULL,1,0,1,'0a1b2c3d',NULL,1772451000000,1772451000000,NULL,NULL,NULL,NULL,10000000,0,'{"contract": 144, "time": 18, "last_beat": 13, "activity": 24, "checklist": 10}',NULL,NULL,NULL,NULL,NULL,NULL,'The disk is 94 % full.',NULL,'4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(23,'heartbeat','slow',1772451000000,'interval',1,'closed','alert',NULL,'duplicate',1,0,1,'0a1b2c3d',NULL,1772451000000,1772451000000,NULL,NULL,NULL,NULL,20000000,0,'{"contract": 144, "time": 18, "last_beat": 11, "checklist": 6}',NULL,NULL,NULL,NULL,NULL,NULL,'Nothing new, but a word.',NULL,'4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(24,'cron','retried',1772451600000,'schedule',1,'closed','skipped','missed',NULL,0,0,0,NULL,NULL,NULL,1772452320000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(25,'heartbeat','slow',1772452800000,'interval',1,'closed','alert',NULL,'duplicate',1,0,1,'0a1b2c3d',NULL,1772452800000,1772452800000,NULL,NULL,NULL,NULL,20000000,0,'{"contract": 144, "time": 18, "last_beat": 11, "checklist": 6}',NULL,NULL,NULL,NULL,NULL,NULL,'Nothing new, but a word.',NULL,'4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(26,'cron','retried',1772452800000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772452800000,1772452805751,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(27,'heartbeat','ops',1772453700000,'interval',1,'closed','alert',NULL,NULL,1,0,1,'0a1b2c3d',NULL,1772453700000,1772453700000,NULL,NULL,NULL,NULL,10000000,0,'{"contract": 144, "time": 18, "last_beat": 11, "activity": 24, "checklist": 15}',NULL,NULL,NULL,NULL,NULL,NULL,'The disk is 95 % full.',NULL,'4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(28,'cron','retried',1772454000000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772454000000,1772454006645,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(29,'heartbeat','slow',1772454600000,'interval',1,'running',NULL,NULL,NULL,1,0,1,'0a1b2c3d',NULL,1772454600000,NULL,NULL,NULL,NULL,NULL,20000000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(30,'cron','retried',1772455200000,'schedule',1,'closed','failed','exit',NULL,4,0,4,'0a1b2c3d',NULL,1772455200000,1772455206594,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,NULL,NULL,3,NULL,NULL,'','exit code 3','4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run" VALUES(31,'heartbeat','ops',1772454720000,'api',1,'waiting','skipped','busy',NULL,0,0,3,'0a1b2c3d',1772454810000,1772454780000,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'4d782c3c3fa1cb90eedef4e5cf751394499aee32b5cc10956c3861182b32cd7b',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE spend (
  day text not null,                -- of the budget's zone, as 2027-03-28
  kind text not null,               -- of the entry; kind and name are empty in the row of all
  name text not null,
  nanos integer not null,           -- billionths of a USD
  tokens integer not null,
  runs integer not null,
  ends_at integer not null,
  primary key (day, kind, name)
) strict, without rowid;
INSERT INTO "spend" VALUES('2026-03-02','','',250000000,0,15,1772496000000);
INSERT INTO "spend" VALUES('2026-03-02','heartbeat','ops',50000000,0,5,1772496000000);
CREATE TABLE stall (
  id integer primary key,
  since integer not null,           -- when a turn was to begin
  until integer not null            -- when it began
, cause text) strict;
INSERT INTO "stall" VALUES(1,1772450401069,1772450820000,NULL);
CREATE TABLE target (
  id integer primary key,           -- the largest is the last
  name text not null,               -- the agent's
  channel text not null,
  whom text not null,
  title text not null,
  at integer not null,
  unique (name, channel, whom)
) strict;
INSERT INTO "target" VALUES(1,'ops','chat','4711','Ada',1772441400000);
CREATE TABLE used_button (outbox_id integer not null, action text not null, used_at integer not null, primary key (outbox_id, action)) strict, without rowid;
INSERT INTO "used_button" VALUES(4,'ack',1772453400000);
CREATE TABLE "wake" (
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
  tries integer not null default 0, -- runs that were to tell it, and did not
  state text not null,              -- waiting, taken, ended
  run_id integer
, token text not null default '', waits_for text, started integer not null default 0, timer integer not null default 0, after_run integer) strict;
INSERT INTO "wake" VALUES(1,'ops','heartbeat','api','pager','The pager rang.',NULL,1,1772454720000,1772454720000,1772454720000,NULL,0,'taken',31,'',NULL,1,0,NULL);
INSERT INTO "wake" VALUES(2,'slow','heartbeat','api','queue','Look at the queue.',NULL,1,1772454720000,1772454720000,1772454720000,NULL,0,'waiting',NULL,'',NULL,0,0,NULL);
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE INDEX entry_due on entry (due_at) where due_at is not null;
CREATE INDEX message_of_agent on message (name, id);
CREATE INDEX message_age on message (at);
CREATE INDEX former_of_entry on former (kind, name);
CREATE INDEX former_age on former (until_at);
CREATE UNIQUE INDEX run_open on run (kind, name) where state in ('running', 'waiting');
CREATE INDEX run_of_entry on run (kind, name, id);
CREATE INDEX run_finished on run (finished_at) where state = 'closed';
CREATE INDEX run_started on run (kind, name, trigger, started_at);
CREATE INDEX run_awaited on run (result_due_at) where result_due_at is not null;
CREATE INDEX wake_start on wake (kind, name, due_at, held_until, waits_for, state) where state = 'waiting';
CREATE INDEX wake_kept on wake (kind, name, token, state) where state in ('waiting', 'taken');
CREATE INDEX wake_ended on wake (updated_at) where state = 'ended';
CREATE INDEX wake_run on wake (run_id) where run_id is not null
;
CREATE INDEX outbox_pending on outbox (not_before) where state = 'pending';
CREATE INDEX outbox_sending on outbox (id) where state in ('sending', 'uncertain', 'held');
CREATE INDEX outbox_channel on outbox (channel, state, created_at);
CREATE INDEX outbox_run on outbox (run_id);
CREATE INDEX outbox_held_back on outbox (name, id) where awaits is not null and state = 'pending';
CREATE INDEX rejected_wake_at on rejected_wake (at);
CREATE INDEX outbox_of_entry on outbox (kind, name, channel, state, id);
CREATE INDEX problem_of_cause on problem (cause_id) where cause_id is not null;
CREATE INDEX problem_of_job on problem (name)
  where part = 'reported' and over_at is null and (jobs <> '[]' or senders <> '[]');
CREATE UNIQUE INDEX wake_waiting on wake (kind, name, source, sender, token) where state = 'waiting' and source <> 'reminder';
CREATE INDEX wake_planned on wake (due_at) where state = 'planned';
CREATE INDEX outbox_merged on outbox (merged_into) where merged_into is not null;
CREATE INDEX run_with_static_part on run (kind, name, id) where static_digest is not null;
CREATE INDEX outbox_receipt on outbox (receipt) where receipt is not null;
CREATE UNIQUE INDEX question_key on question (run_id, key);
CREATE INDEX question_open on question (ends_at) where state = 'open';
CREATE INDEX problem_not_over on problem (kind, name, part) where over_at is null;
CREATE INDEX problem_notice_not_over on problem_notice (problem_id) where kind <> 'over';
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('run',31);
INSERT INTO "sqlite_sequence" VALUES('wake',2);
INSERT INTO "sqlite_sequence" VALUES('outbox',9);
INSERT INTO "sqlite_sequence" VALUES('config_event',1);
INSERT INTO "sqlite_sequence" VALUES('problem',3);
COMMIT;
