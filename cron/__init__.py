"""What a cron job is: when it fires, what it runs, and what it tells those whom it wakes."""
