"""A receiver of webhooks on loopback, which verifies requests with the library of the standard."""

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from standardwebhooks.webhooks import Webhook as Verifier

from proxy.gateway.webhooks import WebhookSender


class Receiver:
    """Records its requests and answers with ``status`` and ``answer``.

    While ``may_answer`` is not set, it does not answer.
    """

    def __init__(self) -> None:
        self.status, self.answer = 200, b"thanks"
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests.append(({k.lower(): v for k, v in self.headers.items()}, body))
                receiver.may_answer.wait(30)
                self.send_response(receiver.status)
                self.send_header("location", "/elsewhere")
                self.send_header("content-length", str(len(receiver.answer)))
                with contextlib.suppress(ConnectionError):  # the sender has given up
                    self.end_headers()
                    self.wfile.write(receiver.answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def verified(self, secret: str) -> list[Any]:
        """Return the bodies of all requests. Raise an error if a signature is not valid."""
        for headers, body in self.requests:
            Verifier(secret).verify(body, headers)
        return [json.loads(body) for _, body in self.requests]

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.requests]


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    threading.Thread(target=receiver.server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield receiver
    finally:
        receiver.may_answer.set()
        receiver.server.shutdown()
        receiver.server.server_close()


def send_all(sender: WebhookSender | None = None) -> None:
    """Send what is due, in the thread of the test, and store the results."""
    sender = sender or WebhookSender()
    sender.run_round()
    deadline = time.monotonic() + 30
    while sender.running:
        assert time.monotonic() < deadline, "an attempt does not end"
        sender.wake_event.wait(1)
        sender.wake_event.clear()
        sender.run_round()
