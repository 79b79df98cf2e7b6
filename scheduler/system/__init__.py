"""What the daemon needs of the operating system: processes, locks, limits, files."""
