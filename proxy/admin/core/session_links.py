"""The URL of a session (a client's conversation) in the admin, and its shortened id."""

from urllib.parse import urlencode

from django.urls import reverse


def session_url(session_id: str) -> str:
    """Return the URL of a session. The id is a query parameter, since it may contain a slash."""
    return f"{reverse('admin:proxy_session')}?{urlencode({'id': session_id})}"


def short_id(session: str) -> str:
    """Return the beginning of a session id, which is enough to distinguish sessions on a page."""
    return session if len(session) <= 13 else f"{session[:12]}…"
