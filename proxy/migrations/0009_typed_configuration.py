"""Check the values of the configuration, and let the database check their numbers from now on.

A row with a value that its column does not allow stops the migration, which names all such rows.
"""

from collections.abc import Iterator
from typing import Any

import django.core.validators
from django.apps import apps as current
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management import CommandError
from django.db import migrations, models

import proxy.models.setup.columns
import proxy.models.setup.webhooks

NUMBERS = {
    "Team": ("retention_days",),
    "Budget": ("usd",),
    "Price": ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h"),
}
TITLES = {"Budget": "pk", "Price": "model", "RouteTarget": "route__model"}
"""What names a row, if it is not the column ``name``."""
UNREADABLE = object()
WRONG_TYPE = "the stored value has another type"
MAX_NAMED = 100
STOPPED = (
    "rows with values that are not allowed: {count}. Earlier versions started in spite of them. "
    "Correct or delete each one by SQL (Team: table proxy_team), and start again:\n  {values}"
)


def check_values(apps: Any, schema_editor: Any) -> None:
    using, wrong = schema_editor.connection.alias, []
    for name in ("Team", "ApiKey", "Upstream", "RouteTarget", "Price", "Budget", "Webhook"):
        rows = apps.get_model("proxy", name).objects.using(using).order_by("pk")
        stored = {one.name for one in rows.model._meta.concrete_fields}
        for column in current.get_model("proxy", name)._meta.concrete_fields:
            is_typed = isinstance(column, proxy.models.setup.columns.TypedJSON)
            if column.name in stored and (is_typed or column.name in NUMBERS.get(name, ())):
                wrong += wrong_values(rows, name, column)
    if wrong:
        raise CommandError(STOPPED.format(count=len(wrong), values="\n  ".join(wrong[:MAX_NAMED])))


def wrong_values(rows: Any, name: str, column: Any) -> Iterator[str]:
    """Yield each value of the column that it does not allow: its row, and why."""
    try:
        values = dict(rows.values_list("pk", column.name))
    except Exception:  # noqa: BLE001 - each converter raises its own errors
        values = {pk: value_of(rows, pk, column) for pk in rows.values_list("pk", flat=True)}
    for pk, value in values.items():
        why = WRONG_TYPE
        try:
            if value is not UNREADABLE:
                column.run_validators(value)
                continue
        except ValidationError as error:
            why = " ".join(error.messages)
        except Exception:  # noqa: BLE001, S110 - a number that is text, or no number (NaN)
            pass
        title = rows.filter(pk=pk).values_list(TITLES.get(name, "name"), flat=True).get()
        yield f"{name} {title!s} (id {pk}): {column.name}: {why}"


def value_of(rows: Any, pk: Any, column: Any) -> Any:
    try:
        return rows.filter(pk=pk).values_list(column.name, flat=True).get()
    except Exception:  # noqa: BLE001 - as above
        return UNREADABLE


class Migration(migrations.Migration):
    dependencies = [
        ("proxy", "0008_identity_by_id"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunPython(check_values, migrations.RunPython.noop),
        migrations.AlterField(
            model_name='apikey',
            name='ip_allow',
            field=models.JSONField(blank=True, default=list, help_text='Allowed client networks such as 10.0.0.0/8; empty: all.', verbose_name='networks'),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='limits',
            field=models.JSONField(blank=True, default=dict, help_text='In addition to those of the team; empty: none.'),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='models_allowed',
            field=models.JSONField(blank=True, default=list, help_text='Names or globs such as claude-*; empty: all models of the team.', verbose_name='allowed models'),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='options',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AlterField(
            model_name='budget',
            name='emails',
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AlterField(
            model_name='budget',
            name='hard',
            field=models.BooleanField(default=True, help_text='Off: only a warning; requests continue.', verbose_name='reject requests when spent'),
        ),
        migrations.AlterField(
            model_name='budget',
            name='models_covered',
            field=models.JSONField(blank=True, default=list, help_text='Names or globs of the models whose requests count; empty: all models.', verbose_name='models'),
        ),
        migrations.AlterField(
            model_name='budget',
            name='usd',
            field=models.DecimalField(decimal_places=6, max_digits=14, validators=[django.core.validators.MinValueValidator(0)], verbose_name='limit, $'),
        ),
        migrations.AlterField(
            model_name='budget',
            name='zone',
            field=models.CharField(default='UTC', help_text='IANA name, such as Europe/Berlin: a period starts at midnight there.', max_length=64, validators=[proxy.models.setup.columns.check_zone], verbose_name='time zone'),
        ),
        migrations.AlterField(
            model_name='routetarget',
            name='when',
            field=models.JSONField(blank=True, default=dict, help_text='The requests for which the target is used; empty: all.', verbose_name='takes only requests with'),
        ),
        migrations.AlterField(
            model_name='team',
            name='limits',
            field=models.JSONField(blank=True, default=dict, help_text='For all its keys together; empty: no limit.'),
        ),
        migrations.AlterField(
            model_name='team',
            name='member_keys',
            field=models.JSONField(blank=True, default=dict, help_text='Limits of the keys that members make; without a count, they make none.', verbose_name='keys of members'),
        ),
        migrations.AlterField(
            model_name='team',
            name='models_allowed',
            field=models.JSONField(blank=True, default=list, help_text='Names or globs such as claude-*; empty: all models with a route.', verbose_name='allowed models'),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='allow_http',
            field=models.BooleanField(default=False, help_text='Also for a public host: the secret is sent unencrypted.', verbose_name='allow HTTP'),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='api_version',
            field=models.CharField(blank=True, default='', help_text='Of Azure OpenAI: 2024-10-21. Empty for a base URL with /openai/v1.', max_length=32, validators=[django.core.validators.RegexValidator('^(20\\d\\d-\\d\\d-\\d\\d(-preview)?|preview|latest)\\Z', 'it is not an api-version such as 2024-10-21')], verbose_name='API version'),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='base_url',
            field=models.CharField(help_text='The gateway appends /responses or /chat/completions: https://api.openai.com/v1. For Anthropic the host without /v1.', max_length=500, verbose_name='base URL'),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='capabilities',
            field=models.JSONField(blank=True, default=dict, help_text='Only where this server differs from its profile.'),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='connection',
            field=models.JSONField(blank=True, default=dict, help_text='Proxy, trusted CAs, client certificate and headers, with the names of bridge.toml, one per line: proxy = http://proxy:3128, proxy_auth.env = PROXY_LOGIN, ca_file = /etc/ssl/company.pem, headers.x-team = platform.'),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='connection_reuse',
            field=models.CharField(choices=[('shared', 'Of all keys'), ('key', 'Of the same key'), ('never', 'None: a new connection for each request')], default='shared', help_text='Connections per key limit a response that the upstream sends without a request to that key, but need more connections.', max_length=8),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='credentials',
            field=models.JSONField(blank=True, default=dict, help_text='Instead of a key, how to fetch one that expires, one setting per line: kind = aws, kind = google, or kind = azure and method = managed_identity.'),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='extra_body',
            field=models.JSONField(blank=True, default=dict, help_text='Fields to add to every translated request, one per line: top_k = 20, or chat_template_kwargs.enable_thinking = false. model and stream are not allowed.'),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='model_capabilities',
            field=models.JSONField(blank=True, default=dict, help_text='Only where single models differ, by name or glob: {"gpt-4o*": {"images": false}}. A longer name has precedence.'),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='profile',
            field=models.CharField(default='generic', help_text='The kind of server; it decides which fields and values a request may have.', max_length=32),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='timeouts',
            field=models.JSONField(blank=True, default=dict, help_text='Empty: the default of the gateway.'),
        ),
        migrations.AlterField(
            model_name='upstream',
            name='when_client_leaves',
            field=models.CharField(choices=[('abort', 'Close the connection at once'), ('drain', 'Read it to its end')], default='abort', help_text='Read the response to its end if the server bills all of it: then the row has the billed tokens, not the delivered ones.', max_length=8),
        ),
        migrations.AlterField(
            model_name='webhook',
            name='url',
            field=models.CharField(max_length=500, validators=[proxy.models.setup.webhooks.check_url]),
        ),
        migrations.AddConstraint(
            model_name='budget',
            constraint=models.CheckConstraint(condition=models.Q(('usd__gte', 0)), name='budget_usd'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('input__gte', 0), ('input', None), _connector='OR'), name='price_input'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('output__gte', 0), ('output', None), _connector='OR'), name='price_output'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('cache_read__gte', 0), ('cache_read', None), _connector='OR'), name='price_cache_read'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('cache_write_5m__gte', 0), ('cache_write_5m', None), _connector='OR'), name='price_cache_write_5m'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('cache_write_1h__gte', 0), ('cache_write_1h', None), _connector='OR'), name='price_cache_write_1h'),
        ),
        migrations.AddConstraint(
            model_name='team',
            constraint=models.CheckConstraint(condition=models.Q(('retention_days__gte', 1)), name='team_retention_days'),
        ),
    ]
