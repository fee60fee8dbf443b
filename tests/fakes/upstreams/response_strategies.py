"""Hypothesis strategies for generated responses, encoded in the formats of each dialect.

A ``GeneratedResponse`` is the content that a model returns. ``responses_*`` and ``chat_*`` encode it
in their dialect: as a complete body, or as a stream of events with large or small deltas, item by
item or interleaved.

Hypothesis draws the texts, because unusual characters cause faults. The order of items, names and
cuts follow from a seed: drawing takes most of the time of the laws, and a seed is one draw while a
permutation of forty events is forty.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from hypothesis import strategies as st

Event = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """One output item; ``kind`` is text, thinking or call."""

    kind: str
    text: str = ""  # of a call: its arguments as JSON
    id: str = ""
    name: str = ""


@dataclass(frozen=True)
class GeneratedResponse:
    items: tuple[Item, ...]
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    seed: int

    def of(self, kind: str) -> list[Item]:
        return [item for item in self.items if item.kind == kind]

    def chance(self) -> random.Random:
        """Return the random generator of the encoding; the same sequence on each call."""
        return random.Random(f"encoded by {self.seed}")  # noqa: S311 - a fixed seed makes the test repeatable


SEEDS = st.integers(0, 2**24 - 1)  # Hypothesis draws larger ranges unevenly (mostly small numbers)
TEXTS = st.text(min_size=1, max_size=40)
WORDS = st.lists(st.text(max_size=12), max_size=4)
NAMES = ("get_weather", "bash", "search")
INTEGERS = (0, 1, -1, 255, -(2**31), 2**53 + 1, -(2**63), 2**64, 10**30)
KINDS_BY_TEXT_LIMIT = {
    texts: st.sampled_from(
        sorted(
            (
                ("thinking",) * thinking_items + ("text",) * deltas + ("call",) * calls
                for thinking_items, deltas, calls in product(range(3), range(texts + 1), range(4))
            ),
            key=len,  # a failure shrinks to the fewest items
        )
    )
    for texts in (1, 3)
}
"""The item kinds of a response, by its maximum number of texts."""


@st.composite
def generated_responses(draw: st.DrawFn, *, texts: int = 3) -> GeneratedResponse:
    """Draw up to two thinking items, ``texts`` texts and three calls, in any order."""
    kinds = draw(KINDS_BY_TEXT_LIMIT[texts])
    seed = draw(SEEDS)
    chance = random.Random(seed)  # noqa: S311 - a fixed seed makes the test repeatable
    items = []
    for n, kind in enumerate(chance.sample(kinds, len(kinds))):
        if kind == "call":
            text = _arguments(draw(WORDS), chance)
            items.append(Item(kind, text, id=f"call_{n}", name=chance.choice(NAMES)))
        else:
            items.append(Item(kind, draw(TEXTS)))
    # Counts that can be true: the translator estimates those that cannot.
    total = _count(1, 10_000, chance)
    output = _count(sum(len(item.text) for item in items), 5_000, chance)
    return GeneratedResponse(tuple(items), total, _count(0, total, chance), output, seed)


def _arguments(words: list[str], chance: random.Random) -> str:
    """Return a JSON object with one field for each word; the values have any JSON type."""
    number = chance.choice([*INTEGERS, chance.getrandbits(chance.randint(1, 70))])
    kinds = (None, True, False, number, chance.choice([*words, ""]), {"deep": [1, {}]})
    value = {word[:8]: chance.choice(kinds) for word in words}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _count(least: int, most: int, chance: random.Random) -> int:
    """Return a number from ``least`` to ``most``, often one of the two."""
    return chance.choice((least, most, chance.randint(least, most), chance.randint(least, most)))


def random_pieces(text: str, chance: random.Random) -> list[str]:
    """Cut ``text`` into random pieces, one for each delta."""
    cuts = sorted(chance.randint(0, len(text)) for _ in range(chance.randint(0, 4)))
    bounds = [0, *cuts, len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]


def mixed(tracks: list[list[Event]], chance: random.Random) -> list[Event]:
    """Interleave the events of all tracks; each track stays in order."""
    turns = [n for n, track in enumerate(tracks) for _ in track]
    places = [iter(track) for track in tracks]
    chance.shuffle(turns)
    return [next(places[n]) for n in turns]


def _in_a_row(tracks: list[list[Event]], chance: random.Random) -> list[Event]:
    return [event for track in tracks for event in track]


def _maybe(chance: random.Random) -> bool:
    return chance.random() < 0.5


Arrange = Callable[[list[list[Event]], random.Random], list[Event]]


# Responses


def responses_body(answer: GeneratedResponse) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "gpt-made-up",
        "error": None,
        "incomplete_details": None,
        "output": [_output_item(n, item) for n, item in enumerate(answer.items)],
        "usage": {
            "input_tokens": answer.input_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": answer.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.input_tokens + answer.output_tokens,
        },
    }


def _output_item(n: int, item: Item) -> dict[str, Any]:
    shared = {"id": f"item_{n}", "status": "completed"}
    match item.kind:
        case "text":
            part = {"type": "output_text", "text": item.text, "annotations": []}
            return shared | {"type": "message", "role": "assistant", "content": [part]}
        case "thinking":
            part = {"type": "summary_text", "text": item.text}
            return shared | {"type": "reasoning", "summary": [part], "encrypted_content": f"enc{n}"}
    call = {"call_id": item.id, "name": item.name, "arguments": item.text}
    return shared | {"type": "function_call"} | call


def responses_stream(
    answer: GeneratedResponse, chance: random.Random, arrange: Arrange = _in_a_row
) -> list[Event]:
    """Encode the response as Responses events; omit some redundant events."""
    body = responses_body(answer)
    in_progress = body | {"status": "in_progress", "output": [], "usage": None}
    tracks = [_responses_track(n, item, chance) for n, item in enumerate(answer.items)]
    head = [{"type": "response.created", "response": in_progress}]
    if _maybe(chance):
        head.append({"type": "response.in_progress", "response": in_progress})
    end = {"type": "response.completed", "response": body}
    return [*head, *arrange(tracks, chance), end]


WHOLE_TEXT = {"text": "text", "thinking": "text", "call": "arguments"}
DELTA_EVENT = {
    "text": "response.output_text",
    "thinking": "response.reasoning_summary_text",
    "call": "response.function_call_arguments",
}
EMPTY = {
    "text": {"content": []},
    "thinking": {"summary": [], "encrypted_content": None},
    "call": {"arguments": ""},
}


def _responses_track(n: int, item: Item, chance: random.Random) -> list[Event]:
    whole = _output_item(n, item)
    place = {"output_index": n, "item_id": f"item_{n}"}
    place |= {"text": {"content_index": 0}, "thinking": {"summary_index": 0}, "call": {}}[item.kind]
    name = DELTA_EVENT[item.kind]
    in_progress = whole | {"status": "in_progress"} | EMPTY[item.kind]
    track = [{"type": "response.output_item.added", "output_index": n, "item": in_progress}]
    if item.kind == "thinking" and _maybe(chance):
        track.append({"type": "response.reasoning_summary_part.added", **place})
    pieces = random_pieces(item.text, chance) if _maybe(chance) else [item.text]
    track += [{"type": f"{name}.delta", **place, "delta": piece} for piece in pieces]
    if _maybe(chance):
        track.append({"type": f"{name}.done", **place, WHOLE_TEXT[item.kind]: item.text})
    track.append({"type": "response.output_item.done", "output_index": n, "item": whole})
    return track


# Chat Completions


def chat_body(answer: GeneratedResponse) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(item.text for item in answer.of("text")) or None,
    }
    if thinking := "".join(item.text for item in answer.of("thinking")):
        message["reasoning_content"] = thinking
    if calls := [_chat_call(n, item) for n, item in enumerate(answer.of("call"))]:
        message["tool_calls"] = calls
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "made-up",
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(answer)}],
        "usage": _chat_usage(answer),
    }


def _finish(answer: GeneratedResponse) -> str:
    return "tool_calls" if answer.of("call") else "stop"


def _chat_usage(answer: GeneratedResponse) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.input_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }


def _chat_call(n: int, item: Item) -> dict[str, Any]:
    function = {"name": item.name, "arguments": item.text}
    return {"index": n, "id": item.id, "type": "function", "function": function}


def chat_chunk(delta: dict[str, Any] | None = None, finish: str | None = None) -> Event:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "made-up",
        "choices": [choice],
    }


def chat_stream(
    answer: GeneratedResponse, chance: random.Random, arrange: Arrange = _in_a_row
) -> list[Event]:
    """Encode the response as Chat chunks: reasoning, content, then calls in the order of ``arrange``."""
    deltas = []
    for kind, name in (("thinking", "reasoning_content"), ("text", "content")):
        text = "".join(item.text for item in answer.of(kind))
        deltas += [chat_chunk({name: piece}) for piece in random_pieces(text, chance)]
    tracks = [_chat_track(n, item, chance) for n, item in enumerate(answer.of("call"))]
    usage = _chat_usage(answer)
    end = [chat_chunk(finish=_finish(answer))]
    if _maybe(chance):
        end.append(chat_chunk() | {"choices": [], "usage": usage})
    else:
        end[0]["usage"] = usage
    role = [chat_chunk({"role": "assistant", "content": ""})] if _maybe(chance) else []
    return [*role, *deltas, *arrange(tracks, chance), *end]


def _chat_track(n: int, item: Item, chance: random.Random) -> list[Event]:
    opening = _chat_call(n, item)
    pieces = random_pieces(item.text, chance)
    first = pieces.pop(0) if _maybe(chance) else ""
    opening["function"]["arguments"] = first
    rest = [{"index": n, "function": {"arguments": piece}} for piece in pieces]
    return [chat_chunk({"tool_calls": [call]}) for call in (opening, *rest)]
