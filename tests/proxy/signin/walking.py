"""To the provider and back, as a browser goes."""

from django.test import Client


def signed_in(provider, client=None, begin="/sign-in/"):
    """Go there and back, as a browser does; returns the client and the last answer."""
    client = client or Client()
    left = client.get(begin)
    assert left.status_code == 302, left.content
    return client, client.get(provider.browse(left["Location"]))


def refused(client, answer):
    """Back at the sign-in page, nobody; returns what the page says."""
    assert (answer.status_code, answer["Location"]) == (302, "/admin/login/")
    assert "_auth_user_id" not in client.session
    page = client.get("/admin/login/").content.decode()
    return " ".join(page.split())
