"""What a heartbeat is: its cadence and hours, whether it may run, what is asked, how an answer is judged."""
