"""Django system checks of the settings, and the checks that prevent ``serve`` from starting."""

import importlib.util
import ipaddress
import re
from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.core import checks

from proxy.secrets import ConfigError, has_root

INSTALLATION: Final = "installation"
"""The tag of the system checks that run at every start. Checks with other tags examine the code."""
SECRET_KEY_LENGTH: Final = 50
HOST: Final = re.compile(r"\*|\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]")
"""A valid entry of ALLOWED_HOSTS. It has no port: Django removes the port of the ``Host`` header
before it compares."""


def check_settings(app_configs: Any = None, **_: Any) -> list[checks.CheckMessage]:
    """Return all errors of the settings. Every ``manage.py`` command runs this system check."""
    return [*_secret_key(), *_hosts(), *_proxies(), *_https(), *_tracing()]


def _secret_key() -> Iterator[checks.CheckMessage]:
    key = settings.SECRET_KEY if has_root() else ""
    for name, value in (("BRIDGE_SECRET_KEY", key), *_fallbacks()):
        if value and (len(value) < SECRET_KEY_LENGTH or len(set(value)) < 10):
            yield checks.Error(
                f"{name} is too weak: {SECRET_KEY_LENGTH} random characters are the minimum",
                hint="Unset it, so that serve creates one, or use: openssl rand -base64 48",
                id="proxy.E001",
            )


def _fallbacks() -> Iterator[tuple[str, str]]:
    for value in settings.SECRET_KEY_FALLBACKS:
        yield "BRIDGE_SECRET_KEY_FALLBACKS", value


def _hosts() -> Iterator[checks.CheckMessage]:
    for host in settings.ALLOWED_HOSTS:
        if not HOST.fullmatch(host):
            yield checks.Error(
                f"BRIDGE_ALLOWED_HOSTS contains {host!r}, which is not a host name",
                hint="Write names without scheme, port and path, such as bridge.example.com,[::1].",
                id="proxy.E005",
            )


def _proxies() -> Iterator[checks.CheckMessage]:
    for network in settings.TRUSTED_PROXIES:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            yield checks.Error(
                f"BRIDGE_TRUSTED_PROXIES contains {network!r}, which is not a network",
                hint="Write addresses or networks, such as 10.0.0.0/8,192.168.1.7.",
                id="proxy.E002",
            )


def _https() -> Iterator[checks.CheckMessage]:
    for origin in settings.CSRF_TRUSTED_ORIGINS:
        if settings.HTTPS and not origin.startswith("https://"):
            yield checks.Error(
                f"BRIDGE_CSRF_TRUSTED_ORIGINS contains {origin!r}, but BRIDGE_HTTPS is on",
                hint="Write the origin with https://.",
                id="proxy.E003",
            )


def _tracing() -> Iterator[checks.CheckMessage]:
    if settings.OTEL and importlib.util.find_spec("opentelemetry") is None:
        yield checks.Error(
            "BRIDGE_OTEL is on, but OpenTelemetry is not installed",
            hint="pip install 'messages-bridge[otel]'",
            id="proxy.E004",
        )


def unsafe_settings(host: str) -> Iterator[checks.CheckMessage]:
    """Yield an error for each setting that is unsafe in a network.

    ``serve`` listens on ``host``.
    """
    if settings.DEBUG:
        yield checks.Error("BRIDGE_DEBUG is on", hint="Unset it.", id="proxy.E010")
    if "*" in settings.ALLOWED_HOSTS and not is_loopback(host):
        yield checks.Error(
            f"BRIDGE_ALLOWED_HOSTS is * while listening on {host}",
            hint="List the host names that users open the admin with.",
            id="proxy.E011",
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_unsafe_settings(host: str) -> None:
    """Raise a ConfigError that lists every unsafe setting, unless BRIDGE_INSECURE_OK is on."""
    if settings.INSECURE_OK:
        return
    found = [f"{wrong.id}: {wrong.msg}. {wrong.hint}" for wrong in unsafe_settings(host)]
    found += [f"{wrong.id}: {wrong.msg}. {wrong.hint}" for wrong in _secret_key()]
    if found:
        raise ConfigError("\n".join((*found, "Set BRIDGE_INSECURE_OK=1 to start anyway.")))
