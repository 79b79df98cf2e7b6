"""The HTTP interface of the daemon."""
