"""A browser session with a running gateway: cookies and CSRF token, over sockets."""

import contextlib
import http.client
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any, Self
from urllib.parse import urlencode

from .gateway import Gateway, Reply

FORM = "application/x-www-form-urlencoded"


class WebSession:
    """Store only the cookies of the sign-in, so that every request has the same session."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.cookies: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        """Sent with every request, such as a gateway key."""

    def sign_in(self, username: str, password: str) -> Self:
        self._send("GET", "/admin/login/", b"", FORM, store_cookies=True)
        form = urlencode({"username": username, "password": password}).encode()
        answer = self._send("POST", "/admin/login/", form, FORM, store_cookies=True)
        assert answer.status == 302, f"{username} could not sign in: {answer.status}"
        return self

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes = b"",
        content_type: str = FORM,
    ) -> Reply:
        """Send a request; a mapping as body becomes a form, a list in it several values."""
        raw = body if isinstance(body, bytes) else urlencode(body, doseq=True).encode()
        return self._send(method, path, raw, content_type, store_cookies=False)

    def _send(
        self, method: str, path: str, raw: bytes, content_type: str, *, store_cookies: bool
    ) -> Reply:
        headers = dict(self.headers)
        if self.cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            headers["x-csrftoken"] = self.cookies.get("csrftoken", "")
        if raw:
            headers["content-type"] = content_type
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=90)
        with contextlib.closing(connection):
            connection.request(method, path, raw or None, headers)
            with connection.getresponse() as answer:
                response_headers = {name.lower(): value for name, value in answer.getheaders()}
                if store_cookies:
                    for line in answer.headers.get_all("set-cookie", ()):
                        morsels = SimpleCookie(line)
                        self.cookies |= {name: one.value for name, one in morsels.items()}
                return Reply(answer.status, response_headers, answer.read())
