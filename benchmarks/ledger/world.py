"""Provide the ledger's benchmarks with a temporary database and a realistic conversation.

The conversation is synthetic: tool results are pieces of the standard library's source, which
compresses like the code that coding agents read. The history is never compacted or edited.
"""

import argparse
import asyncio.base_events
import atexit
import contextlib
import decimal
import email.message
import http.client
import inspect
import json
import os
import random
import shutil
import tarfile
import tempfile
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def set_up(database_url: str = "", keep: str = "") -> Path:
    """Set Django up over a migrated data directory and return it.

    Without ``keep`` it is a temporary directory, which is removed at exit.
    """
    directory = Path(keep or tempfile.mkdtemp(prefix="bridge-ledger-"))
    directory.mkdir(parents=True, exist_ok=True)
    if not keep:
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ["BRIDGE_DATA_DIR"] = str(directory)
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.proxy.ledger.settings"
    if database_url:
        os.environ["DATABASE_URL"] = database_url
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    return directory


def private_postgres(*settings: str) -> str:
    """Start a private PostgreSQL server until the end of this program; return its URL."""
    from tests.fakes.servers.postgresql import Postgres

    resources = contextlib.ExitStack()
    atexit.register(resources.close)
    return resources.enter_context(Postgres(*settings)).url


def server_process() -> int:
    """Return the PostgreSQL process of the current connection."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def cpu_ms(server: int | None = None) -> float:
    """Return the CPU milliseconds so far of this process and of the database process (Linux)."""
    own = time.process_time() * 1000
    if server is None:
        return own
    return own + int(Path(f"/proc/{server}/schedstat").read_text().split()[0]) / 1e6


def _source(chance: random.Random, size: int) -> str:
    modules = [argparse, asyncio.base_events, decimal, email.message, http.client, tarfile, typing]
    text = inspect.getsource(chance.choice(modules))
    at = chance.randrange(max(1, len(text) - size))
    lines = text[at : at + size].splitlines()
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, 1))


def _tools(chance: random.Random) -> list[dict[str, Any]]:
    names = ["Bash", "Read", "Edit", "Write", "Glob", "Grep", "Task", "WebFetch", "TodoWrite"]
    return [
        {
            "name": name,
            "description": _source(chance, 1800),
            "input_schema": {
                "type": "object",
                "properties": {
                    field: {"type": "string", "description": _source(chance, 160)}
                    for field in ("file_path", "pattern", "command", "limit")
                },
                "required": ["file_path"],
                "additionalProperties": False,
            },
        }
        for name in names
    ]


def _turn(chance: random.Random, number: int) -> list[dict[str, Any]]:
    call = f"call_{chance.getrandbits(96):024x}"
    text = _source(chance, chance.randrange(80, 500))
    block = {"type": "tool_use", "id": call, "name": "Read"}
    result = _source(chance, int(min(6000, 250 + chance.expovariate(1 / 1000))))
    return [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": text},
                block | {"input": {"file_path": f"/home/ada/project/src/module_{number}.py"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call, "content": result}],
        },
    ]


def session(turns: int = 100, seed: int = 1) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield (request body, response message) of each turn; each request has the whole history."""
    chance = random.Random(seed)
    envelope = {"model": "claude-opus-5-5", "max_tokens": 32000, "stream": True}
    system = [{"type": "text", "text": _source(chance, 14_000)}]
    tools = _tools(chance)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the bug in the parser."}]
    for number in range(turns):
        reply, tool_results = _turn(chance, number)
        yield (
            envelope | {"system": system, "tools": tools, "messages": marked(messages)},
            {
                "id": f"msg_{number:024d}",
                "type": "message",
                "role": "assistant",
                "model": "claude-opus-5-5",
                "content": reply["content"],
                "stop_reason": "tool_use",
                "stop_sequence": None,
                "usage": {"input_tokens": 1200, "output_tokens": 180},
            },
        )
        messages = [*messages, reply, tool_results]


def marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Set the cache mark on the last message, as clients do in every turn."""
    *before, last = messages
    if isinstance(last["content"], str):
        return messages
    *blocks, block = last["content"]
    block = block | {"cache_control": {"type": "ephemeral"}}
    return [*before, last | {"content": [*blocks, block]}]


def upstream_stream(request: dict[str, Any], answer: dict[str, Any]) -> list[tuple[float, bytes]]:
    """Return the response as a Responses stream, with OpenAI's echo of the request."""
    echo = {
        "id": f"resp_{answer['id'][4:]}",
        "object": "response",
        "status": "in_progress",
        "model": "gpt-5.2",
        "instructions": request["system"][0]["text"],
        "tools": [{"type": "function", **tool} for tool in request["tools"]],
    }
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": echo},
        {"type": "response.in_progress", "response": echo},
    ]
    item = f"msg_{answer['id'][4:]}"
    for index, block in enumerate(answer["content"]):
        text = block.get("text") or json.dumps(block["input"])
        kind = "output_text" if "text" in block else "function_call_arguments"
        events += [
            {"type": f"response.{kind}.delta", "item_id": item, "output_index": index}
            | {"sequence_number": at, "delta": text[at : at + 5]}
            for at in range(0, len(text), 5)
        ]
        events.append({"type": f"response.{kind}.done", "output_index": index, "text": text})
    done = echo | {"status": "completed", "output": answer["content"], "usage": answer["usage"]}
    events.append({"type": "response.completed", "response": done})
    lines = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]
    return [(400.0 + 23.7 * at, b"".join(lines[at : at + 4])) for at in range(0, len(lines), 4)]


def seconds(since: float) -> str:
    return f"{time.perf_counter() - since:.1f} s"
