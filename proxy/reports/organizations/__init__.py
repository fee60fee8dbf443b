"""Anthropic's Admin API on our books: a collector works by changing its base URL.

Organization = this install, workspace = team (``wrkspc_<name>``), account = user
(``user_<name>``), api_key = gateway key (``apikey_<number>``). Models go by the name that the
client asked for. Source: docs.anthropic.com, "Usage and Cost API"; the SDK's typed resources.
"""
