"""System checks of the settings, by id."""

from django.test import override_settings

from proxy.checks import check_settings, unsafe_settings
from tests.for_each import for_each


def ids(found):
    return [one.id for one in found]


@for_each(
    ("changed", "expected"),
    [
        ({}, []),
        ({"SECRET_KEY": "short"}, ["proxy.E001"]),
        ({"SECRET_KEY": "ab" * 40}, ["proxy.E001"]),
        ({"SECRET_KEY": ""}, []),  # serve creates one
        ({"SECRET_KEY_FALLBACKS": ["old"]}, ["proxy.E001"]),
        ({"TRUSTED_PROXIES": ["10.0.0.0/8", "::1"]}, []),
        ({"TRUSTED_PROXIES": ["proxy.internal"]}, ["proxy.E002"]),
        ({"ALLOWED_HOSTS": ["a.example", ".b.example", "10.0.0.1", "[::1]", "x_1", "*"]}, []),
        ({"ALLOWED_HOSTS": ["https://a.example"]}, ["proxy.E005"]),
        ({"ALLOWED_HOSTS": ["a.example:8000"]}, ["proxy.E005"]),
        ({"ALLOWED_HOSTS": ["a.example b.example"]}, ["proxy.E005"]),
        ({"HTTPS": True, "CSRF_TRUSTED_ORIGINS": ["http://a.example"]}, ["proxy.E003"]),
    ],
)
def test_a_wrong_setting_has_an_id_and_a_hint(changed, expected):
    with override_settings(**changed):
        found = check_settings()

    assert ids(found) == expected
    assert all(one.hint for one in found)


@for_each(
    ("changed", "host", "expected"),
    [
        ({}, "192.0.2.1", []),
        ({"DEBUG": True}, "127.0.0.1", ["proxy.E010"]),
        ({"ALLOWED_HOSTS": ["*"]}, "127.0.0.1", []),
        ({"ALLOWED_HOSTS": ["*"]}, "localhost", []),
        ({"ALLOWED_HOSTS": ["*"]}, "192.0.2.1", ["proxy.E011"]),
        ({"ALLOWED_HOSTS": ["*"]}, "::", ["proxy.E011"]),
    ],
)
def test_unsafe_settings_depend_on_the_bound_address(changed, host, expected):
    with override_settings(**changed):
        assert ids(unsafe_settings(host)) == expected
