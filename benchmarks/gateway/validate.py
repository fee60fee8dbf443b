"""Check one whole response strictly: `check()` returns None when it is valid, else a reason."""

import json

from benchmarks.gateway import payloads


def dechunk(raw):
    out, i = [], 0
    while i < len(raw):
        j = raw.find(b"\r\n", i)
        if j < 0:
            raise ValueError("cut chunk header")
        size = int(raw[i:j].split(b";")[0], 16)
        if size == 0:
            return b"".join(out)
        out.append(raw[j + 2 : j + 2 + size])
        i = j + 2 + size + 2
    raise ValueError("no last chunk")


def sse(raw):
    """[(event name or None, data text)]; takes CRLF, and a colon without a space after it."""
    events = []
    for block in raw.decode().replace("\r\n", "\n").split("\n\n"):
        name, data = None, []
        for line in block.split("\n"):
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
        if name or data:
            events.append((name, "\n".join(data)))
    return events


def check(api, model, stream, status, body):
    try:
        return _check(api, model, stream, status, body)
    except Exception as error:  # noqa: BLE001 - whatever a server sent, the run goes on
        return f"{type(error).__name__}: {error}"


def _check(api, model, stream, status, body):
    if status != 200:
        return f"status {status}: {body[:200]!r}"
    kind, size = payloads.expected(model)
    if api != "anthropic":
        if not stream:
            return (
                None
                if json.loads(body).get("object") in ("chat.completion", "response")
                else "wrong object"
            )
        last = [d for _, d in sse(body)][-1]
        done = last == "[DONE]" or json.loads(last).get("type") == "response.completed"
        return None if done else "no end"
    if not stream:
        return check_message(json.loads(body), kind, size)
    return check_stream(sse(body), kind, size)


def check_message(message, kind, size):
    if (
        message.get("type") != "message"
        or message.get("role") != "assistant"
        or not message.get("id")
    ):
        return f"not a message: {str(message)[:200]}"
    block = message["content"][-1]
    if kind == "tool":
        if block["type"] != "tool_use" or len(block["input"]["command"]) != size:
            return "wrong tool_use block"
        want = "tool_use"
    else:
        if block["type"] != "text" or len(block["text"]) != size:
            return f"wrong text: {len(block.get('text', ''))} of {size}"
        want = "end_turn"
    if message["stop_reason"] != want:
        return f"stop_reason {message['stop_reason']}"
    if not message["usage"].get("output_tokens"):
        return "no output_tokens"
    return None


def check_stream(events, kind, size):
    seen = StreamState()
    for name, data in events:
        if reason := seen.feed(name, data):
            return reason
    return seen.wrong_end(kind, size)


class StreamState:
    """The state of a stream; independent of the gateway's own grammar."""

    def __init__(self):
        self.started = self.stopped = False
        self.open, self.closed = {}, set()
        self.text, self.usage, self.reason = [], {}, None

    def feed(self, name, data):
        """Return a reason to reject the stream because of this event, or None."""
        if data == "[DONE]":
            return "OpenAI [DONE] in an Anthropic stream"
        value = json.loads(data)
        sort = value["type"]
        if name != sort:
            return f"event name {name} for type {sort}"
        if self.stopped:
            return f"{sort} after message_stop"
        if sort not in self.HANDLERS:
            return f"unknown event {sort}"
        if not self.started and sort not in ("ping", "error", "message_start"):
            return f"{sort} before message_start"
        return self.HANDLERS[sort](self, value)

    def wrong_end(self, kind, size):
        joined = "".join(self.text)
        if kind == "tool":
            joined = json.loads(joined)["command"]
        expected = "tool_use" if kind == "tool" else "end_turn"
        reasons = {
            "no message_stop": not self.stopped,
            f"blocks left open: {self.open}": self.open,
            f"text is {len(joined)} of {size} bytes": len(joined) != size,
            f"stop_reason {self.reason}": self.reason != expected,
            "no output_tokens in message_delta": not self.usage.get("output_tokens"),
        }
        return next((reason for reason, wrong in reasons.items() if wrong), None)

    def _ignore(self, value):
        return None

    def _error(self, value):
        return f"error event: {str(value)[:200]}"

    def _start(self, value):
        if self.started:
            return "second message_start"
        self.started = True
        message = value["message"]
        right = message["role"] == "assistant" and message["type"] == "message"
        return None if right and "usage" in message else "bad message_start"

    def _open(self, value):
        index = value["index"]
        if index in self.open or index in self.closed:
            return f"block {index} opened twice"
        self.open[index] = value["content_block"]["type"]
        return None

    def _delta(self, value):
        if value["index"] not in self.open:
            return f"delta for closed block {value['index']}"
        delta = value["delta"]
        self.text.append(delta.get("text") or delta.get("partial_json") or "")
        return None

    def _close(self, value):
        if self.open.pop(value["index"], None) is None:
            return f"stop for closed block {value['index']}"
        self.closed.add(value["index"])
        return None

    def _end(self, value):
        self.reason = value["delta"].get("stop_reason") or self.reason
        self.usage.update(value.get("usage") or {})

    def _stop(self, value):
        self.stopped = True

    HANDLERS = {  # noqa: RUF012 - a constant
        "ping": _ignore,
        "error": _error,
        "message_start": _start,
        "content_block_start": _open,
        "content_block_delta": _delta,
        "content_block_stop": _close,
        "message_delta": _end,
        "message_stop": _stop,
    }
