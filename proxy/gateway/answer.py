"""From a route to an answer: targets are tried in order until one of them speaks.

What fails before the client saw a byte moves on to the next target or becomes an HTTP error;
what fails later ends the stream in ``event: error``.
"""

from typing import Final

from translator.dialect import UpstreamError

from .cooldown import cooldown
from .ledger import Exchange
from .outlets import EventOutlet, MessageOutlet
from .passthrough import Passthrough
from .pump import Attempt
from .refusals import UpstreamFailed
from .routes import Route, key_of

OWN_FAULTS: Final = frozenset({400, 413})
"""Failures of the request itself: another target would refuse it too."""


async def answer(entry: Exchange, route: Route) -> None:
    """Answer the client from the first target that can. Raises UpstreamFailed when none can."""
    wishes = entry.wishes
    streaming = entry.request.get("stream") is True
    outlet = EventOutlet(entry, metadata=wishes.metadata) if streaming else MessageOutlet(entry)
    last = route.targets[-1]
    for target in route.targets:
        entry.last_try = target is last
        kind = Passthrough if target.server.dialect_name == "anthropic" else Attempt
        try:
            await kind(target, entry, outlet, wishes).run()
        except UpstreamFailed as exc:
            may_do = _another_may_do(exc.error)
            if may_do:
                cooldown.failed(key_of(target, entry.model), exc.error)
            nobody = entry.consumer.unheard_from is not None
            if outlet.committed or entry.last_try or not may_do or nobody:
                raise
            entry.charge_attempt()
        else:
            if cooldown.troubles and not entry.outcome:  # nothing went wrong in the middle either
                cooldown.answered(key_of(target, entry.model))
            return


def _another_may_do(error: UpstreamError) -> bool:
    return not error.is_refusal and error.status not in OWN_FAULTS
