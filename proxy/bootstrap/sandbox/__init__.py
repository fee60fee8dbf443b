"""The sandbox upstream: a scripted OpenAI server on loopback, for a first try without an account.

The sandbox is not a model, and each of its responses states this. The module ``script`` chooses the
response, ``responses`` and ``chat`` encode it for their OpenAI API, ``server`` listens on a port.
"""
