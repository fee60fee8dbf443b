"""How dates are written in pages, by language."""
