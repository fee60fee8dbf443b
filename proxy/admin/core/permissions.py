"""The permission checks that several admin pages share."""

from typing import Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from proxy.permissions.row_permissions import can_open_admin

READ_TRANSCRIPT: Final = "proxy.view_transcript"
READ_RAW: Final = "proxy.view_part"  # permission to read raw request and response bodies


def require_reader(request: HttpRequest) -> None:
    """Raise PermissionDenied if the signed-in user may not see any requests of the ledger."""
    if not can_open_admin(request.user):
        raise PermissionDenied
