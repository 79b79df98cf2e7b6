"""The daemon: reads config.yaml, keeps the due-queue, carries out what is due, delivers messages and reports."""

__version__ = "0.1.0"
