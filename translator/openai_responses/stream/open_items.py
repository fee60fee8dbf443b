"""End the open text and reasoning of items that their server finishes late."""

from translator.message_stream.message_composer import MessageComposer

from .output_items import ItemState
from .signed_reasoning import sign_reasoning


class OpenItems:
    """The items whose text or reasoning may be open, by their keys."""

    def __init__(self, composer: MessageComposer) -> None:
        self._composer = composer
        self._items: dict[int, ItemState] = {}

    def end_others(self, item: ItemState) -> list[ItemState]:
        """Return the items whose text ends where the content of ``item`` starts.

        Their reasoning ends here, too. Some servers finish all items at the end of the response,
        and the new content must not wait for that. An item ends if its own content is complete or
        if the upstream sends one item after the other.
        """
        ended = [
            other
            for other in self._items.values()
            if other is not item and (item.ends_others or other.has_whole_text)
        ]
        for other in ended:
            del self._items[other.key]
            self._end_reasoning(other)
        self._items[item.key] = item
        return ended

    def remove(self, item: ItemState) -> None:
        self._items.pop(item.key, None)

    def _end_reasoning(self, item: ItemState) -> None:
        """Close the thinking block, except if its signature will contain encrypted reasoning."""
        target = self._composer.context.target
        if item.channel and not target.profile.encrypted_reasoning:
            signature = sign_reasoning(item, {}, target)
            self._composer.close_thinking((item.key, "thinking"), signature)
