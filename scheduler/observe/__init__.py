"""What is seen of it all: log lines, metrics, and the state that people read."""
