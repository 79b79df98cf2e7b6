"""Several machines: the database and the queue of runs on a PostgreSQL server, one leader, and workers."""

ADDS = {
    "commands": {
        "worker": "scheduler.extras.cluster.commands:worker",
        "database.migrate": "scheduler.extras.cluster.commands:migrate",
    },
    "executors": {"procrastinate": "scheduler.extras.cluster.executors"},
    "stores": {"postgresql": "scheduler.extras.cluster.stores"},
}
