"""The Model Context Protocol (MCP): a server with which agents use the daemon, and a client with which models use tools."""
