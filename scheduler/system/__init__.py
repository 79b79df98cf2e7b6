"""Uses the operating system: processes, locks, limits and files."""
