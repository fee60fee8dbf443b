"""Print the configuration that the database contains as a bridge.toml."""

from typing import Any

from proxy.config.dump import export
from proxy.management.base import BridgeCommand


class Command(BridgeCommand):
    help = "Print the configuration as a bridge.toml. Secrets are printed as references only."
    example = "manage.py exportconfig > bridge.toml"

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(export(), ending="")
