"""The Model Context Protocol (MCP): a server with which agents use the daemon, and a client with which models use tools."""

ADDS = {
    "commands": {"mcp": "scheduler.extras.mcp.commands:mcp"},
    "executors": {"tools": "scheduler.extras.mcp.mcp_client:McpTools"},
    "listeners": {"mcp": "scheduler.extras.mcp.mcp_server:McpEndpoint"},
}
