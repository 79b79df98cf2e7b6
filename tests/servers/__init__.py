"""Local servers that speak what the world outside speaks, on real sockets, each answer scripted."""
