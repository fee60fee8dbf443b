"""Anthropic's Admin API, with the data of this gateway's ledger.

A client of Anthropic's API, such as a cost collector, works after changing its base URL. The
organization is this installation, a workspace is a team (``wrkspc_<name>``), an account is a user
(``user_<name>``), and an API key is a gateway key (``apikey_<number>``). Models have the name that
the client requested. Source: docs.anthropic.com, "Usage and Cost API"; the SDK's typed resources.
"""
