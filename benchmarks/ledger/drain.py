"""Measure the cost of posting a request from the journal to the database, stage by stage.

The figures are CPU time of the draining thread, so other load does not change them; another run
counts the calls. The figures of a stage exclude the other stages that it calls.

python -m benchmarks.ledger.drain [--exchanges 2000] [--batch 500] [--postgresql]
"""

import argparse
import contextlib
import functools
import importlib
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.ledger import world

PACED_READS = 100
SESSION_TURNS = 12  # of 46 KB and more each, histories that grow by a tool call a turn
STAGES = {  # the functions of proxy.ledger in which each begins
    "read the journal": (
        "journal.reader:JournalReader.read",
        "journal.reader:JournalReader.ready_ids",
        "journal.reader:JournalReader.bodies",
    ),
    "decode": ("posting.ledger_writer:group_records",),
    "split bodies, compress streams": (
        "posting.ledger_writer:ExchangeRecords.pack",
        "posting.ledger_writer:ExchangeRecords.conversation",
    ),
    "rows": (
        "posting.ledger_writer:blank_row",
        "posting.ledger_writer:columns_from_open",
        "posting.ledger_writer:columns_from_close",
        "posting.ledger_writer:set_columns",
    ),
    "write rows": ("posting.ledger_writer:write",),
    "sessions": (
        "posting.sessions:request_columns",
        "posting.sessions:SessionLinker.__init__",
        "posting.sessions:SessionLinker.find_previous",
    ),
    "transcripts": ("transcripts.storage:store",),
    "rollups": ("posting.rollups:add",),
    "hash chain": ("posting.hash_chain:append_links",),
    "body digests": ("transcripts.encoding:Conversation.digest",),
    "new names": ("posting.drift:NewNameRecorder.note",),
    "budgets, keys, prices": (
        "posting.budget_sync:apply_closed_rows",
        "posting.ledger_writer:update_last_used",
        "usage.pricing:PriceList.load",
    ),
    "mark as posted": ("journal.reader:JournalReader.mark_posted",),
}
REST = "the rest"


class Stages:
    """Adds time or calls to the stage that was entered last."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._stack = [REST]
        self._since = 0
        self.clock: Callable[[], int] = time.thread_time_ns

    def entering(self, stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def entered(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._stack.append(stage)
            try:
                return work(*args, **kwargs)
            finally:
                self._turn()
                self._stack.pop()

        return entered

    def _turn(self) -> None:
        now = self.clock()
        self.spent[self._stack[-1]] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def measured(self, clock: Callable[[], int]) -> Iterator[None]:
        self.spent.clear()
        self.clock = clock
        self._since = clock()
        yield
        self._turn()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exchanges", type=int, default=2000, help="of 2 KB; a tenth of the large")
    parser.add_argument("--batch", type=int, help="records in one transaction")
    parser.add_argument("--postgresql", action="store_true")
    options = parser.parse_args()
    url = world.private_postgres("fsync=on") if options.postgresql else ""
    directory = world.set_up(url)
    from proxy.ledger.posting import journal_posting

    journal_posting.MAX_RECORDS = options.batch or journal_posting.MAX_RECORDS  # type: ignore[misc]  # to try
    stages = Stages()
    wrap(stages)
    first = 0
    for name, count, make in (
        ("2 KB, one message", options.exchanges, small),
        (f"the same, {PACED_READS} reads", options.exchanges, paced),
        (f"sessions of {SESSION_TURNS} turns, 46 KB and more", options.exchanges // 10, large),
    ):
        run(directory, stages, make, first, 20)  # one-time allocations
        times = run(directory, stages, make, first + 20, count)
        calls = run(directory, stages, make, first + 20 + count, count, counting=True)
        first += 20 + 2 * count
        show(name, "PostgreSQL" if url else "SQLite", times, calls, count)


def wrap(stages: Stages) -> None:
    for stage, functions in STAGES.items():
        for function in functions:
            module, _, path = function.partition(":")
            if path:
                module = f"proxy.ledger.{module}"
            else:
                module, path = "proxy.ledger.journal.reader", function
            owner: Any = importlib.import_module(module)
            *outer, name = path.split(".")
            for each in outer:
                owner = getattr(owner, each)
            entered = stages.entering(stage, getattr(owner, name))
            setattr(owner, name, staticmethod(entered) if name == "load" else entered)
    from proxy.ledger.posting import journal_posting, ledger_writer

    journal_posting.group_records = ledger_writer.group_records


def run(
    directory: Path, stages: Stages, make: Any, first: int, count: int, *, counting: bool = False
) -> Counter[str]:
    """Return nanoseconds, or calls, by stage."""
    from proxy.ledger.journal.journal import append_durably
    from proxy.ledger.journal.reader import JournalReader
    from proxy.ledger.posting.journal_posting import post_all

    path = directory / f"drain-{first}"
    path.mkdir()
    append_durably(path, *(record for records in make(first, count) for record in records))
    with contextlib.closing(JournalReader(path)) as own:
        calls = 0

        def count_call(_frame: Any, event: str, _arg: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        with stages.measured((lambda: calls) if counting else time.thread_time_ns):
            sys.setprofile(count_call if counting else None)
            moved = sum(post_all(own))
            sys.setprofile(None)
    assert moved == count, f"{moved} of {count} were moved"
    return Counter(stages.spent)


def small(first: int, count: int) -> Iterator[list[Any]]:
    """Yield the records of 2 KB requests without a session and with 50 deltas."""
    answer = {"content": [{"type": "text", "text": "and so on " * 30}], "id": "msg_1"}
    answer |= {"type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    events = [{"type": "response.output_text.delta", "delta": "and so on "} for _ in range(50)]
    read = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    for number in range(first, first + count):
        message = {"role": "user", "content": f"{number} " + "word " * 380}
        request = {"model": "claude-opus-5-5", "max_tokens": 99, "messages": [message]}
        yield records(number, request, answer | {"id": f"msg_{number}"}, [(420.0, read)])


def paced(first: int, count: int) -> Iterator[list[Any]]:
    """Yield the same records with one read for each delta, as from a slow upstream."""
    event = b'data: {"type": "response.output_text.delta", "delta": "and so on "}\n\n'
    for opened, chunk, closed in small(first, count):
        reads = [(420.0 + 20.3 * at, event) for at in range(PACED_READS)]
        yield [opened, msgspec.structs.replace(chunk, reads=reads), closed]


def large(first: int, count: int) -> Iterator[list[Any]]:
    for at in range(first, first + count, SESSION_TURNS):
        turns = world.session(min(SESSION_TURNS, first + count - at), seed=at)
        for number, (request, answer) in enumerate(turns, at):
            request["metadata"] = {"user_id": json.dumps({"session_id": f"session-{at}"})}
            yield records(number, request, answer, world.upstream_stream(request, answer))


def records(
    number: int, request: dict[str, Any], answer: dict[str, Any], reads: list[tuple[float, bytes]]
) -> list[Any]:
    """Return the records of a request as the gateway writes them, with a price."""
    from proxy.ledger.journal.records import Chunk, CloseRecord, OpenRecord

    pk = f"req_{number:026d}"
    now = time.time() - 10
    usage = {"input": 1200 + number, "output": 180, "cache_read": 90 * number, "source": "reported"}
    price = {"id": 1, "upstream": "openai", "model": "gpt-5.2", "since": "2026-01-01"}
    price |= {"input": "1.25", "output": "10", "cache_read": "0.125"}
    price |= {"cache_write_5m": None, "cache_write_1h": None}
    target = {"upstream": "openai", "model": "gpt-5.2", "dialect": "responses", "profile": "openai"}
    attempt = {"upstream": "openai", "model": "gpt-5.2", "status": 200, "error": "", "ms": 812.25}
    return [
        OpenRecord(
            id=pk, created=now, worker="host-1-ab", team="platform", key_id=1, key_name="laptop",
            user="ada", ip="127.0.0.1", user_agent="claude-cli/2.0.14 (external, cli)",
            client_name="claude-code", client_version="2.0.14", api_version="2023-06-01",
            betas=["interleaved-thinking-2025-05-14"], stream=True, model_upstream="gpt-5.2",
            model_requested="claude-opus-5-5", upstream="openai", dialect="responses",
            target=target, body=json.dumps(request).encode(),
        ),
        Chunk(id=pk, reads=reads),
        CloseRecord(
            id=pk, finished=now + 2, outcome="completed", status=200, stop_reason="end_turn",
            queue_ms=0.1, ttft_ms=640.0 + number % 99, total_ms=1990.5, upstream_ms=1980.25,
            overhead_ms=1.5, upstream_status=200, upstream_request_id=f"up_{number}",
            attempts=[attempt], notes=[{"path": "top_k", "fate": "dropped", "reason": "x"}],
            usage=usage, price=price, cost_nanousd=None, response_bytes=4000, answer=answer,
            upstream_request_sha256="0" * 64,
        ),
    ]  # fmt: skip


def show(name: str, database: str, times: Counter[str], calls: Counter[str], count: int) -> None:
    table = Table("stage", "µs an exchange", "calls an exchange", title=f"{name}; {database}")
    for stage in (*STAGES, REST):
        table.add_row(stage, f"{times[stage] / count / 1000:.0f}", f"{calls[stage] / count:.0f}")
    table.add_section()
    table.add_row("all", f"{times.total() / count / 1000:.0f}", f"{calls.total() / count:.0f}")
    Console().print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    Console().print(f"peak memory of this program so far: {peak:.0f} MB")


if __name__ == "__main__":
    main()
