"""The admin's form of a gateway key."""

URL = "/admin/proxy/apikey/"


def form(team, **fields):
    """Return the fields of the form; those that are not given are empty."""
    return {
        "team": team.pk,
        "name": "laptop",
        "scopes": ["messages"],
        "models_allowed": "",
        "ip_allow": "",
        **dict.fromkeys(("limits_0", "limits_1", "limits_2", "limits_3"), ""),
        **dict.fromkeys(("options_0", "options_1", "options_2"), ""),
    } | fields
