"""Date and time formats of the admin pages, by language."""
