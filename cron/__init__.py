"""Cron jobs: their settings, their schedules, and reading and writing crontabs."""
