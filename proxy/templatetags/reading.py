"""Template filters for texts of clients and models."""

from django import template
from django.template.defaultfilters import stringfilter

from proxy.ledger.transcripts import turn_summary

register = template.Library()


@register.filter
@stringfilter
def cut_middle(text: str, limit: int) -> str:
    """Return the text with at most ``limit`` characters; a longer one loses its middle."""
    return turn_summary.cut_middle(text, limit)
