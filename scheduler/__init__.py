"""The daemon: reads config.yaml, keeps the due-queue, has due things carried out, delivers, reports."""

__version__ = "0.1.0"
