"""The command line: one module for each command or family of commands."""
