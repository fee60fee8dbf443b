"""Failover: try the targets of a route in order until one of them succeeds.

If a target fails before the client has received a byte, the next target is tried; after the last
target, the client gets an HTTP error. A later failure ends the client's stream with ``event:
error``.
"""

from typing import Final

from proxy.gateway.admission.cooldown import cooldown
from proxy.gateway.admission.route_selection import Route, key_of
from proxy.gateway.http.errors import UpstreamFailed
from proxy.gateway.request.request import Request
from proxy.gateway.snapshot.targets import Target
from proxy.gateway.web_search import further_calls

from .attempt import Attempt
from .passthrough import Passthrough
from .response_writers import ResponseWriter, StreamingResponseWriter
from .searching_attempt import SearchingAttempt

OWN_FAULTS: Final = frozenset({400, 413})
"""Upstream statuses that the request itself causes, so another target would reject it too."""


async def try_targets(request: Request, route: Route) -> None:
    """Send the client the response of the first target that succeeds.

    Raises UpstreamFailed if all fail, or if a failure cannot be retried at another target.
    """
    writer = StreamingResponseWriter(request) if request.streaming else ResponseWriter(request)
    last = route.targets[-1]
    for target in route.targets:
        request.attempts.is_last_target = target is last
        try:
            await _attempt_class(target, request)(target, request, writer).run()
        except UpstreamFailed as exc:
            error = exc.error
            retryable = error.exceeds_quota or not (error.is_refusal or error.status in OWN_FAULTS)
            if retryable and not error.exceeds_quota:
                cooldown.record_failure(key_of(target, request.model), error)
            client_gone = request.response.bytes_at_disconnect is not None
            if writer.committed or request.attempts.is_last_target or not retryable or client_gone:
                raise
            request.charge_attempt()
        else:
            # The response was successful, unless the stream failed in the middle.
            if cooldown.streaks and not request.outcome:
                cooldown.record_success(key_of(target, request.model))
            return


def _attempt_class(target: Target, request: Request) -> type[Attempt]:
    server = target.server
    if server.dialect_name == "anthropic":
        return Passthrough
    if server.dialect_name == "responses" and server.profile.web_search:
        return Attempt  # the upstream searches itself
    return SearchingAttempt if further_calls(request.fields) else Attempt
