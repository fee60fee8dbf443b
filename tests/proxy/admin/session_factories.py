"""One Claude Code session: turns, a sub-agent, a rewind, and cache breaks.

Every request resends its history, as clients do; the ledger itself finds the new messages.
"""

import json
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any

from proxy.ledger.posting.ledger_writer import write_to_database
from proxy.models import Exchange

from . import factories

SESSION = "d0210c9f-4d1e-4a6b-9c55-0b7a3c2f7d11"
SYSTEM = [
    {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.\n" * 3},
    {"type": "text", "text": "Project: cartography. Prefer small steps.\n" * 30},
]
TOOLS = [
    {"name": name, "description": f"The tool {name}", "input_schema": {"type": "object"}}
    for name in ("Bash", "Read", "Edit", "Grep", "Task")
]
MORE_TOOLS = [*TOOLS, {"name": "mcp__tiles__render", "input_schema": {"type": "object"}}]


class ConversationBuilder:
    """Builds one thread of a conversation, with a clock. ``records``: its requests."""

    def __init__(self, at: datetime, **opening: Any) -> None:
        self.at = at
        self.opening = {"session_id": SESSION, **opening}
        self.messages: list[dict[str, Any]] = []
        self.records: list[Any] = []
        self.tools = TOOLS
        self.cached = 0
        self.target = ("openai", "gpt-5.2")

    def add_request(
        self, *new: dict[str, Any], answer: list[dict[str, Any]] | None, **options: Any
    ) -> None:
        """Add the next request; ``answer`` None: it failed and leaves no message."""
        self.at += timedelta(seconds=options.pop("after_s", 3))
        self.messages += new
        body = factories.request_body(
            system=SYSTEM, tools=self.tools, messages=deepcopy(self.messages), stream=True
        )
        size = len(json.dumps(body)) // 4
        read = options.pop("read", self.cached)
        took = options.pop("took_s", 6.0)
        content = answer if answer is not None else []
        usage = {
            "input": max(1, size - read), "cache_read": read, "cache_write_5m": 0,
            "output": len(json.dumps(content)) // 4, "reasoning": 0, "source": "reported",
        }  # fmt: skip
        calls = [block for block in content if block["type"] == "tool_use"]
        upstream, model = self.target
        closing = {
            "finished": self.at.timestamp() + took, "total_ms": took * 1000,
            "ttft_ms": min(took * 1000, options.pop("first_ms", 1400.0)), "overhead_ms": 3.0,
            "stop_reason": "tool_use" if calls else "end_turn", "usage": usage,
            "upstream": upstream, "model_upstream": model,
        } | options  # fmt: skip
        if answer is None:
            closing |= {
                "outcome": "upstream_error", "status": 529, "stop_reason": "", "usage": {},
                "answer": None, "error_type": "overloaded_error", "error_message": "the upstream is overloaded",
            }  # fmt: skip
        self.records.append(
            factories.exchange_records(
                at=self.at,
                body=body,
                answer=factories.answer_body(*content, stop_reason=closing["stop_reason"] or None),
                opening=self.opening,
                closing=closing,
            )
        )
        self.at += timedelta(seconds=took)
        if answer is not None:
            self.cached = size
            self.messages.append({"role": "assistant", "content": content})

    def branch(self, drop: int) -> "ConversationBuilder":
        """Return a branch: the same conversation without its last messages."""
        other = ConversationBuilder(self.at, **self.opening)
        other.messages = self.messages[:-drop]
        other.records, other.tools, other.cached = self.records, self.tools, self.cached
        return other


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    content = [text(block) if isinstance(block, str) else block for block in blocks]
    return {"role": "user", "content": content}


def call(ident: str, name: str, **tool_input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": ident, "name": name, "input": tool_input}


def result(ident: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": ident, "content": content, **more}


def thought(words: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": "brg1.k.p.m"}


def session(at: datetime, **opening: Any) -> list[Exchange]:
    """Write a session of 13 requests and return its rows in time order; ``at``: its start."""
    who = {"user": "ben", "user_agent": "claude-cli/2.1.329 (external, cli)", **opening}
    title = ConversationBuilder(at, **who)
    title.add_request(user("Please write a title of 5 words for: the tests of the tile cache fail"),
              answer=[text("Tile cache test failures")], took_s=1.2, first_ms=700.0)  # fmt: skip
    main = ConversationBuilder(at + timedelta(seconds=1), **who)
    main.add_request(
        user("<system-reminder>\nToday is Friday.\n</system-reminder>",
             "The tests of the tile cache fail since yesterday. Find out why, and fix it."),
        answer=[
            thought("The log first; then the change that broke it. I should not guess."),
            text("I will read the log and the cache first."),
            call("toolu_1", "Bash", command="tail -40 build/test.log", timeout=5000),
            call("toolu_2", "Read", file_path="tiles/cache.py", limit=120),
        ],
        took_s=7.4, first_ms=2100.0,
    )  # fmt: skip
    main.add_request(
        user(result("toolu_1", "FAILED tests/test_cache.py::test_evicts\n  assert cache.size == 3\n  AssertionError: 4 == 3"),
             result("toolu_2", "def evict(self):\n    while len(self.tiles) > self.limit:\n        self.tiles.popitem(last=False)\n" * 40)),
        answer=[text("The limit is inclusive, the comparison is not. An agent will find other users of it."),
                call("toolu_3", "Task", description="Find users of evict", prompt="Who calls evict()?")],
        took_s=5.1,
    )  # fmt: skip
    agent = ConversationBuilder(main.at, **who, agent_id="explore-7")
    agent.add_request(user("Who calls evict()? Report files and lines."),
              answer=[call("toolu_a1", "Grep", pattern=r"evict\(")], took_s=3.0)  # fmt: skip
    agent.add_request(user(result("toolu_a1", "tiles/cache.py:88\ntiles/prefetch.py:41\nweb/preview.py:17")),
              answer=[text("Three callers; only `prefetch.py:41` relies on the old limit.")], took_s=4.2)  # fmt: skip
    main.at = agent.at
    main.add_request(user(result("toolu_3", "Three callers; only `prefetch.py:41` relies on the old limit.")),
             answer=None, took_s=2.0)  # fmt: skip
    main.add_request(answer=[text("Two places to change. The cache first."),
                     call("toolu_4", "Edit", file_path="tiles/cache.py", old_string=">", new_string=">=")], took_s=6.3)  # fmt: skip
    main.add_request(user(result("toolu_4", "The file was edited.")),
             answer=[text("The cache is fixed. Shall I rewrite the prefetcher as well?")], took_s=3.8)  # fmt: skip
    main.add_request(user("Yes, rewrite it from scratch."), after_s=25,
             answer=[text("I will rewrite it: a queue, a worker and back-off.")], took_s=9.0)  # fmt: skip
    back = main.branch(2)
    back.add_request(user("No, leave its structure; only change line 41."), after_s=40,
             answer=[call("toolu_5", "Edit", file_path="tiles/prefetch.py", old_string="- 1", new_string="")], took_s=4.4)  # fmt: skip
    back.tools = MORE_TOOLS
    back.add_request(user(result("toolu_5", "The file was edited.")), read=0, after_s=4,
             answer=[call("toolu_6", "Bash", command="pytest -q tests/test_cache.py")], took_s=5.5)  # fmt: skip
    back.add_request(user(result("toolu_6", [text("3 passed in 0.41s")])),
             answer=[text("All three tests pass: the limit is inclusive now, in both places.")], took_s=3.1)  # fmt: skip
    back.add_request(user("Thank you. Write the commit message."), read=0, after_s=760,
             answer=[text("Fix the tile cache's limit: it is inclusive\n\nevict() left one tile too many …")], took_s=3.3)  # fmt: skip
    records = sorted(
        [*title.records, *main.records, *agent.records], key=lambda each: each.opening.created
    )
    write_to_database(records)
    ids = [each.opening.id for each in records]
    return list(Exchange.objects.filter(pk__in=ids).order_by("created"))
