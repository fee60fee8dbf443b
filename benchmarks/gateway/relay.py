"""Measure the CPU time of relaying one text delta, in process and without sockets.

The streams take turns, one delta each, so that with many streams their objects are no longer in the
processor's caches when the next delta arrives. CPU time varies less than the rates of the other
scenarios, so this shows small changes even on a busy machine.

python -m benchmarks.gateway.relay [--streams 1000] [--dialect chat]
"""

import argparse
import asyncio
import os
import statistics
import time
from types import SimpleNamespace

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

import uvloop  # noqa: E402

from benchmarks.gateway import answers  # noqa: E402
from benchmarks.gateway.servers import UPSTREAM_KEY  # noqa: E402
from proxy.gateway.endpoints.http_consumer import StreamingHttpConsumer  # noqa: E402
from proxy.gateway.http.deadlines import Deadlines  # noqa: E402
from proxy.gateway.http.request_headers import RequestHeaders  # noqa: E402
from proxy.gateway.request.attempts import AttemptRecord  # noqa: E402
from proxy.gateway.request.request import Request  # noqa: E402
from proxy.gateway.snapshot.dialects import DIALECTS  # noqa: E402
from proxy.gateway.snapshot.targets import Target, UpstreamServer  # noqa: E402
from proxy.gateway.upstream.attempt import Attempt  # noqa: E402
from proxy.gateway.upstream.client import UpstreamResponse  # noqa: E402
from proxy.gateway.upstream.connections import ConnectionPool, UpstreamConnection  # noqa: E402
from proxy.gateway.upstream.response_writers import StreamingResponseWriter  # noqa: E402
from proxy.models.setup.columns import Timeouts  # noqa: E402
from proxy.server.http_protocol import Cycle  # noqa: E402
from tests.proxy.gateway.request_factory import HEADERS, RecordedRequest  # noqa: E402
from translator.capabilities import PROFILES  # noqa: E402
from translator.dialect import ResponseContext  # noqa: E402

DELTAS = 60
WARM_UP = 8  # deltas that are not measured: the first ones start the message
AT_ONCE = 8  # deltas that one iteration of the event loop reads
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Transport:
    """A connection that takes all bytes at once and drops them."""

    def write(self, data):
        pass

    def writelines(self, pieces):
        pass

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return False


def start_stream(dialect, server, loop):
    """Start to relay one response; return the upstream's connection and the task."""
    client = SimpleNamespace(
        loop=loop, transport=Transport(), writable=None,
        server_state=SimpleNamespace(tasks=set(), default_headers=[]),
    )  # fmt: skip
    consumer = StreamingHttpConsumer()
    consumer.base_send = Cycle(client, "POST", "1.1", keep_alive=True).send
    consumer.head = RequestHeaders({"path": "/", "headers": HEADERS, "client": ("::1", 1)})
    consumer.extra_headers = []
    consumer.deadlines = Deadlines(consumer.stop, loop)
    consumer.started = loop.time()
    request = Request(consumer, consumer.head, RecordedRequest().caller)
    target = Target(server=server, model="m")
    attempt = Attempt(target, request, StreamingResponseWriter(request))
    attempt.stream = DIALECTS[dialect].stream(ResponseContext(message_id="msg_1", model="m"))
    record = AttemptRecord(server.name, "m", loop.time(), status=200)
    request.attempt_started(record, target, attempt.stream)
    upstream = UpstreamConnection()
    upstream.connection_made(Transport())
    upstream.send_request(b"", b"")
    upstream.data_received(HEAD)
    response = UpstreamResponse(upstream, server, record, ConnectionPool(lambda: None))
    return upstream, loop.create_task(attempt.relay_events(response))


def chunks(dialect):
    knobs = answers.parse_knobs(f"mock-n{DELTAS}-b5-g0-text")
    streams = {
        "chat": answers.chat_stream("m", knobs, with_usage=True),
        "responses": answers.responses_stream("m", knobs),
    }
    for events in streams[dialect]:
        for event in events:
            yield b"%x\r\n%b\r\n" % (len(event.encode()), event.encode())


async def measure(dialect, streams):
    """Return the CPU time of each delta in microseconds."""
    loop = asyncio.get_running_loop()
    server = UpstreamServer.of(
        name="up", dialect=DIALECTS[dialect], dialect_name=dialect, profile=PROFILES["openai"],
        base_url="https://up.test/v1", secret=UPSTREAM_KEY, timeouts=Timeouts(), extra_body={},
        capabilities={},
    )  # fmt: skip
    running = [start_stream(dialect, server, loop) for _ in range(streams)]
    await asyncio.sleep(0)
    times = []
    for chunk in list(chunks(dialect))[:DELTAS]:
        copies = [bytes(bytearray(chunk)) for _ in running]  # each stream reads its own bytes
        began = time.process_time()
        for at in range(0, streams, AT_ONCE):
            for (upstream, _), data in zip(
                running[at : at + AT_ONCE], copies[at : at + AT_ONCE], strict=True
            ):
                upstream.data_received(data)
            await asyncio.sleep(0)  # the tasks are scheduled
            await asyncio.sleep(0)  # and run
        times.append((time.process_time() - began) / streams * 1e6)
    assert not any(task.done() for _, task in running)
    for _, task in running:
        task.cancel()
    await asyncio.gather(*(task for _, task in running), return_exceptions=True)
    return times[WARM_UP:]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--dialect", choices=["chat", "responses"], default="chat")
    options = parser.parse_args()
    times = uvloop.run(measure(options.dialect, options.streams))
    low, median, _ = statistics.quantiles(times, n=4)
    print(
        f"{options.dialect}, {options.streams} streams, µs of CPU per delta:"
        f" minimum {min(times):.1f}, lower quartile {low:.1f}, median {median:.1f}"
    )


if __name__ == "__main__":
    main()
