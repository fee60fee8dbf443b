"""Compare estimated output tokens with the counts that recorded upstreams reported.

Each recorded answer is translated twice: as it is, and without its counts, so that the translator
estimates them. Printed is the sum of the estimates divided by the sum of the reported counts, for
answers with tool calls and for others. Answers with hidden reasoning are left out: no content shows
its tokens.

python -m benchmarks.output_estimate FOLDER
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from translator import anthropic_upstream, openai_chat, openai_responses
from translator.anthropic.usage import Usage
from translator.dialect import ResponseContext
from translator.message_stream.events_to_message import MessageFold
from translator.stream.sse import SSEDecoder

DIALECTS = {
    "anthropic": anthropic_upstream.DIALECT,
    "chat": openai_chat.DIALECT,
    "responses": openai_responses.DIALECT,
}
COUNTS = frozenset({"usage", "timings", "x_groq"})


def answer(dialect: str, events: list[dict[str, Any]]) -> tuple[Usage, list[dict[str, Any]]]:
    """Return the usage and the content of a whole answer; no content of one that failed."""
    stream = DIALECTS[dialect].stream(ResponseContext(thinking="summarized"))
    fold = MessageFold()
    for event in events:
        if not stream.finished:
            fold.feed(*stream.feed(event))
    fold.feed(*stream.end())
    return stream.usage, [] if stream.error else fold.message.get("content", [])


def without_counts(value: Any) -> Any:
    """Return decoded JSON without the fields that report tokens."""
    if isinstance(value, list):
        return [without_counts(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: without_counts(inner) for name, inner in value.items() if name not in COUNTS}


def pairs(corpus: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the kind of each recorded answer, its estimated and its reported output tokens."""
    for dialect in DIALECTS:
        for path in sorted((corpus / f"{dialect}-stream").glob("*.*")):
            decoder = SSEDecoder()
            frames = [*decoder.feed(path.read_bytes()), *decoder.end()]
            events = [json.loads(each.data) for each in frames if each.data.strip() != b"[DONE]"]
            reported, content = answer(dialect, events)
            if not content or reported.source != "reported" or reported.reasoning:
                continue
            if not reported.output or any(b["type"].startswith("redacted") for b in content):
                continue
            estimated, _ = answer(dialect, without_counts(events))
            called = any(block["type"].endswith("tool_use") for block in content)
            kind = f"{dialect}, {'calls' if called else 'text'}"
            yield kind, estimated.output or 0, reported.output


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.output_estimate")
    parser.add_argument("corpus", type=Path, help="the folder of recorded answers")
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for kind, estimated, reported in pairs(parser.parse_args().corpus):
        for name in (kind, f"all, {kind.partition(', ')[2]}"):
            for number, count in enumerate((1, estimated, reported)):
                sums[name][number] += count
    for name, (answers, estimated, reported) in sorted(sums.items()):
        ratio = estimated / reported
        print(f"{name:18}{answers:5} answers {estimated:8} / {reported:8} = {ratio:.2f}")


if __name__ == "__main__":
    main()
