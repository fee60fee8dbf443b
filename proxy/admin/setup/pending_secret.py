"""Keep a typed secret for some minutes while the user corrects another field of the form.

The secret is never written back into the page. It is stored encrypted in the user's session on the
server, and the page gets only a random token, in a hidden field.
"""

import secrets
import time
from typing import Any, Final

from proxy.encryption.upstream_secrets import decrypt_secret, encrypt_secret
from proxy.secrets import ConfigError

LIFETIME_S: Final = 600
SESSION_KEY: Final = "typed_secret"


def keep(session: Any, secret: str) -> str:
    """Store the secret, in place of an earlier one, and return its token."""
    token = secrets.token_urlsafe(16)
    session[SESSION_KEY] = {
        "token": token,
        "sealed": encrypt_secret(secret, _purpose(token)),
        "until": int(time.time()) + LIFETIME_S,
    }
    return token


def recall(session: Any, token: str) -> str:
    """Return the stored secret of this token; empty if there is none, or its time is over."""
    stored = session.get(SESSION_KEY)
    if (
        not token
        or not stored
        or not secrets.compare_digest(stored["token"].encode(), token.encode())
    ):
        return ""
    if time.time() > stored["until"]:
        forget(session)
        return ""
    try:
        return str(decrypt_secret(stored["sealed"], _purpose(token)))
    except ConfigError:  # the secret key of the installation has changed
        return ""


def forget(session: Any) -> None:
    session.pop(SESSION_KEY, None)


def _purpose(token: str) -> str:
    """Return the associated data: this secret cannot be used as the secret of an upstream."""
    return f"form:{token}"
