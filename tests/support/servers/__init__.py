"""Local servers with scripted answers that imitate external services on real sockets."""
