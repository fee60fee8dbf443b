"""The search of transcripts over REST."""

from typing import Any

from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.search.query import MAX_QUERY, InvalidQuery
from proxy.ledger.search.search import SearchTooSlow
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.exception_handler import QueryTooSlow
from proxy.reports.core.expansion import SESSION_PATHS, expand_parameter, expand_rows
from proxy.reports.core.permissions import MayReadTranscripts
from proxy.reports.core.query_parameters import JsonOnlyParameters, Number, invalid_range
from proxy.reports.core.references import Reference
from proxy.reports.core.rendering import decode_cursor, encode_cursor, paged
from proxy.reports.core.time_ranges import InvalidTimeRange, load_zone, parse_instant
from proxy.transcript_search import Filters, SearchSwitchedOff, result_row, search_transcripts

from .views import READING_REASON


class SearchParameters(JsonOnlyParameters):
    q = serializers.CharField(
        max_length=MAX_QUERY,
        trim_whitespace=False,
        help_text="Words, paths and phrases in quotation marks; a text must contain all of them.",
    )
    team = serializers.CharField(max_length=200, default="", help_text="Only this team.")
    key = serializers.CharField(max_length=200, default="", help_text="Only keys with this name.")
    user = serializers.CharField(max_length=200, default="", help_text="Only this user.")
    model = serializers.CharField(
        max_length=200, default="", help_text="Only this model, as requested or of the upstream."
    )
    to = serializers.CharField(max_length=40, default="", help_text="End, exclusive.")
    tz = serializers.CharField(max_length=64, default="UTC", help_text="IANA time zone.")
    limit = Number(min_value=1, max_value=100, default=20)
    expand = expand_parameter(SESSION_PATHS)
    page = serializers.CharField(
        max_length=500, default="", help_text="The next_page of the previous response."
    )

    def get_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().get_fields()
        fields["from"] = serializers.CharField(  # "from" is a Python keyword
            max_length=40, default="", help_text="Start, inclusive: a date or RFC 3339."
        )
        return fields

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        try:
            zone = load_zone(attrs["tz"])
            bounds = [
                parse_instant(attrs[name], zone, name) if attrs[name] else None
                for name in ("from", "to")
            ]
        except InvalidTimeRange as error:
            raise invalid_range(error) from None
        names = ("team", "key", "user", "model")
        attrs["filters"] = Filters(
            since=bounds[0], until=bounds[1], **{name: attrs[name] for name in names}
        )
        attrs["below"] = decode_cursor(attrs["page"], "search") if attrs["page"] else None
        return attrs


class FragmentShape(serializers.Serializer[Any]):
    text = serializers.CharField()
    matched = serializers.BooleanField(help_text="Whether this text is one of the phrases.")


class SearchResult(serializers.Serializer[Any]):
    request_id = serializers.CharField(help_text="The latest visible request that sent the text.")
    created_at = serializers.CharField()
    team = Reference("team")
    key = Reference("key")
    user = Reference("user", allow_null=True)
    session_id = serializers.CharField(allow_null=True)
    model_requested = serializers.CharField()
    model_upstream = serializers.CharField(allow_null=True)
    kind = serializers.CharField(
        help_text="user, assistant, thinking, tool input, tool result, system, tools or body"
    )
    passage = FragmentShape(many=True, help_text="The text around the first match, in pieces.")
    cut_before = serializers.BooleanField(help_text="Whether text before the passage is left out.")
    cut_after = serializers.BooleanField(help_text="Whether text after the passage is left out.")


class SearchPage(serializers.Serializer[Any]):
    data = SearchResult(many=True)  # type: ignore[assignment]  # DRF removes fields from the class
    has_more = serializers.BooleanField(
        help_text="Whether older texts are left to search; a page may have no results and be true."
    )
    next_page = serializers.CharField(allow_null=True)


class SearchView(ReportView):
    """Search prompts, responses, tool inputs and tool results, newest first."""

    permission_classes = (MayReadTranscripts,)
    parameters = SearchParameters

    @extend_schema(parameters=[READING_REASON], responses=SearchPage)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        try:
            page = search_transcripts(
                self.reader,
                query["q"],
                query["filters"],
                limit=query["limit"],
                below=query["below"],
            )
        except SearchSwitchedOff as error:
            raise Http404(str(error)) from None
        except InvalidQuery as error:
            raise ValidationError({"q": str(error)}) from None
        except SearchTooSlow:
            raise QueryTooSlow from None
        following = page.next_position
        rows = expand_rows(request, map(result_row, page.results), query.get("expand", ()))
        next_page = encode_cursor(following, "search") if following is not None else None
        return Response(paged(rows, next_page))
