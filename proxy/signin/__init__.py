"""Sign-in to the admin by OpenID Connect; off while ``BRIDGE_OIDC_ISSUER`` is unset."""
