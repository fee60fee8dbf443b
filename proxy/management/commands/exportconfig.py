"""Print the configuration that the database contains as a bridge.toml."""

from typing import Any

from django.core.management.base import CommandParser

from proxy.config.dump import export
from proxy.management.base import BridgeCommand


class Command(BridgeCommand):
    help = (
        "Print your configuration as a bridge.toml, without the prices of the first start. Secrets "
        "are printed as references only."
    )
    example = "manage.py exportconfig > bridge.toml"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--all", action="store_true", help="also print the prices that the first start created"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(export(starter=options["all"]), ending="")
