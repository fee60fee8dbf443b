"""Events that webhooks and mail addresses are notified of: the outbox in the database."""
