"""Fake OpenAI upstream for benchmarks: POST …/chat/completions and …/responses.

Every knob is in the model name, so any gateway that forwards the name can use it:

    mock-n200-b5-g0-text        200 deltas of 5 bytes, no gap, a text answer
    mock-n100-b16-g20-text      a delta every 20 ms; each is "@<usec>@" (send time, CLOCK_MONOTONIC)
    mock-n200-b5-g0-tool-e20    a tool call; the response objects echo 20 KB of instructions, tools
    mock-n200-b5-g0-text-d300   first byte after 300 ms

The knobs may also be in the path (…/mock-n200-b5-g0-text/v1/chat/completions), for gateways
that need a list of models. Zero-gap answers are rendered once and sent with one write.
Paced answers run on a 1 ms timer wheel.
"""

import argparse
import asyncio
import os
import re
import time

import uvloop

from benchmarks.gateway.answers import Answer

MODEL_RE = re.compile(rb'"model"\s*:\s*"([^"]+)"')
STREAM_RE = re.compile(rb'"stream"\s*:\s*true')
USAGE_RE = re.compile(rb'"include_usage"\s*:\s*true')
PATH_RE = re.compile(rb"/(mock-[^/ ]+)/")
LENGTH_RE = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
CHUNKED_RE = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)

ANSWERS = {}


class Wheel:
    """Sends one delta per stream every `gap` ms; streams spread over 1 ms slots by their start."""

    def __init__(self, loop, gap):
        self.loop, self.gap, self.slots, self.tick, self.live = (
            loop,
            gap,
            [[] for _ in range(gap)],
            0,
            0,
        )

    def add(self, stream):
        if not self.live:
            self.t0, self.tick = self.loop.time(), 0
            self.loop.call_at(self.t0 + 0.001, self.turn)
        self.live += 1
        self.slots[self.tick % self.gap].append(stream)

    def turn(self):
        due = int((self.loop.time() - self.t0) * 1000)
        while self.tick < due:
            self.tick += 1
            slot = self.slots[self.tick % self.gap]
            if slot:
                unfinished = [s for s in slot if s.step()]
                self.live -= len(slot) - len(unfinished)
                self.slots[self.tick % self.gap] = unfinished
        if self.live:
            self.loop.call_at(self.t0 + (self.tick + 1) / 1000, self.turn)


WHEELS = {}


class Paced:
    def __init__(self, proto, answer):
        self.proto, self.write, self.answer, self.i, self.count = (
            proto,
            proto.transport.write,
            answer,
            0,
            len(answer.deltas),
        )
        self.write(answer.head)
        self.step()

    def step(self):
        if self.proto.gone:
            return False
        before, after = self.answer.deltas[self.i]
        self.write(b"%b@%014d@%b" % (before, time.monotonic_ns() // 1000, after))
        self.i += 1
        if self.i < self.count:
            return True
        self.write(self.answer.end)
        return False


class Upstream(asyncio.Protocol):
    __slots__ = ("buffer", "gone", "loop", "need", "transport")

    def connection_made(self, transport):
        self.transport, self.buffer, self.gone, self.need = transport, bytearray(), False, 0
        self.loop = asyncio.get_running_loop()

    def connection_lost(self, exc):
        self.gone = True

    def data_received(self, data):
        self.buffer += data
        while len(self.buffer) >= self.need and self.buffer:
            split = self.buffer.find(b"\r\n\r\n")
            if split < 0:
                return
            head = bytes(self.buffer[:split])
            length = LENGTH_RE.search(head)
            if length:
                end = split + 4 + int(length[1])
            elif CHUNKED_RE.search(head):
                stop = self.buffer.find(b"0\r\n\r\n", split)
                if stop < 0:
                    return
                end = stop + 5
            else:
                end = split + 4
            if len(self.buffer) < end:
                self.need = end
                return
            body = bytes(self.buffer[split + 4 : end])
            del self.buffer[:end]
            self.need = 0
            self.answer(head, body)

    def answer(self, head, body):
        line = head[: head.find(b"\r\n")]
        kind = (
            "chat"
            if b"/chat/completions" in line
            else "responses"
            if b"/responses" in line
            else None
        )
        found = MODEL_RE.search(body)
        if kind is None or not found:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
            )
            return
        in_path = PATH_RE.search(line)
        key = (
            kind,
            in_path[1] if in_path else found[1],
            STREAM_RE.search(body) is not None,
            USAGE_RE.search(body) is not None,
        )
        ready = ANSWERS.get(key)
        if ready is None:
            ready = ANSWERS[key] = Answer(kind, key[1].decode().split("/")[-1], key[2], key[3])
        if ready.delay:
            self.loop.call_later(ready.delay / 1000, self.send, ready)
        else:
            self.send(ready)

    def send(self, ready):
        if self.gone:
            return
        if ready.deltas is None:
            self.transport.write(ready.head)
            return
        wheel = WHEELS.get(ready.gap)
        if wheel is None:
            wheel = WHEELS[ready.gap] = Wheel(self.loop, ready.gap)
        stream = Paced(self, ready)
        if stream.i < stream.count:
            wheel.add(stream)


async def main():
    args = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--port", type=int, default=9100)
    port = args.parse_args().port
    server = await asyncio.get_running_loop().create_server(
        Upstream, "127.0.0.1", port, backlog=8192
    )
    print(f"mock upstream on 127.0.0.1:{port}, pid {os.getpid()}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
