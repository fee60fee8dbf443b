"""Sign-in to the admin through OpenID Connect; enabled by ``BRIDGE_OIDC_ISSUER``."""
