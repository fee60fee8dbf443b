"""Requests to a cloud that serves Anthropic's Messages API; see ``CLOUDS``."""

from collections.abc import Mapping
from typing import Any, Final

from proxy.gateway.snapshot.targets import UpstreamServer
from proxy.gateway.snapshot.upstream_policies import BETAS
from translator.anthropic_upstream.clouds import accepted_betas, cloud_fields
from translator.notes import Note

VERSION: Final = "anthropic-version"
FORWARDED: Final = frozenset({"user-agent", BETAS})
"""The client's headers that a cloud with its own protocol gets. It would check others by its own
rules, for example ``accept``."""


def as_cloud_request(
    server: UpstreamServer, fields: Mapping[str, Any], headers: Mapping[str, str], notes: list[Note]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body's fields and the headers for the upstream; unchanged if it is no cloud."""
    cloud = server.cloud
    if cloud is None:
        return dict(fields), dict(headers)
    asked = [name.strip() for name in headers.get(BETAS, "").split(",") if name.strip()]
    betas = accepted_betas(asked, cloud, server.profile, notes)
    sent = {
        name: value
        for name, value in headers.items()
        if name != BETAS and (name in FORWARDED or not cloud.version)
    }
    if betas and not cloud.betas_in_body:
        sent[BETAS] = ",".join(betas)
    return cloud_fields(fields, cloud, betas), sent
