"""Webhooks, and the log of deliveries to webhooks and mail addresses."""

from typing import TYPE_CHECKING, Any, ClassVar, Final

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.formats import localize
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_POST

from proxy.admin.core.lookup_limits import OwnUrls
from proxy.admin.core.model_admin import ManagedAdmin, ModelForm, ReadOnlyAdmin, refuse_managed
from proxy.admin.core.number_format import UNKNOWN
from proxy.admin.core.pages import page
from proxy.ledger.webhooks import record_test_event, rotate_secret, send_again
from proxy.models import DeliveryState, EventType, Webhook, WebhookDelivery
from proxy.models.setup.columns import SEALED, shown
from proxy.permissions.row_permissions import (
    reader_of_user,
    visible_deliveries,
    visible_webhooks,
)
from proxy.permissions.write_permissions import ADD, CHANGE, has_write_permission

if TYPE_CHECKING:  # the theme's widgets have no types; their Django base classes do
    CheckboxChoices = forms.CheckboxSelectMultiple
else:
    from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget as CheckboxChoices

LOG: Final = "admin:proxy_webhookdelivery_changelist"


class WebhookForm(ModelForm):
    events = forms.MultipleChoiceField(
        choices=EventType.choices,
        required=False,
        widget=CheckboxChoices,
        help_text="None: all events, also those of later versions.",
    )

    class Meta:
        labels: ClassVar = {"url": "URL"}
        help_texts: ClassVar = {
            "team": "Only the events of this team. Empty: of all teams and upstreams.",
            "url": "https, or http on this machine and in private networks.",
        }


@admin.register(Webhook)
class WebhookAdmin(ManagedAdmin):
    """Webhooks. The gateway calls their URLs, so only superusers change them."""

    empty_text = "A webhook receives signed events, such as a budget that reached 80 %."
    form = WebhookForm
    list_display = ("name", "team_display", "events_display", "last_delivery", "enabled",
                    "from_file")  # fmt: skip
    list_filter = ("enabled",)
    sortable_by = ()
    search_fields = ("name",)
    autocomplete_fields = ("team",)
    fields = ("name", "url", "team", "events", "enabled")
    change_form_template = "admin/proxy/webhook/change_form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Webhook]:
        return visible_webhooks(reader_of_user(request.user)).order_by("name")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.fields, "secret_display") if obj else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*super().get_readonly_fields(request, obj), "secret_display")

    @admin.display(description="team")
    def team_display(self, obj: Webhook) -> str:
        return obj.team.name if obj.team else "all teams and upstreams"

    @admin.display(description="events")
    def events_display(self, obj: Webhook) -> str:
        return shown(obj.events) or "all"

    @admin.display(description="last delivery")
    def last_delivery(self, obj: Webhook) -> str:
        last = obj.deliveries.exclude(attempted=None).order_by("-attempted").first()
        if last is None:
            return UNKNOWN
        return f"{last.state}, {localize(localtime(last.attempted))}"

    @admin.display(description="secret")
    def secret_display(self, obj: Webhook) -> str:
        """Describe where the secrets are, without the secrets."""
        secrets = [("", obj.secret), ("previous: ", obj.previous_secret)]
        return "; ".join(
            f"{label}stored, encrypted" if SEALED in stored else f"{label}{place} {name}"
            for label, stored in secrets
            for place, name in stored.items()
        )

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Delete the deliveries with their webhook, although no user may delete one of them."""
        objects, counts, missing, protected = super().get_deleted_objects(objs, request)
        return objects, counts, missing - {WebhookDelivery._meta.verbose_name}, protected  # noqa: SLF001 - documented by Django

    @sensitive_variables("secret")
    def save_model(
        self, request: HttpRequest, obj: Webhook, form: "forms.ModelForm[Any]", change: bool
    ) -> None:
        obj.save(update_fields=form.changed_data if change else None)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Give a new webhook its secret before it is validated, because it needs one."""
        form = super().get_form(request, obj, change=change, **kwargs)
        if change:
            return form

        class NewWebhookForm(form):  # type: ignore[misc, valid-type]  # mypy cannot check a base class that is a parameter
            def _post_clean(self) -> None:
                request.new_secret = self.instance.give_secret()  # type: ignore[attr-defined]  # read by response_add
                super()._post_clean()

        return NewWebhookForm

    def response_add(
        self, request: HttpRequest, obj: Webhook, post_url_continue: str | None = None
    ) -> HttpResponse:
        return secret_page(request, obj, request.new_secret)  # type: ignore[attr-defined]

    def own_urls(self) -> OwnUrls:
        return (
            ("<int:webhook_id>/test/", require_POST(self.test), "proxy_webhook_test"),
            ("<int:webhook_id>/rotate/", self.rotate, "proxy_webhook_rotate"),
        )

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        webhook = context.get("original")
        if webhook is not None:
            context["deliveries_url"] = f"{reverse(LOG)}?webhook__id__exact={webhook.pk}"
            context["may_test"] = may_send(request.user, WebhookDelivery(webhook=webhook), ADD)
            context["may_rotate"] = self.has_change_permission(request, webhook)
        return super().render_change_form(request, context, *args, **kwargs)

    def test(self, request: HttpRequest, webhook_id: int) -> HttpResponse:
        """Send a test event; the log shows its result."""
        webhook = self._find(request, webhook_id)
        if not may_send(request.user, WebhookDelivery(webhook=webhook), ADD):
            raise PermissionDenied
        delivery = record_test_event(webhook)
        self.message_user(request, f"A test event is sent to {webhook} within seconds.")
        return HttpResponseRedirect(delivery_url(delivery))

    @sensitive_variables("secret")
    def rotate(self, request: HttpRequest, webhook_id: int) -> HttpResponse:
        """Issue a new secret after a confirmation; the old one signs too for a day."""
        webhook = self._find(request, webhook_id)
        refuse_managed(webhook)
        if not self.has_change_permission(request, webhook):
            raise PermissionDenied
        if request.method == "POST":
            return secret_page(request, webhook, rotate_secret(webhook))
        title = f"Rotate the secret of {webhook}"
        return page(request, "webhook/rotate", title, webhook=webhook)

    def _find(self, request: HttpRequest, webhook_id: int) -> Webhook:
        webhook = self.get_queryset(request).filter(pk=webhook_id).first()
        if webhook is None or not self.has_view_permission(request, webhook):
            raise Http404("no such webhook")
        return webhook


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(ReadOnlyAdmin):
    """Events of the last 30 days for each receiver, newest first."""

    heading = "Deliveries"
    empty_text = (
        "Events appear here when a webhook or a mail address gets one. The"
        " page of a webhook sends a test event."
    )
    list_display = ("event_type", "receiver", "state_display", "attempts", "status", "created",
                    "attempted")  # fmt: skip
    list_filter = ("state", "webhook")
    sortable_by = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    fields = ("event_type", "receiver", "state_display", "attempts", "created", "attempted",
              "status", "error", "answer_display", "event_id", "body_display")  # fmt: skip
    readonly_fields = fields
    change_form_template = "admin/proxy/webhook/delivery_change_form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[WebhookDelivery]:
        return visible_deliveries(reader_of_user(request.user)).order_by("-pk")

    def get_list_filter(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the filter by webhook only for users who see all of them, as it lists all."""
        return self.list_filter if reader_of_user(request.user).everything else ("state",)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        return lookup in {"state__exact", "webhook__id__exact"}

    @admin.display(description="event")
    def event_type(self, obj: WebhookDelivery) -> str:
        return obj.event.type

    @admin.display(description="receiver")
    def receiver(self, obj: WebhookDelivery) -> str:
        return obj.webhook.name if obj.webhook else obj.email

    @admin.display(description="state")
    def state_display(self, obj: WebhookDelivery) -> str:
        if obj.state != DeliveryState.WAITING:
            return obj.state
        return f"waiting, next attempt {localize(localtime(obj.due))}"

    @admin.display(description="created")
    def created(self, obj: WebhookDelivery) -> str:
        return str(localize(localtime(obj.event.created)))

    @admin.display(description="response")
    def answer_display(self, obj: WebhookDelivery) -> SafeString | str:
        return format_html('<pre class="mb-json">{}</pre>', obj.answer) if obj.answer else UNKNOWN

    @admin.display(description="body")
    def body_display(self, obj: WebhookDelivery) -> SafeString:
        return format_html('<pre class="mb-json">{}</pre>', obj.event.body)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context["may_send"] = may_send(request.user, context["original"], CHANGE)
        return super().render_change_form(request, context, *args, **kwargs)

    def own_urls(self) -> OwnUrls:
        return (("<int:delivery_id>/send/", require_POST(self.send), "proxy_webhookdelivery_send"),)

    def send(self, request: HttpRequest, delivery_id: int) -> HttpResponse:
        """Send the event again, with the same event id."""
        delivery = self.get_queryset(request).filter(pk=delivery_id).first()
        if delivery is None or not self.has_view_permission(request, delivery):
            raise Http404("no such delivery")
        if not may_send(request.user, delivery, CHANGE):
            raise PermissionDenied
        send_again(delivery)
        self.message_user(request, "The event is sent again within seconds.")
        return HttpResponseRedirect(delivery_url(delivery))


def may_send(user: Any, delivery: WebhookDelivery, action: str) -> bool:
    """Whether the user may send a test event (``ADD``) or an event again (``CHANGE``)."""
    return has_write_permission(user, action, WebhookDelivery, delivery)


def delivery_url(delivery: WebhookDelivery) -> str:
    return reverse("admin:proxy_webhookdelivery_change", args=[delivery.pk])


@sensitive_variables("secret")
def secret_page(request: HttpRequest, webhook: Webhook, secret: str) -> HttpResponse:
    """Show the secret in the response to the POST, so that it is never stored in plain text."""
    return page(request, "webhook/secret", f"Webhook {webhook}", webhook=webhook, secret=secret)
