"""Tool calls as Chat Completions servers stream them, sorted into one block each.

Pieces of a call should share an ``index`` and the first should carry id and name. Servers leave
out the index, always say 0, repeat or forget ids, split names and send arguments as objects; the
rules here find the call that a piece belongs to and lose none.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from translator.anthropic.composer import MessageComposer
from translator.arguments import compact_json, parse_arguments
from translator.names import client_call_id
from translator.notes import Note

from .reasoning import sealed_extra

UNCARRIED: Final = Note("content", "dropped", "a call's thought signature: nobody can carry it")

TWICE: Final = Note("content", "ignored", "a call was told once more, with its id and arguments")

ARGUMENTS: Final = ("parameters", "input")
"""What some call the arguments: Llama's own format, and proxies in front of Anthropic."""

LEGACY: Final = "function_call"
"""The index of the one call of the older API."""

EMPTY: Final = "{}"
"""How Bedrock opens the arguments of a call, before the real ones come piece by piece.

https://github.com/openai/openai-agents-js/pull/712
"""


@dataclass(slots=True, eq=False)
class Call:
    """One tool call, from its first piece on."""

    ordinal: int
    index: Any = None  # the server's; only a key, may be missing or wrong
    id: str = ""
    name: str = ""
    held: list[str] = field(default_factory=list)  # arguments that came before the start
    started: bool = False
    extra: Any = None  # what must come back with it: Gemini's ``thought_signature``
    renamed: bool = False  # pieces of it came under new ids

    @property
    def key(self) -> tuple[str, int]:
        return ("call", self.ordinal)


class ToolCalls:
    """Routes pieces to calls; a call starts with its first arguments, when its name is whole."""

    def __init__(self, composer: MessageComposer, before: Callable[[], None]) -> None:
        """``before`` ends whatever else speaks; it is called when a call starts."""
        self.open: list[Call] = []  # in the order heard, until all of them end
        self.said = 0  # characters of arguments, for estimates
        self.seed = ""  # the message's id; ids that the server left out are derived from it
        self._composer = composer
        self._before = before
        self._cumulative = composer.context.target.profile.cumulative_arguments
        self._by_id: dict[str, Call] = {}
        self._by_index: dict[Any, Call] = {}
        self._ids = set(composer.context.call_ids)  # that the client has
        self._told: dict[str, None] = {}  # the server's ids of calls that have ended
        self.cut = False  # a call ended before its arguments did
        self._unfinished = False  # something waits behind a call whose arguments are incomplete

    def feed(self, piece: dict[str, Any], *, whole: bool) -> None:
        """Take one element of ``tool_calls``; ``whole``: its arguments are all there are."""
        function = piece.get("function")
        function = function if isinstance(function, dict) else piece  # some leave the wrapper out
        index, id_, name = piece.get("index"), _text(piece.get("id")), _text(function.get("name"))
        arguments, dumped = function.get("arguments"), False
        if arguments is None:
            arguments = next((function[word] for word in ARGUMENTS if word in function), None)
        if arguments is not None and not isinstance(arguments, str):
            arguments, dumped = compact_json(arguments), True
        if id_ and name and arguments and not whole and self._is_told(id_, index, arguments):
            self._note(TWICE)
            return
        # Of a message that came whole each element is a call of its own, whatever ids it repeats.
        call = None if whole else self._find(index, id_, name, arguments or "")
        if call is None:
            self.step_aside()
            call = Call(len(self.open), index)
            self.open.append(call)
        self._learn(call, index, id_, name)
        call.extra = call.extra or piece.get("extra_content")
        if arguments:
            self._arguments(call, arguments, whole=whole or dumped)

    def legacy(self, function: Any, *, whole: bool) -> None:
        """The one call as the older API tells it; nothing where it is told anew beside."""
        if all(call.index == LEGACY for call in self.open):
            self.feed({"index": LEGACY, "function": function}, whole=whole)

    def heard(self, piece: Any) -> bool:
        """Whether a whole call was told before; without an id: whether any was."""
        id_ = _text(piece.get("id")) if isinstance(piece, dict) else ""
        return id_ in self._by_id or id_ in self._told if id_ else self._composer.tool_calls > 0

    def step_aside(self) -> None:
        """Let something else speak: start what waited for its name, end what is complete."""
        for call in self.open:
            self._start(call)
            block = self._composer.block(call.key)
            if block is None or block.closed:
                continue
            if _complete(block.said):
                self._composer.close(call.key)
            else:
                self._unfinished = True

    def finish(self) -> None:
        """Start and close every call; one that never got a name is dropped."""
        self.step_aside()
        self.cut = not self.whole
        for call in self.open:
            if not call.started:
                self._composer.notes.append(
                    Note("content", "dropped", "a tool call that never got a name")
                )
            self._composer.close(call.key)
        self.open.clear()
        self._told |= dict.fromkeys(self._by_id)
        self._by_id.clear()
        self._by_index.clear()

    @property
    def whole(self) -> bool:
        """Whether the arguments of every open call are complete JSON (or there are none)."""
        blocks = [self._composer.block(call.key) for call in self.open]
        return all(b is None or b.closed or not b.said or _complete(b.said) for b in blocks)

    def _is_told(self, id_: str, index: Any, arguments: str) -> bool:
        """Whether a call of this id has just these arguments, all of them."""
        known = self._by_id.get(id_)
        if known is None or self._cumulative or index not in (None, known.index):
            return False
        return arguments == self._said(known) and _complete(arguments)

    def _find(self, index: Any, id_: str, name: str, arguments: str) -> Call | None:
        """The call that a piece belongs to; None: it begins a new one."""
        known = self._by_id.get(id_) if id_ else None
        if known is not None and index in (None, known.index):
            return None if name and self._repeats(known, arguments) else known
        if index is not None:
            known = self._by_index.get(index)
        else:
            known = self.open[-1] if self.open and not id_ else None
        if known is None:
            return None
        if id_ and known.id and id_ != known.id:
            # A new id is a new call, unless the server makes one up for each piece.
            return known if self._goes_on(known, name, arguments) else None
        return None if self._begins_anew(known, index, name, arguments) else known

    def _goes_on(self, known: Call, name: str, arguments: str) -> bool:
        """Whether a piece under a new id goes on with the arguments of ``known``.

        The old vLLM repeats the name, too, for a tool that the client named, and says at the end
        once more that there is nothing.
        """
        said = self._said(known)
        if not name:
            return not _complete(said)
        if name != known.name or not said or (_complete(said) and not known.renamed):
            return False
        known.renamed = not (_complete(said) and arguments.lstrip().startswith("{"))
        return known.renamed

    def _begins_anew(self, known: Call, index: Any, name: str, arguments: str) -> bool:
        """Whether a name says that a new call begins although index or silence points to ``known``.

        Before the first arguments a name under an index may still be a piece of a split name.
        After them the same name is a repetition, unless a second whole object begins.
        """
        if not name:
            return False
        if not (known.started or known.held):
            return index is None and bool(known.name) and name != known.name
        if known.name and name != known.name:
            return True
        return self._repeats(known, arguments)

    def _repeats(self, known: Call, arguments: str) -> bool:
        """Whether a second whole object begins behind a call that has its arguments."""
        if not arguments.lstrip().startswith("{"):
            return False
        said = self._said(known)
        return _complete(said) and not (self._cumulative and arguments.startswith(said))

    def _said(self, call: Call) -> str:
        block = self._composer.block(call.key)
        if block is None:
            return "".join(call.held) if call.name else ""
        return block.said

    def _learn(self, call: Call, index: Any, id_: str, name: str) -> None:
        if index is not None:
            call.index = index
            self._by_index[index] = call
        if id_:
            call.id = call.id or id_
            self._by_id[id_] = call
        if name and not call.started and name != call.name:
            call.name += name

    def _arguments(self, call: Call, arguments: str, *, whole: bool) -> None:
        if not call.started:
            if call.held == [EMPTY] and arguments.startswith("{"):
                call.held.clear()
            if not call.name or (arguments == EMPTY and not (whole or call.held)):
                call.held.append(arguments)
                return
            self._start(call)
        block = self._composer.block(call.key)
        said = block.said if block is not None and self._cumulative else ""
        if said and arguments.startswith(said):
            arguments = arguments[len(said) :]
        self.said += len(arguments)
        if whole:
            self._composer.whole_arguments(call.key, arguments)
            self._composer.close(call.key)
            return
        self._composer.arguments(call.key, arguments)
        if self._unfinished and block is not None and _complete(block.said):
            self._composer.close(call.key)

    def _start(self, call: Call) -> None:
        if call.started or not call.name:
            return
        call.started = True
        wanted = call.id or self._derived_id(call)
        id_ = client_call_id(wanted, self._ids)
        self._ids.add(id_)
        self._before()
        self._carry(call, id_)
        self._composer.tool(call.key, id=id_, name=call.name)
        for piece in call.held:
            self.said += len(piece)
            self._composer.arguments(call.key, piece)

    def _carry(self, call: Call, id_: str) -> None:
        """A block without text whose signature carries what must come back with the call."""
        context = self._composer.context
        if not call.extra:
            return
        keys = context.target.carrier_keys
        if keys is None or context.thinking == "hidden":
            self._note(UNCARRIED)
            return
        self._composer.sign(
            ("call's extra", call.ordinal), sealed_extra(id_, call.extra, context.target, keys)
        )

    def _note(self, note: Note) -> None:
        if note not in self._composer.notes:
            self._composer.notes.append(note)

    def _derived_id(self, call: Call) -> str:
        digest = hashlib.sha256(f"{self.seed}/{call.ordinal}".encode(errors="surrogatepass"))
        return f"toolu_{digest.hexdigest()[:24]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _complete(text: str) -> bool:
    """Whether arguments are one whole JSON object."""
    if not text.rstrip().endswith("}"):
        return False
    value, repaired = parse_arguments(text)
    return isinstance(value, dict) and not repaired
