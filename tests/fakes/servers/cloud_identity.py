"""The clouds' token endpoints on a loopback port, with tokens of a chosen lifetime.

It plays Amazon's STS, container and instance metadata, Google's metadata server and token endpoint,
and Microsoft Entra ID with the managed identity of App Service. Each token has a number.
"""

import datetime as dt
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

ROLE = "/latest/meta-data/iam/security-credentials/"
STS_ANSWER = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{AccessKeyId}</AccessKeyId>
<SecretAccessKey>{SecretAccessKey}</SecretAccessKey><SessionToken>{Token}</SessionToken>
<Expiration>{Expiration}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""
STS_DENIED = """<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code>
<Message>Not authorized for arn:aws:iam::123456789012:role/x</Message></Error></ErrorResponse>"""


class IdentityServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # many upstreams refresh at the same time


class CloudIdentity:
    """A running server. ``lifetime_s`` and ``denies`` may change at any time."""

    def __init__(self, tls: ssl.SSLContext | None = None, only_from: str = "") -> None:
        """``only_from``: the only address of clients; all others get a 403."""
        self.only_from = only_from
        self.lifetime_s = 3_600.0
        self.denies = False
        self.requests: list[tuple[str, str, str]] = []  # method, path and body
        self.number = 0
        self.expiries: dict[str, float] = {}  # by token, in seconds since 1970
        self._lock = threading.Lock()
        self._server = IdentityServer(("127.0.0.1", 0), _handler_of(self))
        scheme = "http"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.host = f"localhost:{self._server.server_address[1]}"
        self.url = f"{scheme}://{self.host}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def next_token(self) -> str:
        with self._lock:
            self.number += 1
            token = f"token-{self.number}"
            self.expiries[token] = time.time() + self.lifetime_s
            return token

    def accepts(self, authorization: str) -> bool:
        """Return whether the header has a token of this server that has not expired."""
        return self.expiries.get(authorization.removeprefix("Bearer "), 0) > time.time()

    def amazon(self) -> dict[str, str]:
        expires = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self.lifetime_s)
        return {
            "Code": "Success",
            "AccessKeyId": "AKIDEXAMPLE",
            "SecretAccessKey": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
            "Token": self.next_token(),
            "Expiration": expires.isoformat().replace("+00:00", "Z"),
        }

    def oauth(self) -> dict[str, Any]:
        seconds = int(self.lifetime_s)
        return {"access_token": self.next_token(), "expires_in": seconds, "token_type": "Bearer"}

    def managed_identity(self) -> dict[str, Any]:
        return {
            **self.oauth(),
            "expires_on": str(int(time.time() + self.lifetime_s)),
            "resource": "x",
        }


def _openid(identity: CloudIdentity) -> dict[str, Any]:
    base = f"{identity.url}/tenant"
    return {
        "issuer": f"{base}/v2.0",
        "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
        "token_endpoint": f"{base}/oauth2/v2.0/token",
    }


ANSWERS: dict[tuple[str, str], Callable[[CloudIdentity], Any]] = {
    ("GET", "/container"): CloudIdentity.amazon,
    ("PUT", "/latest/api/token"): lambda _: "imds-session",
    ("GET", ROLE): lambda _: "bedrock-role",
    ("GET", f"{ROLE}bedrock-role"): CloudIdentity.amazon,
    ("POST", "/"): lambda identity: STS_ANSWER.format(**identity.amazon()),
    ("GET", "/"): lambda _: "ok",  # Google's libraries look for their metadata server
    ("GET", "/computeMetadata/v1/project/project-id"): lambda _: "project",
    ("GET", "/computeMetadata/v1/instance/service-accounts/default/"): lambda _: {
        "email": "x@example.test", "scopes": [], "aliases": ["default"],
    },
    ("GET", "/computeMetadata/v1/instance/service-accounts/default/token"): CloudIdentity.oauth,
    ("GET", "/computeMetadata/v1/instance/service-accounts/x@example.test/token"): CloudIdentity.oauth,
    ("POST", "/google/token"): CloudIdentity.oauth,
    ("GET", "/msi/token"): CloudIdentity.managed_identity,
    ("GET", "/tenant/v2.0/.well-known/openid-configuration"): _openid,
    ("POST", "/tenant/oauth2/v2.0/token"): CloudIdentity.oauth,
}  # fmt: skip


def _handler_of(identity: CloudIdentity) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            path = urllib.parse.urlsplit(self.path).path
            body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
            identity.requests.append((self.command, path, body))
            make = ANSWERS.get((self.command, path))
            if identity.denies or identity.only_from not in {"", self.client_address[0]}:
                self._send(403, STS_DENIED if path == "/" else {"error": "invalid_client"})
            elif make is None:
                self._send(404, {"error": "not found"})
            else:
                self._send(200, make(identity))

        do_GET = do_PUT = do_POST = _answer  # noqa: N815 -- the base class has these names

        def _send(self, status: int, value: Any) -> None:
            is_text = isinstance(value, str)
            raw = (value if is_text else json.dumps(value)).encode()
            self.send_response(status)
            self.send_header("content-type", "text/plain" if is_text else "application/json")
            self.send_header("metadata-flavor", "Google")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler
