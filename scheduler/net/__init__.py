"""The way to other machines: one HTTP client, and the rule for which addresses a message may go to."""
