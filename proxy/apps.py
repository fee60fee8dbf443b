from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate, pre_migrate


class ProxyConfig(AppConfig):
    name = "proxy"
    verbose_name = "Gateway"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from proxy.audit_log import field_changes  # noqa: PLC0415 - imports models, which must be loaded first
        from proxy.checks import INSTALLATION, check_settings  # noqa: PLC0415 - needs complete settings
        from proxy.ledger import webhooks  # noqa: PLC0415 - imports models, as above
        from proxy.permissions import team_grants  # noqa: PLC0415 - imports models, as above
        from proxy.permissions.roles import make_roles, note_permissions  # noqa: PLC0415 - imports models, which must be loaded first
        from proxy.signin.checks import check_sign_in  # noqa: PLC0415 - imports models, as above

        field_changes.connect()
        webhooks.connect()
        team_grants.connect()
        checks.register(check_settings, INSTALLATION)
        checks.register(check_sign_in, INSTALLATION)
        pre_migrate.connect(note_permissions, sender=self, dispatch_uid="proxy.note_permissions")
        post_migrate.connect(make_roles, sender=self, dispatch_uid="proxy.make_roles")
