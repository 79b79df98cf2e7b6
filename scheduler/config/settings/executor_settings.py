"""Builds the settings of the executor: whether the daemon or its workers execute the runs."""

from __future__ import annotations

from datetime import timedelta
from importlib import metadata

from scheduler.config.keys import models
from scheduler.config.settings.config_node import ConfigNode
from scheduler.model.settings import RemoteQueue

EXTRA_PACKAGE = "procrastinate"  # of the extra heartbeatd[cluster]
SHORTEST_LEASE = timedelta(seconds=2)
DSN_EXAMPLE = 'dsn: "${HEARTBEATD_DSN}", and set that to postgresql://USER:PASSWORD@HOST/DATABASE'


def build_remote_queue(part: models.Executor, node: ConfigNode) -> RemoteQueue | None:
    """The queue of the workers; None if the daemon executes the runs itself. Errors are added at `node`."""
    if part.kind == "local":
        if part.dsn is not None:
            node.add_error("only `kind: procrastinate` uses a database; write kind: procrastinate, or remove dsn", "dsn")
        return None
    if not is_installed(EXTRA_PACKAGE):
        node.add_error("this needs heartbeatd[cluster]; write: pip install 'heartbeatd[cluster]'", "kind")
    if part.lease < SHORTEST_LEASE:
        node.add_error("a lease this short ends by accident; write at least 2s", "lease")
    if part.dsn is None:
        node.add_error(f"the workers need a database; write {DSN_EXAMPLE}", missing="dsn")
        return None
    dsn = node.resolve_secret(part.dsn, "dsn", used=True)
    if dsn is None:
        return None
    if not node.context.secrets.is_disabled and not _is_dsn(dsn.reveal()):
        node.add_error("this is not the address of a PostgreSQL database; write postgresql://USER@HOST/DATABASE", "dsn")
    return RemoteQueue(dsn, part.queue, part.lease)


def is_installed(package: str) -> bool:
    """Whether a package of an optional extra is installed. Imports nothing of it."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _is_dsn(text: str) -> bool:
    return text.startswith(("postgresql://", "postgres://"))
