"""The ASGI application: HTTP for the Messages API and Django, WebSockets, lifespan events."""

import os
import warnings
from typing import Any

import django
from channels.routing import ProtocolTypeRouter

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")

django.setup()

# These modules import models, which requires django.setup() first.
from proxy.gateway.endpoints.lifespan import lifespan  # noqa: E402
from proxy.routing import Router, websockets  # noqa: E402
from proxy.server.django_limits import BoundedPages  # noqa: E402
from proxy.server.lazy_asgi import LazyApplication  # noqa: E402

# WhiteNoise streams static files synchronously, which Django warns about. The files are small.
warnings.filterwarnings("ignore", "StreamingHttpResponse must consume synchronous iterators")


def load_django() -> Any:
    """Return Django's ASGI handler for admin, reports and sign-in."""
    from django.core.handlers.asgi import ASGIHandler  # noqa: PLC0415 - imported for the first page
    from django.urls import resolve  # noqa: PLC0415 - imported for the first page

    handler = ASGIHandler()
    # Import all admin pages now, because the handler would import them in the event loop.
    resolve("/admin/")
    return handler


application = ProtocolTypeRouter(
    {
        "http": Router(BoundedPages(LazyApplication(load_django))),
        "websocket": websockets,
        "lifespan": lifespan,
    }
)
