"""Prevent the start with an unknown ``BRIDGE_*`` environment variable, as it may be misspelled."""

import contextlib
import logging
from collections.abc import Iterator, Mapping

from django.conf import settings
from django.db import DatabaseError

from proxy.config.load import BridgeFile
from proxy.decode_errors import did_you_mean
from proxy.models import Upstream, Webhook
from proxy.secrets import ConfigError

from .wait_for_database import is_new

log = logging.getLogger(__name__)

PREFIX = "BRIDGE_"
KEY_PREFIX = "BRIDGE_KEY_"  # variables with secrets of gateway keys; operators choose the names


def check_early(environ: Mapping[str, str], file: BridgeFile | None) -> None:
    """Run ``check_environment`` before the start creates or changes anything.

    Rows of the database may name further variables. If the database cannot be read yet (it is down,
    or its schema is older), this check passes, and ``check_environment`` runs again later in the
    start, when the database is ready.
    """
    for name, former in settings.BRIDGE_FORMER_NAMES.items():
        if {former, f"{former}_FILE"} & environ.keys():
            log.warning("%s is deprecated; set %s instead", former, name)
    with contextlib.suppress(DatabaseError):
        check_environment(environ, file)


def check_environment(environ: Mapping[str, str], file: BridgeFile | None) -> None:
    """Raise ConfigError if there are unknown ``BRIDGE_*`` variables.

    The error lists each unknown name and suggests a similar known name. ``file``: the bridge.toml,
    which may name further variables.
    """
    known = {variable.name for variable in settings.BRIDGE_VARIABLES}
    known |= {*settings.BRIDGE_FORMER_NAMES.values()}
    known |= {f"{name}_FILE" for name in known}
    known |= {*_names_in_file(file)}
    unknown = {
        name
        for name in environ
        if name.startswith(PREFIX) and not name.startswith(KEY_PREFIX) and name not in known
    }
    if unknown and not is_new():
        unknown -= {*_names_in_database()}
    if unknown:
        similar = [name for name in known if name.startswith(PREFIX)]
        lines = (f"unknown setting {name}{did_you_mean(name, similar)}" for name in sorted(unknown))
        raise ConfigError("\n".join(lines))


def _names_in_file(file: BridgeFile | None) -> Iterator[str]:
    if file:
        for reference in (
            *(upstream["secret"] for upstream in file.upstreams),
            *(upstream["credentials"].get("client_secret") for upstream in file.upstreams),
            *(key["secret_reference"] for key in file.keys),
            *(webhook["secret"] for webhook in file.webhooks),
            *(webhook["previous_secret"] for webhook in file.webhooks),
        ):
            if reference and "env" in reference:
                yield reference["env"]


def _names_in_database() -> Iterator[str]:
    for references in (
        Upstream.objects.values_list("secret", flat=True),
        Upstream.objects.values_list("credentials__client_secret", flat=True),
        Webhook.objects.values_list("secret", flat=True),
        Webhook.objects.values_list("previous_secret", flat=True),
    ):
        for reference in references:
            if isinstance(reference, dict) and reference.get("env"):
                yield reference["env"]
