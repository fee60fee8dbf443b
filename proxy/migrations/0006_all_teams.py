"""Give the group ``team:*`` to each user who saw all teams because of having no team's group.

Before, a role without a group ``team:<name>`` counted in all teams; now it counts in none.
"""

from typing import Any

from django.conf import settings
from django.db import migrations

ALL_TEAMS = "team:*"
OF_MEMBERS = {"view_own_exchange", "view_transcript", "view_apikey", "view_budget"}
"""The permissions that need no team."""


def grant_all_teams(apps: Any, schema_editor: Any) -> None:
    using = schema_editor.connection.alias
    users = apps.get_model("auth", "User").objects.using(using)
    group = apps.get_model("auth", "Group").objects.using(using).get_or_create(name=ALL_TEAMS)[0]
    for user in users.filter(is_superuser=False).exclude(groups__name__startswith="team:"):
        held = set(user.user_permissions.values_list("codename", flat=True))
        held.update(user.groups.values_list("permissions__codename", flat=True))
        if held - OF_MEMBERS - {None}:
            user.groups.add(group)


def remove_group(apps: Any, schema_editor: Any) -> None:
    """Let a user without a group of a team see all teams again."""
    groups = apps.get_model("auth", "Group").objects.using(schema_editor.connection.alias)
    groups.filter(name=ALL_TEAMS).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("proxy", "0005_idempotent_writes"),
        ("auth", "0012_alter_user_first_name_max_length"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [migrations.RunPython(grant_all_teams, remove_group)]
