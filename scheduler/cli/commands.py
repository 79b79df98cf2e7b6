"""The commands with their options and help.

Each command imports its work when it is called. `--help` and completion need none of it, and it can take a second.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import options
from scheduler.cli.operation_commands import OperationCommand, commands_of_section
from scheduler.cli.options import DURATION, FILE, FOLDER, NUMBER, TIME, TIME_RULE, CommandFunction, WordOption, WordParam
from scheduler.foresight.shares import EXAMPLE_OF_SHARES
from scheduler.system import extras

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

WATCH_INTERVAL = 2.0  # seconds


class GroupWithExtras(click.Group):
    """A group to which extras may add commands, by entry points named PREFIX and the name of the command.

    A command is loaded when it is called or its help is shown.
    """

    def __init__(self, name: str, *, prefix: str | None = None, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._prefix = f"{name}." if prefix is None else prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands of the core in their order, then those of extras, sorted."""
        found = [name.removeprefix(self._prefix) for name in extras.find_names("commands") if name.startswith(self._prefix)]
        return [*self.commands, *(name for name in found if "." not in name and name not in self.commands)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command of an extra is found even if the libraries of its work are missing.

        One that cannot be imported has its error as its summary, so that the others are listed and completed all the same.
        """
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in self.list_commands(ctx):
            try:
                found = extras.load_without_libraries("commands", self._prefix + cmd_name)
            except extras.UnusableExtra as error:
                found = click.Command(cmd_name, short_help=f"(broken) {error}")
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UnusableExtra for a command of an extra that is not installed completely, or cannot be imported."""
        if args[0] not in self.commands and extras.is_known("commands", self._prefix + args[0]):
            extras.load("commands", self._prefix + args[0])
        return super().resolve_command(ctx, args)


def command(
    work: str, name: str | None = None, of: click.Group | None = None, *, summary: str | None = None
) -> Callable[[CommandFunction], click.Command]:
    """Make a command, or one `of` a group. Its `work` is a function of this package, such as `status:print_status`.

    `summary` replaces the first sentence of the help in the list of the group.
    """

    def make(described: CommandFunction) -> click.Command:
        made: click.Command = click.command(name, short_help=summary)(described)
        made.callback = lambda **given: options.call_work(work, given)
        if of:
            of.add_command(made)
        return made

    return make


@command("status:print_status")
@click.option(
    "--watch",
    is_flag=False,
    flag_value=WATCH_INTERVAL,
    type=click.FloatRange(0.1, 86400),
    metavar="[SECONDS]",
    help=f"Show the status again every SECONDS seconds (default: {WATCH_INTERVAL:g}), until Ctrl-C."
    " In a terminal, the status is updated in place.",
)
@options.reading_options
def status() -> None:
    """Show what is due, what is running, and whether the daemon is up."""


@command("listings:print_run")
@click.argument("run", type=NUMBER)
@options.reading_options
def show() -> None:
    """Show all details of one run.

    RUN is the number of the run in `heartbeatd runs`.
    """


@command("logs:print_logs")
@click.argument("name", required=False, shell_complete=options.complete_names())
@click.option("-f", "--follow", is_flag=True, help="After the list, print each new event until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0, 100_000), default=20, show_default=True, help="Maximum number of events.")
@click.option("--since", type=TIME, help=f"Only events from this time on. {TIME_RULE}")
@options.reading_options
def logs() -> None:
    """List the events of the daemon, or of one agent or job.

    The newest event is the last line. Events are runs, skipped runs, messages, problems, reloads, and starts and stops of the
    daemon. They are read from the database, so the command also works while the daemon is down. The log of the daemon itself is
    on its standard error (for the systemd unit: `journalctl -u heartbeatd`) and has further details. With `--format json`, each
    line is one JSON object.
    """


@command("report_text:print_report")
@click.option("--for", "span", type=DURATION, default=timedelta(days=7), help="How far back to look.  [default: 7d]")
@click.option(
    "--by",
    type=click.Choice(["entry", "model"]),
    default="entry",
    show_default=True,
    help="Group by agent and job (entry), or by model.",
)
@options.format_option
@click.option("--out", type=FILE, help="Write the report to this file. Only a summary is printed.")
@options.config_option
@options.state_option
def report() -> None:
    """Summarise the last days: runs, cost, alerts, skipped and missed runs.

    To receive the report regularly, run this command in a cron job with `deliver:`. The text begins with a summary.
    """


@command("foresight:print_simulation")
@click.option("--for", "span", type=DURATION, default=timedelta(days=30), help="How far ahead to look.  [default: 30d]")
@click.option("--from", "begin", type=TIME, help=f"When to begin.  [default: now] {TIME_RULE}")
@click.option(
    "--answers",
    metavar="SHARES",
    help=f"The shares of answers: quiet, problem or fail.  [default: {EXAMPLE_OF_SHARES}]",
)
@click.option("--like-history", is_flag=True, help="Each day repeats what was recorded on one of the last 30 days.")
@click.option("--work", metavar="SHARE", help="The share of prechecks that find something new.  [default: 1]")
@click.option(
    "--faults",
    metavar="FAULT",
    multiple=True,
    help='What is down, for how long, and when: "provider-down:2h@tue 03:00", channel-down=NAME:1h@18:00,'
    " daemon-down:1d@2026-12-24T18:00. Can be given several times.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The first seed of the random answers.")
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Number of simulations, each with the next seed."
)
@options.reading_options
def simulate() -> None:
    """Show how many runs, calls and messages the config will cause in the next month, and what they will cost.

    The scheduler runs in virtual time, with a temporary database and random answers. No agent, model, program or channel is
    called, and nothing of the daemon is changed. The same seed always gives the same figures. A range is that of all seeds.
    """


@command("foresight:print_replay")
@click.option("--since", type=TIME, default="7d", help=f"The beginning of the time to repeat.  [default: 7d] {TIME_RULE}")
@options.reading_options
def replay() -> None:
    """Repeat recorded answers, wakes and failures with another config, and show which runs would have ended differently.

    For example: `heartbeatd replay --since 30d -c new.yaml`. The config may have other hours, intervals, rules of problems,
    prechecks or budgets. Runs for which nothing was recorded are only counted. Nothing is called, and nothing of the daemon is
    changed.
    """


@command("doctor:print_findings")
@options.reading_options
def doctor() -> None:
    """Check the installation, the config and the database, and print advice.

    Nothing is changed. The exit code is 1 if a result is `bad`.
    """


@command("check:check_config")
@click.option(
    "--effective",
    "name",
    metavar="NAME",
    shell_complete=options.complete_names(),
    help="Show all settings of this agent or job, including defaults, and where each is set.",
)
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option(
    "--diff",
    is_flag=True,
    help="Show what the file would change in the active config: keys, next runs, runs a week, and maximum cost of a day.",
)
@click.option(
    "--tools",
    is_flag=True,
    help="Connect to the MCP servers of all agents, and show the tools that each model gets. The exit code is 1 if a"
    " connection fails.",
)
@options.reading_options
def check() -> None:
    """Check the config, show all settings of one agent or job, or show what a reload would change.

    Each error is printed on its own line. The exit code is 2 if there are errors. A missing file, folder or program is only a
    warning.
    """


@click.group(cls=GroupWithExtras)
def config() -> None:
    """Add agents and jobs to the config file, change its keys, or import another config."""


@command("config_edits:set_values", name="set", of=config)
@click.argument("values", metavar="KEY=VALUE...", nargs=-1, required=True)
@options.dry_run_option
@options.config_option
def set_values() -> None:
    """Change values in the config file.

    For example: `heartbeatd config set agents.mail.heartbeat.interval=1h`. KEY is the path of a key, with `\\.` for a dot in a
    name. VALUE is YAML: a text, a number, a list or a map. A map is merged into the existing map. A value of any other type
    replaces the old value. `heartbeatd config unset` removes keys. All other lines stay unchanged. A running daemon applies the
    changed file as if you had edited it by hand. If the changed config would have errors, the file is not changed.
    """


@command("config_edits:unset_values", name="unset", of=config)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@options.dry_run_option
@options.config_option
def unset_values() -> None:
    """Remove keys from the config file.

    The default of each removed key then applies. For example: `heartbeatd config unset agents.mail.heartbeat.model`. KEY is the
    path of a key, with `\\.` for a dot in a name. All other lines stay unchanged.
    """


@config.group()
def add() -> None:
    """Add an agent or a job from a template to the config."""


def _entry_options(what: str, templates: str, targets: str) -> Callable[[CommandFunction], CommandFunction]:
    """Add the name, the template and the other options of a new entry."""

    def decorate(command: CommandFunction) -> CommandFunction:
        command = options.dry_run_option(options.config_option(options.color_option(command)))
        command = click.option(
            "--interval",
            type=DURATION,
            help="The time between runs.  [default: as in `defaults`, otherwise chosen by the template]",
        )(command)
        command = click.option("--target", help=f"What to watch: {targets}.")(command)
        words = WordParam("template", f"scheduler.config.settings.templates:{templates}")
        return click.argument("name")(
            click.option("--template", cls=WordOption, type=words, required=True, help=f"What the {what} watches")(command)
        )

    return decorate


@command("config_edits:add_agent", of=add, summary="Add an agent from a template.")
@_entry_options("agent", "TEMPLATES", "a folder or file (mail, disk, repository), a host (certificate) or a URL (feed)")
def agent() -> None:
    """Add an agent from a template, with a precheck that looks for work before the agent is called.

    The agent gets the runner in `defaults`. Without such a runner, it gets the runner of the last agent in the file. A
    HEARTBEAT.md is written if the agent has none. The rest of the config is not changed.
    """


@command("config_edits:add_job", of=add, summary="Add a job from a template.")
@_entry_options("job", "JOB_TEMPLATES", "a folder or file (disk, repository), or a host (certificate)")
def job() -> None:
    """Add a job from a template.

    The job fails if it finds something to do. You then get a failure notification with its output. The rest of the config is not
    changed.
    """


class ListOrSubcommand(click.Group):
    """A group that lists if its first word is not a subcommand. This word is then passed to its function as `name`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The word may come before or after options. Without the word, `name` is None."""
        ctx.params["name"] = None
        while (words := self._words_after_options(ctx, args)) and words[0] not in self.commands:
            if ctx.params["name"] is not None:
                ctx.fail(f"unexpected argument {words[0]!r}")
            ctx.params["name"] = words[0]
            args = [*args[: len(args) - len(words)], *words[1:]]
        return super().parse_args(ctx, args)

    def _words_after_options(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, words, _ = self.make_parser(ctx).parse_args(list(args))
        return words

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # the help does not need it

        names = options.complete_names()(ctx, self.params[0], incomplete)
        return [*super().shell_complete(ctx, incomplete), *map(CompletionItem, names)]


@click.group(cls=ListOrSubcommand, invoke_without_command=True, subcommand_metavar="[NAME|pNUMBER|COMMAND [ARGS]...]")
@click.option("--all", "also_over", is_flag=True, help="Also list problems that are over, or were not reported yet.")
@options.reading_options
@click.pass_context
def problems(ctx: click.Context, /, **given: object) -> None:
    """List everything that is wrong: what agents report, and failures that the daemon observes.

    NAME is an agent, a job, a provider or a channel. pNUMBER is the number at the end of the first line of a message, such as
    p12. The most severe problems come first.
    """
    if ctx.invoked_subcommand is None:
        options.call_work("listings:print_problems", given)


@click.group(invoke_without_command=True)
@options.config_option
@options.state_option
@options.format_option
@click.pass_context
def outbox(ctx: click.Context, /, **given: object) -> None:
    """List undelivered messages, send them again, or drop them.

    Pending and held messages are listed first, then messages that were given up. A message may
    be held if it is unknown whether it arrived (`heartbeatd docs guarantees` gives the rules). A held message is not sent again
    automatically.
    """
    if ctx.invoked_subcommand is None:
        options.call_work("listings:print_messages", given)


outbox.params.insert(0, options.limit_option("messages"))


@click.group(cls=GroupWithExtras)
def cron() -> None:
    """Run a cron job now, show when an expression fires, import or export a crontab."""


for group in (problems, outbox, cron):
    for each in commands_of_section(group.name or ""):
        group.add_command(each)


@command("cron:print_fire_times", name="next", of=cron)
@click.argument("expression")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="The IANA time zone of the expression.")
@click.option(
    "--after",
    metavar="TIME",
    help="Show only times after TIME. A TIME without an offset is in the time zone of the expression.  [default: now]",
)
@click.option("--count", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Number of times to show.")
@options.format_option
def next_times() -> None:
    """Show when a cron expression fires next.

    EXPRESSION has five fields, such as "0 9 * * mon", or is a macro, such as @daily. Put it in quotes.
    """


def log_options(command: CommandFunction) -> CommandFunction:
    """Add `--log-format` as `form`, and `--log-level` as `level`."""
    command = click.option(
        "--log-level",
        "level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        default="info",
        show_default=True,
        help="Log only events of this level and above.",
    )(command)
    return options.format_option(command, "--log-format", "The format of the log.")


@command("run:run_daemon")
@click.option("--for", "duration", type=DURATION, help="Stop after this time, for example 60s.")
@click.option(
    "--once",
    is_flag=True,
    help="Run everything that is due now, then exit. New agents and jobs count as due. The exit code is 1 if a run failed.",
)
@log_options
@options.config_option
def run() -> None:
    """Run the daemon in the foreground.

    SIGHUP reloads the config. After SIGTERM or Ctrl-C, the daemon logs the runs in progress, waits until they have ended, and
    stops. A second SIGTERM or Ctrl-C stops it immediately.
    """


@command("busy:run_while_locked")
@click.argument("agent", shell_complete=options.complete_names("agent"))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@options.config_option
def busy() -> None:
    """Lock an agent, run a command, and release the agent.

    The command starts after the agent's current run has ended. The agent's later runs wait until the command has ended.
    heartbeatd exits with the exit code of the command. A script can also lock the agent without heartbeatd: run `flock
    lanes/AGENT.lock COMMAND` in the folder of the database file. If the database is on a PostgreSQL
    server, run it in the folder `state` next to the config.
    """


busy.ignore_unknown_options = True  # they belong to the command


@click.group(cls=GroupWithExtras)
def database() -> None:
    """Copy the database to a file, or to and from a PostgreSQL server."""


@command("backup:back_up", of=database)
@click.argument("copy", metavar="FILE", type=FILE)
@options.config_option
@options.state_option
def backup() -> None:
    """Copy the database to a file, even while the daemon is running.

    FILE must not exist yet. To restore a backup, stop the daemon, move the database and its -wal file to another path, and copy
    FILE to the path of the database.
    """


@command("shipped_files:print_page")
@click.argument("topic", required=False)
def docs() -> None:
    """Print a page of the documentation, or list all pages.

    TOPIC is the name of a page, such as `getting-started`. The pages are Markdown.
    To scroll through a long page, run `heartbeatd docs time | less`.
    """


@command("config_edits:create_config")
@click.argument("folder", metavar="DIR", type=FOLDER)
def init() -> None:
    """Create a config.yaml with one agent in a folder.

    DIR is created if it does not exist. Existing files are never changed.
    """


@click.group()
def files() -> None:
    """Write the files that come with heartbeatd: for systemd, containers, Grafana, shells and editors."""


def _out_options(command: CommandFunction) -> CommandFunction:
    """Add `--out DIR` as `folder` and `--force` to a command."""
    command = click.option("--force", is_flag=True, help="Overwrite existing files that differ.")(command)
    return click.option(
        "--out",
        "folder",
        metavar="DIR",
        required=True,
        type=FOLDER,
        help="The folder for the files. It is created if it does not exist.",
    )(command)


@command("shipped_files:write_service_files", of=files)
@_out_options
@click.option("--user", "for_user", is_flag=True, help="Write a unit for `systemctl --user` that runs this config, without root.")
@options.config_option
def systemd() -> None:
    """Write a hardened systemd unit, and a file that creates its user. With --user, write a unit that needs neither.

    The unit starts this installation of heartbeatd. The commands to install it are printed.
    """


@command("shipped_files:write_container_files", of=files)
@_out_options
def compose() -> None:
    """Write a Dockerfile, and a compose.yaml with Prometheus, Alertmanager and Grafana.

    The first call also writes a config and a token. These are never replaced, not even with --force.
    """


@command("shipped_files:write_monitoring_files", of=files)
@_out_options
def grafana() -> None:
    """Write the Grafana dashboards, their provisioning, and the config and alert rules for Prometheus.

    Edit prometheus/rules.yml to change a threshold of the rules. They are also written in the format of the Prometheus Operator
    for Kubernetes. An example config for Alertmanager is written too.
    """


@command("shipped_files:print_completion", of=files)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion() -> None:
    """Print a script that completes commands, options and names in a shell.

    Names of agents and jobs are read from the config.

    bash: `heartbeatd files completion bash > ~/.local/share/bash-completion/completions/heartbeatd`.
    zsh: `heartbeatd files completion zsh > DIR/_heartbeatd`, where DIR is in `fpath`.
    fish: `heartbeatd files completion fish > ~/.config/fish/completions/heartbeatd.fish`.
    """


@command("shipped_files:print_schema", of=files)
def schema() -> None:
    """Print the JSON schema of config.yaml.

    A YAML language server in an editor can use it to complete and check the file.
    """


SECTIONS: dict[str, list[click.Command]] = {
    "Look": [
        status,
        OperationCommand("Explain"),
        OperationCommand("GetPlan", "plan"),
        OperationCommand("ListRuns", "runs"),
        show,
        logs,
        report,
        simulate,
        replay,
    ],
    "Act": [*commands_of_section("Act"), busy, cron],
    "Messages": [problems, outbox, *commands_of_section("Messages")],
    "Configure": [check, config, *commands_of_section("Configure")],
    "Set up": [init, run, doctor, database, docs, files],
}
