"""Failover: try the targets of a route in order until one of them succeeds.

If a target fails before the client has received a byte, the next target is tried; after the last
target, the client gets an HTTP error. A later failure ends the client's stream with ``event:
error``.
"""

from typing import Final

from proxy.gateway.admission.cooldown import cooldown
from proxy.gateway.admission.route_selection import Route, key_of
from proxy.gateway.exchange.request_context import RequestContext
from proxy.gateway.http.errors import UpstreamFailed
from proxy.gateway.snapshot.targets import Target
from translator.dialect import UpstreamError

from .attempt import Attempt
from .passthrough import Passthrough
from .response_writers import JsonResponseWriter, StreamingResponseWriter
from .searching_attempt import SearchingAttempt, makes_searches

OWN_FAULTS: Final = frozenset({400, 413})
"""Upstream statuses that the request itself causes, so another target would reject it too."""


async def try_targets(entry: RequestContext, route: Route) -> None:
    """Send the client the response of the first target that succeeds.

    Raises UpstreamFailed if all fail, or if a failure cannot be retried at another target.
    """
    options = entry.request.options
    streaming = entry.request.streaming
    writer = (
        StreamingResponseWriter(entry, metadata=options.metadata)
        if streaming
        else JsonResponseWriter(entry)
    )
    last = route.targets[-1]
    for target in route.targets:
        entry.attempts.is_last_target = target is last
        try:
            await _attempt_class(target, entry)(target, entry, writer, options).run()
        except UpstreamFailed as exc:
            retryable = _is_retryable_elsewhere(exc.error)
            if retryable and not exc.error.exceeds_quota:
                cooldown.record_failure(key_of(target, entry.request.model), exc.error)
            client_gone = entry.response.bytes_at_disconnect is not None
            if writer.committed or entry.attempts.is_last_target or not retryable or client_gone:
                raise
            entry.charge_attempt()
        else:
            # The response was successful, unless the stream failed in the middle.
            if cooldown.streaks and not entry.ending.outcome:
                cooldown.record_success(key_of(target, entry.request.model))
            return


def _attempt_class(target: Target, entry: RequestContext) -> type[Attempt]:
    if target.server.dialect_name == "anthropic":
        return Passthrough
    return SearchingAttempt if makes_searches(target, entry) else Attempt


def _is_retryable_elsewhere(error: UpstreamError) -> bool:
    if error.exceeds_quota:
        return True
    return not error.is_refusal and error.status not in OWN_FAULTS
