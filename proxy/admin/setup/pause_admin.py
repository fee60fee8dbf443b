"""Pauses of upstreams and models. Deleting a row resumes, after Django's confirmation page."""

from django.contrib import admin

from proxy.admin.core.model_admin import ChecksWrites
from proxy.models import Pause


@admin.register(Pause)
class PauseAdmin(ChecksWrites):
    empty_text = (
        "A pause rejects requests to an upstream or for a model, with a message for the clients."
    )
    list_display = ("__str__", "message", "ends", "created")
    list_select_related = ("upstream",)
    fields = ("upstream", "model", "message", "ends")
