"""The text that the first start prints: new secrets, and commands that use them, to copy."""

import json
import shlex
from typing import Final

from .first_start import ADMIN, SANDBOX, BootstrapResult

MODEL: Final = "claude-sonnet-5-5"


def base_url(host: str, port: int) -> str:
    """Return the URL by which clients on the same machine reach this bind address."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}  # noqa: S104 - the address is only compared  # nosec B104
    named = reachable.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{named}:{port}"


def first_start_message(made: BootstrapResult, url: str, *, password_is_new: bool) -> str:
    """Return the message with the new secrets, of which the gateway stores only hashes.

    ``password_is_new``: the password was generated, not taken from BRIDGE_ADMIN_PASSWORD.
    """
    parts = []
    if made.key or made.admin_password:
        parts.append("First start. The following secrets are shown only once; save them.")
    if made.key:
        parts += [
            f"Gateway key:     {made.key}   (team default)",
            f"curl:\n  {_curl(url, made.key)}",
            f"Claude Code:\n  ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={made.key} claude",
            f"Python SDK (after pip install anthropic):\n  {_sdk(url, made.key)}",
        ]
    if made.admin_password:
        password = made.admin_password if password_is_new else "(from BRIDGE_ADMIN_PASSWORD)"
        parts.append(f"Admin:           {url}/admin/\n  user {ADMIN}, password {password}")
    if made.upstream and made.upstream != SANDBOX:
        parts.append(f"Upstream:        claude-* is routed to {made.upstream}.")
    return "\n\n".join(parts)


DATABASE_UNAVAILABLE: Final = (
    "warning: {cause}\n"
    "The gateway serves the keys it already knows, and tries the database each second."
)
SANDBOX_NOTICE: Final = """\
SANDBOX: responses come from a script on this machine, not from a model.
  For real responses: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or write a bridge.toml
  (docs/start.md) and start with --config bridge.toml."""


def _curl(url: str, key: str) -> str:
    body = {
        "model": MODEL,
        "max_tokens": 1024,
        "stream": True,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    headers = (
        "content-type: application/json",
        "anthropic-version: 2023-06-01",
        f"x-api-key: {key}",
    )
    flags = " ".join(f"-H {shlex.quote(header)}" for header in headers)
    return f"curl -N {url}/v1/messages {flags} -d {shlex.quote(json.dumps(body))}"


def _sdk(url: str, key: str) -> str:
    code = (
        f'import anthropic; print(anthropic.Anthropic(base_url="{url}", api_key="{key}")'
        f'.messages.create(model="{MODEL}", max_tokens=1024, '
        'messages=[{"role": "user", "content": "Hello"}]).content)'
    )
    return f"python3 -c {shlex.quote(code)}"
