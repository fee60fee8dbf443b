"""Upstreams in the admin. Rows from bridge.toml are read-only."""

from typing import Any, Final

from django.contrib import admin
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse

from proxy.admin.core.model_admin import ManagedAdmin
from proxy.models import ModelLesson, Upstream
from proxy.models.setup.columns import settings_of
from proxy.permissions.write_permissions import may_forget_lessons, may_probe

from .upstream_form import UpstreamForm, describe_credential, secret_location

FIRST: Final = ("name", "dialect", "base_url")
SECRET: Final = ("secret", "credentials")
DIFFERENCES: Final = ("capabilities", "model_capabilities")


@admin.register(Upstream)
class UpstreamAdmin(ManagedAdmin):
    """Upstreams. They get API keys and conversations; only superusers change them."""

    empty_text = "An upstream is a server to which the gateway sends requests."
    form = UpstreamForm
    list_display = ("name", "dialect", "address", "secret_display", "enabled", "from_file")
    list_filter = ("dialect", "enabled")
    search_fields = ("name",)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *FIRST, "secret", "new_secret", "pending_secret", "credentials",
                    "credential_state", "enabled",
                )
            },
        ),
        ("Behavior", {"fields": settings_of(Upstream, *FIRST, *SECRET, "enabled", *DIFFERENCES)}),
        ("Differences from the profile", {"fields": DIFFERENCES, "classes": ("collapse",)}),
    )  # fmt: skip

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show users with view permission only where the secret is stored, not its form field."""
        if obj is None or self.has_change_permission(request, obj):
            return self.fieldsets
        first = (*FIRST, "secret_display", "credential_state", "enabled")
        return ((None, {"fields": first}), *self.fieldsets[1:])

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        form.session = getattr(request, "session", None)
        return form

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show below the form what refusals have shown about the models of the upstream."""
        upstream = self.get_object(request, object_id)
        context = {
            **(extra_context or {}),
            "lessons": [] if upstream is None else ModelLesson.current().filter(upstream=upstream),
            "may_forget": upstream is not None and may_forget_lessons(request.user, upstream),
        }
        return super().change_view(request, object_id, form_url, context)

    def response_post_save_add(self, request: HttpRequest, obj: Upstream) -> HttpResponseRedirect:
        """Continue with the test of the new upstream, instead of the list."""
        if not may_probe(request.user):
            return super().response_post_save_add(request, obj)
        return HttpResponseRedirect(reverse("admin:proxy_upstream_probe", args=[obj.pk]))

    @admin.display(description="address", ordering="base_url")
    def address(self, obj: Upstream) -> str:
        return obj.base_url

    @admin.display(description="secret")
    def secret_display(self, obj: Upstream) -> str:
        return secret_location(obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        own = ("secret_display", "credential_state")
        return (*super().get_readonly_fields(request, obj), *own)

    @admin.display(description="credential now")
    def credential_state(self, obj: Upstream) -> str:
        """Describe the credential that the gateway of this process uses now."""
        return describe_credential(obj)
