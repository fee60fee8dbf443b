"""Give each team and user an id in the ledger: for those that exist, the name.

So the rows, sums, journals, archives and links of the hash chain that refer to them stay as they
are, and the migration takes as long for one request as for millions of them.
"""

from typing import Any

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import F

import proxy.models.ledger_names


def give_names_as_ids(apps: Any, schema_editor: Any) -> None:
    using = schema_editor.connection.alias
    apps.get_model("proxy", "Team").objects.using(using).update(ledger_id=F("name"))
    persons = apps.get_model("proxy", "Person")
    users = apps.get_model("auth", "User").objects.using(using)
    rows = users.order_by("pk").values_list("pk", "username").iterator()
    persons.objects.using(using).bulk_create(
        (persons(id=name, user_id=pk) for pk, name in rows), batch_size=500
    )


def seal_head(apps: Any, schema_editor: Any) -> None:
    """Record the end of the hash chain up to which rows may have these names only as names."""
    using = schema_editor.connection.alias
    head = apps.get_model("proxy", "LedgerHead").objects.using(using).filter(pk=1).first()
    if head is not None and head.sequence:
        digest = bytes(head.digest).hex()
        apps.get_model("proxy", "AuditEntry").objects.using(using).create(
            action="run",
            actor_kind="system",
            detail="gave each team and user the present name as its id in the ledger, "
            f"at link {head.sequence} of the hash chain with the digest {digest}",
        )


class Migration(migrations.Migration):
    dependencies = [
        ("proxy", "0007_restored_months"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Person",
            fields=[
                (
                    "id",
                    models.CharField(
                        default=proxy.models.ledger_names.new_person_id,
                        editable=False,
                        max_length=150,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="person",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="FormerName",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("team", "Team"), ("key", "Key"), ("user", "User")], max_length=4
                    ),
                ),
                ("ident", models.CharField(max_length=150)),
                ("name", models.CharField(max_length=150)),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["kind", "name"], name="formername_name")],
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "ident"), name="formername_once")
                ],
            },
        ),
        migrations.AddField(
            model_name="team",
            name="ledger_id",
            field=models.CharField(editable=False, max_length=64, null=True),
        ),
        migrations.RunPython(give_names_as_ids, migrations.RunPython.noop),
        migrations.RunPython(seal_head, migrations.RunPython.noop),
        migrations.AlterField(
            model_name="team",
            name="ledger_id",
            field=models.CharField(
                default=proxy.models.ledger_names.new_team_id,
                editable=False,
                max_length=64,
                unique=True,
            ),
        ),
        migrations.AlterField(
            model_name="exchange",
            name="key_name",
            field=models.CharField(blank=True, max_length=64),
        ),
    ]
