"""Imports configs of other heartbeat systems: reads their files, converts them, and lists the result for each value."""

ADDS = {
    "commands": {
        "config.import": "scheduler.extras.importers.commands:import_config",
        "cron.import": "scheduler.extras.importers.commands:import_crontab",
        "cron.export": "scheduler.extras.importers.commands:export_crontab",
    }
}
