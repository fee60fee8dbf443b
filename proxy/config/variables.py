"""Misspelt settings: a ``BRIDGE_*`` variable that nobody reads refuses the start."""

from collections.abc import Iterator, Mapping

from django.conf import settings

from proxy.models import Budget, Upstream
from proxy.secrets import ConfigError

from .reading import did_you_mean
from .schema import BridgeFile

OURS = "BRIDGE_"
FREE = "BRIDGE_KEY_"  # secrets of gateway keys, named as the operator likes


def check_environment(environ: Mapping[str, str], file: BridgeFile | None) -> None:
    """Raise ConfigError that lists every unknown name with the one that was probably meant."""
    known = {variable.name for variable in settings.BRIDGE_VARIABLES}
    known |= {f"{name}_FILE" for name in known}
    referred = {*_referred(file), *_stored()}
    unknown = sorted(
        name
        for name in environ
        if name.startswith(OURS) and not name.startswith(FREE) and name not in known | referred
    )
    if unknown:
        ours = [name for name in known if name.startswith(OURS)]
        raise ConfigError(
            "\n".join(f"unknown setting {name}{did_you_mean(name, ours)}" for name in unknown)
        )


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
