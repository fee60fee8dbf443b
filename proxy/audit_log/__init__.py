"""Write the audit log: ``record`` adds an entry, ``acting_as`` names who acts."""

from proxy.models.audit import Action

from .actor import Actor, acting_as, actor_of_command, current_actor, current_request
from .record import record

__all__ = [
    "Action",
    "Actor",
    "acting_as",
    "actor_of_command",
    "current_actor",
    "current_request",
    "record",
]
