"""A program that speaks the Model Context Protocol badly, in the way that its argument names."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
READS = {"readOnlyHint": True}


def send(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def tools() -> list[dict[str, object]]:
    schema: object = {"type": "object", "properties": {"path": {"type": "string"}}}
    if MODE == "bad_schema":
        schema = {"type": "object", "properties": {"path": {"type": "no such type"}}}
    if MODE == "no_object":
        schema = {"type": "string"}
    if MODE == "huge_schema":
        schema = {"type": "object", "description": "x" * 100_000}
    own = {"name": "free", "description": "d" * 5000, "inputSchema": schema, "annotations": READS}
    flood = [{**own, "name": f"tool{number}"} for number in range(300)] if MODE == "flood_of_tools" else []
    more = [{**own, "name": "not_free"}] if MODE == "names" else []
    return [*flood, own, *more]


def answer(request: dict[str, Any]) -> object:
    match request["method"]:
        case "initialize":
            info = {"name": "hostile", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            if MODE == "endless_list":
                return {"tools": tools(), "nextCursor": "again"}
            if MODE == "second_page" and "cursor" not in (request.get("params") or {}):
                return {"tools": [{**tool, "name": "other"} for tool in tools()], "nextCursor": "second"}
            return {"tools": tools()}
        case "tools/call":
            return call(request["params"]["name"])
    return None


def call(name: str) -> object:
    if MODE == "hang":
        time.sleep(60)
    if MODE == "die":
        sys.stderr.write("the disk is on fire: s3cret-of-the-env\n")
        sys.exit(3)
    if MODE == "long_line":
        sys.stdout.write("x" * 3_000_000)
        sys.stdout.flush()
    if MODE == "stray_lines":
        sys.stdout.write("hello\n" * 100_000)
        sys.stdout.flush()
    if MODE == "wrong_result":
        return {"content": "no list"}
    if MODE == "secret":
        return {"content": [{"type": "text", "text": "the token is s3cret-of-the-env\u0000"}]}
    if MODE == "names":
        return {"content": [{"type": "text", "text": name}]}
    if MODE == "many_parts":
        return {"content": [{"type": "text", "text": "part"}] * 5000}
    return {"content": [{"type": "text", "text": "8 % free"}]}


def main() -> None:
    if MODE == "dead":
        sys.stderr.write("no licence\n")
        sys.exit(1)
    if MODE == "silent":
        time.sleep(60)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request)
        if result is None:
            send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no such method"}})
        else:
            send({"jsonrpc": "2.0", "id": request["id"], "result": result})
    if MODE == "stays":
        time.sleep(60)


main()
