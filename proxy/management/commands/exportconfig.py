"""Print the configuration in the database as a bridge.toml."""

from typing import Any

from proxy.config.exporting import export
from proxy.management.base import BridgeCommand


class Command(BridgeCommand):
    help = "Print the configuration as a bridge.toml. Secrets are referred to, never printed."
    example = "manage.py exportconfig > bridge.toml"

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(export(), ending="")
