"""Encryption of what is stored: texts of requests and responses, and upstream secrets."""
