"""Allowed base URLs of upstreams (K01), the same for bridge.toml, admin and environment."""

import pytest
from django.core.exceptions import ValidationError

from proxy.models import Upstream
from proxy.models.setup.upstreams import check_base_url
from tests.for_each import for_each

VALID_URLS = (
    "https://api.openai.com/v1",
    "https://user-chosen.example:8443/deep/path",
    "http://127.0.0.1:8000/v1",
    "http://[::1]:8000",
    "http://10.1.2.3:8000/v1",
    "http://192.168.1.7/v1",
    "http://vllm:8000/v1",
    "http://localhost/v1",
)
INVALID_URLS = (
    "",
    "api.openai.com",
    "ftp://api.openai.com",
    "file:///etc/passwd",
    "https://",
    "https://u:p@api.openai.com",
    "https://key@api.openai.com",
    "https://api.openai.com/v1?key=1",
    "https://api.openai.com/v1#x",
    "https://api.openai.com:port/v1",
    "https://[::1/v1",
    " https://api.openai.com",
    "http://api.openai.com/v1",
    "http://8.8.8.8/v1",
)


@for_each("url", VALID_URLS)
def test_https_and_http_to_private_hosts_are_accepted(url):
    check_base_url(url, allow_http=False)


@for_each("url", INVALID_URLS)
def test_an_unsafe_url_is_rejected(url):
    with pytest.raises(ValidationError):
        check_base_url(url, allow_http=False)


def test_http_to_a_public_host_needs_allow_http():
    check_base_url("http://llm.example.com/v1", allow_http=True)


@for_each(
    ("field", "value"),
    [
        ("timeouts", {"idle": 5}),
        ("timeouts", {"idle_s": 0}),
        ("timeouts", {"idle_s": True}),
        ("capabilities", {"no_such": True}),
        ("capabilities", {"images": "yes"}),
        ("profile", "gopher"),
        ("secret", {"value": "sk-inline"}),
        ("secret", {"env": ""}),
    ],
)
def test_a_form_rejects_the_same_values_as_the_file(field, value):
    upstream = Upstream(name="a", dialect="chat", base_url="https://a.example")
    setattr(upstream, field, value)

    with pytest.raises(ValidationError):
        upstream.full_clean(validate_unique=False)
