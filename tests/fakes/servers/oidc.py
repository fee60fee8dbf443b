"""An OpenID Connect provider on a loopback port: discovery, authorization, tokens, keys, userinfo.

It checks the client, the redirect URI, PKCE and the single use of a code, and signs with RSA keys.
Tests replace claims or the signature.
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
    """A provider that signs in ``alice`` without a page; ``browse`` follows the gateway's redirect."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.other_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.claims: dict[str, Any] = {}
        """Claims to add to each token or to replace; None removes a claim."""
        self.userinfo: dict[str, Any] | None = None
        self.sign: Callable[[dict[str, Any]], str] = self.signed
        self.document: dict[str, Any] = {}
        self.status: dict[str, int] = {}  # path -> error status to respond with
        self.requested_paths: list[str] = []
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
        """Act as the browser: sign in at ``location`` and return the URL of the redirect back."""
        parts = urlsplit(location)
        assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{self.issuer}/authorize"
        parameters = dict(parse_qsl(parts.query))
        assert parameters["client_id"] == CLIENT_ID
        assert parameters["response_type"] == "code"
        assert "openid" in parameters["scope"].split()
        assert parameters["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = parameters
        query = urlencode({"code": code, "state": parameters["state"]})
        return f"{parameters['redirect_uri']}?{query}"

    def signed(self, claims: dict[str, Any], **options: Any) -> str:
        options = {"key": self.key, "algorithm": "RS256", "headers": {"kid": "k1"}} | options
        return jwt.encode(claims, **options)

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
        self.requested_paths.append(path)
        pages = {
            "/.well-known/openid-configuration": self._discovery,
            "/keys": self._keys,
            "/token": lambda: self._token(request, body),
            "/userinfo": self._userinfo_response,
        }
        status = self.status.get(path, 200 if path in pages else 404)
        payload = pages[path]() if status == 200 else {"error": "server_error"}
        text = json.dumps(payload).encode()
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
        parameters = self._codes.pop(form["code"])
        scheme, _, basic = request.headers.get("authorization", "").partition(" ")
        if scheme == "Basic":
            assert base64.b64decode(basic).decode() == f"{CLIENT_ID}:{CLIENT_SECRET}"
        else:
            assert (form["client_id"], form["client_secret"]) == (CLIENT_ID, CLIENT_SECRET)
        assert form["redirect_uri"] == parameters["redirect_uri"]
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == parameters["code_challenge"]
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": "subject-1",
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": parameters["nonce"],
            "preferred_username": "alice",
            "email": "alice@example.com",
            "groups": ["staff"],
        } | self.claims
        present_claims = {name: value for name, value in claims.items() if value is not None}
        return {
            "access_token": "at-1",
            "token_type": "Bearer",
            "id_token": self.sign(present_claims),
        }

    def _userinfo_response(self) -> dict[str, Any]:
        return self.userinfo or {"sub": "subject-1"}
