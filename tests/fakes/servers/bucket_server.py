"""A server with the part of Amazon's S3 protocol that the archive uses: PUT and GET of an object."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MISSING = b"<Error><Code>NoSuchKey</Code><Message>The key does not exist.</Message></Error>"


POLL_S = 0.01  # how often the server looks whether it is stopped


class BucketServer(ThreadingHTTPServer):
    """Objects by path (``/bucket/key``), and the requests so far as (method, path)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: BucketServer

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self._accept():
            self.server.objects[self.path] = body
            self._send(200, b"")

    def do_GET(self) -> None:
        if self._accept():
            found = self.server.objects.get(self.path.partition("?")[0])
            self._send(404 if found is None else 200, MISSING if found is None else found)

    def _accept(self) -> bool:
        self.server.requests.append((self.command, self.path))
        is_signed = self.headers.get("authorization", "").startswith("AWS4-HMAC-SHA256 ")
        if not is_signed:
            self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
        return is_signed

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class names the argument so
        pass


@contextmanager
def bucket_server() -> Iterator[BucketServer]:
    server = BucketServer()
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
