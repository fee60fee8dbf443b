"""Where an upstream may be (K01): the same rule for bridge.toml, the admin and the environment."""

import pytest
from django.core.exceptions import ValidationError

from proxy.models import Upstream
from proxy.models.routes import check_base_url

FINE = (
    "https://api.openai.com/v1",
    "https://user-chosen.example:8443/deep/path",
    "http://127.0.0.1:8000/v1",
    "http://[::1]:8000",
    "http://10.1.2.3:8000/v1",
    "http://192.168.1.7/v1",
    "http://vllm:8000/v1",
    "http://localhost/v1",
)
BAD = (
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


@pytest.mark.parametrize("url", FINE)
def test_it_takes_https_and_http_nearby(url):
    check_base_url(url, allow_http=False)


@pytest.mark.parametrize("url", BAD)
def test_it_refuses_what_could_send_a_key_astray(url):
    with pytest.raises(ValidationError):
        check_base_url(url, allow_http=False)


def test_plain_http_to_a_public_host_has_to_be_asked_for():
    check_base_url("http://llm.example.com/v1", allow_http=True)


@pytest.mark.parametrize(
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
def test_a_form_refuses_what_the_file_would(field, value):
    upstream = Upstream(name="a", dialect="chat", base_url="https://a.example")
    setattr(upstream, field, value)

    with pytest.raises(ValidationError):
        upstream.clean()
