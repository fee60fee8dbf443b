"""Web searches that the gateway makes for upstreams that have no search of their own.

The model is offered a function in place of Anthropic's server tool. The client sees Anthropic's
blocks: ``server_tool_use`` and ``web_search_tool_result``.
"""
