"""The sign-in flow of a browser."""

from django.test import Client


def sign_in(provider, client=None, begin="/sign-in/"):
    """Sign in through the provider; return the client and the last response."""
    client = client or Client()
    redirect = client.get(begin)
    assert redirect.status_code == 302, redirect.content
    return client, client.get(provider.browse(redirect["Location"]))


def sign_in_refusal(client, response):
    """Assert that the client is not signed in; return the text of the sign-in page."""
    assert (response.status_code, response["Location"]) == (302, "/admin/login/")
    assert "_auth_user_id" not in client.session
    page = client.get("/admin/login/").content.decode()
    return " ".join(page.split())
