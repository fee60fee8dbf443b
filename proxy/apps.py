from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate, pre_migrate


class ProxyConfig(AppConfig):
    name = "proxy"
    verbose_name = "Gateway"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from proxy.checks import INSTALLATION, check_settings  # noqa: PLC0415 - complete settings
        from proxy.record.upgrades import fill_sums  # noqa: PLC0415 - models must be there first
        from proxy.roles import make_roles, note_permissions  # noqa: PLC0415 - the same
        from proxy.signin.checks import check_sign_in  # noqa: PLC0415 - the same

        checks.register(check_settings, INSTALLATION)
        checks.register(check_sign_in, INSTALLATION)
        pre_migrate.connect(note_permissions, sender=self, dispatch_uid="proxy.note_permissions")
        post_migrate.connect(make_roles, sender=self, dispatch_uid="proxy.make_roles")
        post_migrate.connect(fill_sums, sender=self, dispatch_uid="proxy.fill_sums")
