"""HTTP to the Messages API or to Django, WebSockets to the live view; start and stop, too."""

import os
import warnings
from typing import Any

import django
from channels.routing import ProtocolTypeRouter

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")

django.setup()

# They import models, which are there only now.
from proxy.gateway.lifespan import lifespan  # noqa: E402
from proxy.ondemand import OnDemand  # noqa: E402
from proxy.pages import BoundedPages  # noqa: E402
from proxy.routing import Router, websockets  # noqa: E402

# Files of the admin go out piece by piece, which Django remarks on in each process; they are small.
warnings.filterwarnings("ignore", "StreamingHttpResponse must consume synchronous iterators")


def pages() -> Any:
    """Django's side: admin, reports, sign-in."""
    from django.core.handlers.asgi import ASGIHandler  # noqa: PLC0415 - on demand
    from django.urls import resolve  # noqa: PLC0415 - on demand

    handler = ASGIHandler()
    resolve("/admin/")  # imports every page, which the handler would do in the event loop
    return handler


application = ProtocolTypeRouter(
    {"http": Router(BoundedPages(OnDemand(pages))), "websocket": websockets, "lifespan": lifespan}
)
