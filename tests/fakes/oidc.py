"""A sign-in provider on a loopback port: discovery, authorization, tokens, keys and userinfo.

It checks what a provider checks (client, redirect URI, PKCE, one use of a code) and signs with real
RSA keys; a test bends the claims or the signature.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

CLIENT_ID = "bridge"
CLIENT_SECRET = "oidc-secret-" + "c1" * 12


class Provider:
    """``alice`` signs in at once: ``browse`` follows the redirect that our gateway answered with."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.other_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.claims: dict[str, Any] = {}
        """Beside or instead of what every token says; None takes a claim away."""
        self.userinfo: dict[str, Any] | None = None
        self.sign: Callable[[dict[str, Any]], str] = self.signed
        self.document: dict[str, Any] = {}
        self.status: dict[str, int] = {}  # path: an error to answer
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self._codes: dict[str, dict[str, str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.issuer = f"http://127.0.0.1:{self._server.server_port}/realms/main"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def browse(self, location: str) -> str:
        """What the person's browser does there: sign in, and be sent back; returns that URL."""
        parts = urlsplit(location)
        assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{self.issuer}/authorize"
        asked = dict(parse_qsl(parts.query))
        assert asked["client_id"] == CLIENT_ID
        assert asked["response_type"] == "code"
        assert "openid" in asked["scope"].split()
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        query = urlencode({"code": code, "state": asked["state"]})
        return f"{asked['redirect_uri']}?{query}"

    def signed(self, claims: dict[str, Any], **how: Any) -> str:
        how = {"key": self.key, "algorithm": "RS256", "headers": {"kid": "k1"}} | how
        return jwt.encode(claims, **how)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._answer(self, b"")

            def do_POST(self) -> None:
                provider._answer(self, self.rfile.read(int(self.headers["content-length"])))

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        path = urlsplit(request.path).path.removeprefix("/realms/main")
        self.asked.append(path)
        pages = {
            "/.well-known/openid-configuration": self._discovery,
            "/keys": self._keys,
            "/token": lambda: self._token(request, body),
            "/userinfo": self._told,
        }
        status = self.status.get(path, 200 if path in pages else 404)
        told = pages[path]() if status == 200 else {"error": "server_error"}
        text = json.dumps(told).encode()
        request.send_response(status)
        if status == 307:
            request.send_header("location", f"{self.issuer}/elsewhere")
        request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    def _discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
        } | self.document

    def _keys(self) -> dict[str, Any]:
        public = json.loads(RSAAlgorithm.to_jwk(self.key.public_key()))
        return {"keys": [public | {"kid": "k1", "use": "sig", "alg": "RS256"}]}

    def _token(self, request: BaseHTTPRequestHandler, body: bytes) -> dict[str, Any]:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.forms.append(form)
        asked = self._codes.pop(form["code"])
        scheme, _, basic = request.headers.get("authorization", "").partition(" ")
        if scheme == "Basic":
            assert base64.b64decode(basic).decode() == f"{CLIENT_ID}:{CLIENT_SECRET}"
        else:
            assert (form["client_id"], form["client_secret"]) == (CLIENT_ID, CLIENT_SECRET)
        assert form["redirect_uri"] == asked["redirect_uri"]
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == asked["code_challenge"]
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": "subject-1",
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            "preferred_username": "alice",
            "email": "alice@example.com",
            "groups": ["staff"],
        } | self.claims
        kept = {name: value for name, value in claims.items() if value is not None}
        return {"access_token": "at-1", "token_type": "Bearer", "id_token": self.sign(kept)}

    def _told(self) -> dict[str, Any]:
        return self.userinfo or {"sub": "subject-1"}
