"""The HTTP client of the daemon, and the rule for the addresses that a message may be sent to."""
