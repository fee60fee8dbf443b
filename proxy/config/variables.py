"""Misspelt settings: a ``BRIDGE_*`` variable that nobody reads refuses the start."""

import contextlib
from collections.abc import Iterator, Mapping

from django.conf import settings
from django.db import DatabaseError

from proxy.complaints import did_you_mean
from proxy.models import Budget, Upstream
from proxy.secrets import ConfigError

from .arrival import is_new
from .schema import BridgeFile

OURS = "BRIDGE_"
FREE = "BRIDGE_KEY_"  # secrets of gateway keys, named as the operator likes


def check_early(environ: Mapping[str, str], file: BridgeFile | None) -> None:
    """``check_environment`` before anything is made.

    Names that rows refer to are free; a database that cannot tell them yet (it is away, or of an
    older version) puts the question off: ask again when it is ready.
    """
    with contextlib.suppress(DatabaseError):
        check_environment(environ, file)


def check_environment(environ: Mapping[str, str], file: BridgeFile | None) -> None:
    """Raise ConfigError that lists every unknown name with the one that was probably meant."""
    known = {variable.name for variable in settings.BRIDGE_VARIABLES}
    known |= {f"{name}_FILE" for name in known}
    known |= {*_referred(file)}
    unknown = {
        name
        for name in environ
        if name.startswith(OURS) and not name.startswith(FREE) and name not in known
    }
    if unknown and not is_new():
        unknown -= {*_stored()}
    if unknown:
        ours = [name for name in known if name.startswith(OURS)]
        told = (f"unknown setting {name}{did_you_mean(name, ours)}" for name in sorted(unknown))
        raise ConfigError("\n".join(told))


def _referred(file: BridgeFile | None) -> Iterator[str]:
    if file:
        for reference in (
            *(upstream.api_key for upstream in file.upstreams),
            *(key.secret for key in file.keys),
            *(budget.webhook_secret for team in file.teams for budget in team.budgets),
            *(budget.webhook_secret for key in file.keys for budget in key.budgets),
            *(budget.webhook_secret for budget in file.budgets),
        ):
            if reference and reference.env:
                yield reference.env


def _stored() -> Iterator[str]:
    for references in (
        Upstream.objects.values_list("secret", flat=True),
        Budget.objects.values_list("webhook_secret", flat=True),
    ):
        for reference in references:
            if reference.get("env"):
                yield reference["env"]
