"""Pause an upstream or a model on all nodes, or resume it."""

from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.utils.timezone import now

from proxy.decode_errors import did_you_mean
from proxy.management.base import FINDING, BridgeCommand
from proxy.models import Pause, Upstream
from proxy.secrets import ConfigError


class Command(BridgeCommand):
    help = (
        "Pause an upstream, a model or both on all nodes, within seconds: clients get a 529 with "
        "the message if no other target is left. --resume ends it; exit 1 if nothing was paused."
    )
    example = 'manage.py pause --upstream openai --minutes 30 --message "OpenAI is down"'

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--upstream", default="", help="name of the upstream (default: all)")
        parser.add_argument("--model", default="", help="name or glob of the model (default: all)")
        parser.add_argument("--message", default="", help="the error message that clients get")
        parser.add_argument(
            "--minutes", type=int, help="minutes until the pause ends (default: until --resume)"
        )
        parser.add_argument(
            "--resume", action="store_true", help="end the pause of this upstream and model now"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        upstream = Upstream.objects.filter(name=options["upstream"]).first()
        if options["upstream"] and upstream is None:
            hint = did_you_mean(
                options["upstream"], Upstream.objects.values_list("name", flat=True)
            )
            raise ConfigError(f"no upstream {options['upstream']!r}{hint}")
        if options["resume"]:
            self._resume(upstream, options["model"])
            return
        minutes = options["minutes"]
        if not options["message"] or (minutes is not None and not 0 < minutes <= 10**6):
            raise ConfigError("give --message, and --minutes above 0")
        pause = Pause(
            upstream=upstream,
            model=options["model"],
            message=options["message"],
            ends=now() + timedelta(minutes=minutes) if minutes else None,
        )
        try:
            pause.full_clean()
        except ValidationError as error:
            raise ConfigError(" ".join(error.messages)) from None
        pause.save()
        self.stdout.write(f"{pause} is paused")

    def _resume(self, upstream: Upstream | None, model: str) -> None:
        named = f"{model or 'every model'} at {upstream or 'every upstream'}"
        if not Pause.objects.filter(upstream=upstream, model=model).delete()[0]:
            raise CommandError(f"there is no pause of {named}", returncode=FINDING)
        self.stdout.write(f"{named} is resumed")
