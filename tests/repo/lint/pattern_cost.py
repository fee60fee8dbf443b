"""Find regular expressions that can take more than linear time, and texts that show it.

A pattern becomes an automaton whose states are the positions of its single-character parts. Python
backtracks, so time grows faster than the text in two cases (Weber and Seidl, 1991):

- *scan*: some text leads both from the start of the pattern into a loop and round that loop, and
  the match can still fail behind it. A search then runs the loop once from each place in the text.
- *ambiguity*: some text leads round a loop in two ways (exponential), or round one loop, round
  another and from the first into the second (polynomial).

Approximations: an assertion matches on the way into a loop and fails behind it, a repeat of more
than ``FEW`` is unbounded, and atomic groups backtrack (all three overestimate the cost); a bounded
repeat becomes at most two copies (this one underestimates it).
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

FEW: Final = 64
MOST_TRAILS: Final = 20_000
REPEATS: Final = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
SINGLE: Final = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
NOTHING_READ: Final = (_constants.AT, _constants.ASSERT, _constants.ASSERT_NOT)
LETTERS: Final = [*map(chr, range(128)), "é", "\u2028", "一"]
BYTES: Final = [bytes([n]) for n in (*range(128), 0xE9, 0xFF)]


class Automaton:
    """A pattern's positions: 0 is the start, the others read one character each."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.alphabet: list[Any] = LETTERS if isinstance(pattern.pattern, str) else BYTES
        parsed = _parser.parse(pattern.pattern, pattern.flags)
        self.is_anchored = bool(parsed.data) and parsed.data[0][0] is _constants.AT and (
            parsed.data[0][1] is _constants.AT_BEGINNING_STRING
            or (parsed.data[0][1] is _constants.AT_BEGINNING and not pattern.flags & re.MULTILINE)
        )  # fmt: skip
        self._state = parsed.state
        self._free: list[list[int]] = [[]]  # epsilon transitions of each state
        self._reads: dict[int, tuple[int, int]] = {}  # state -> (character set, next state)
        self._asserted: set[tuple[int, int]] = set()  # transitions that need an assertion
        self._end = self._sequence(parsed, 0, pattern.flags)
        starts = [0, *(behind for _, behind in self._reads.values())]
        self.reads = {0: 0} | {behind: letters for letters, behind in self._reads.values()}
        self.next: dict[int, dict[int, int]] = {at: self._followers(at) for at in starts}
        self.accepts = {at for at in starts if self._end in self._trails(at, self._asserted)}
        self.loops = {at for at in self.next if at in self._reachable(self.next[at])}

    def faults(self, *, searched: bool = True) -> Iterator[str]:
        """Yield the reasons for more than linear time. ``searched``: the match may start anywhere."""
        if searched and not self.is_anchored:
            for loop in sorted(self.loops - self.accepts):
                if self._reaches_goal((0, loop), (loop, loop), until=self.accepts):
                    yield f"scan: each start runs through {self._shown(loop)}"
        for one in sorted(self.loops):
            if self._is_doubled(one):
                yield f"ambiguity: two ways round {self._shown(one)}"
            for other in sorted(self.loops - {one}):
                if other in self._reachable(self.next[one]) and self._reaches_goal(
                    (one, one, other), (one, other, other)
                ):
                    yield f"ambiguity: {self._shown(one)} or {self._shown(other)}"

    def pumps(self) -> set[Any]:
        """Return texts whose repetition runs into the loops and round them."""
        found = set()
        for loop in self.loops:
            into, around = self._word(0, loop), self._word(loop, loop)
            found |= {into, around, into + around, into[:-1], into[:-1] + around}
        return {word for word in found if word} or {
            self.alphabet[0][:0].join(self.alphabet[97:100])
        }

    def _sequence(self, parts: Iterable[Any], at: int, flags: int) -> int:
        for op, argument in parts:
            at = self._part(op, argument, at, flags)
        return at

    def _part(self, op: Any, argument: Any, at: int, flags: int) -> int:
        if op in SINGLE:
            before, behind = self._new(), self._new()
            self._free[at].append(before)
            self._reads[before] = self._letters(op, argument, flags), behind
            return behind
        if op in NOTHING_READ:
            behind = self._new()
            self._free[at].append(behind)
            self._asserted.add((at, behind))
            return behind
        if op in REPEATS:
            return self._repeat(*argument, at, flags)
        if op is _constants.BRANCH:
            end = self._new()
            for branch in argument[1]:
                begin = self._new()
                self._free[at].append(begin)
                self._free[self._sequence(branch, begin, flags)].append(end)
            return end
        if op is _constants.SUBPATTERN:
            _, added, removed, inner = argument
            return self._sequence(inner, at, (flags | added) & ~removed)
        if op is _constants.ATOMIC_GROUP:
            return self._sequence(argument, at, flags)
        raise NotImplementedError(f"{op} is not analysed")

    def _repeat(self, least: int, most: Any, inner: Any, at: int, flags: int) -> int:
        for _ in range(min(least, 2)):
            at = self._sequence(inner, at, flags)
        if most is _constants.MAXREPEAT or most > FEW:
            loop, end = self._new(), self._new()
            self._free[at].append(loop)
            self._free[self._sequence(inner, loop, flags)].append(loop)
            self._free[loop].append(end)
            return end
        for _ in range(min(most - least, 2)):
            begin, end = self._new(), self._new()
            self._free[at] += [begin, end]
            self._free[self._sequence(inner, begin, flags)].append(end)
            at = end
        return at

    def _new(self) -> int:
        self._free.append([])
        return len(self._free) - 1

    def _letters(self, op: Any, argument: Any, flags: int) -> int:
        part = _parser.SubPattern(self._state, [(op, argument)])
        matches = _compiler.compile(part, flags & ~re.DEBUG).fullmatch
        return sum(1 << n for n, letter in enumerate(self.alphabet) if matches(letter))

    def _trails(
        self, start: int, barred: Collection[tuple[int, int]] = frozenset()
    ) -> dict[int, int]:
        """Return the states that epsilon transitions reach -> number of ways (2 means two or more)."""
        found: dict[int, int] = {}
        stack: list[tuple[int, frozenset[tuple[int, int]]]] = [(start, frozenset())]
        for _ in range(MOST_TRAILS):
            if not stack:
                break
            at, passed = stack.pop()
            found[at] = min(2, found.get(at, 0) + 1)
            steps = {(at, to) for to in self._free[at]} - passed - {*barred}
            stack += [(step[1], passed | {step}) for step in steps]
        return found

    def _followers(self, start: int) -> dict[int, int]:
        trails = self._trails(start)
        return {self._reads[at][1]: ways for at, ways in trails.items() if at in self._reads}

    def _reachable(self, starts: Iterable[int]) -> set[int]:
        found, waiting = set(starts), [*starts]
        while waiting:
            new = self.next[waiting.pop()].keys() - found
            found |= new
            waiting += new
        return found

    def _reaches_goal(
        self, start: tuple[int, ...], goal: tuple[int, ...], until: Collection[int] = frozenset()
    ) -> bool:
        """Return whether one text leads each position of ``start`` to its position in ``goal``.

        The last position must not pass the positions in ``until``: the match succeeds there.
        """
        return self._reaches(start, lambda found: found == goal, until)

    def _is_doubled(self, loop: int) -> bool:
        """Return whether one text leads round the loop in two ways."""
        around = self._reachable(self.next[loop])
        body = {at for at in around if loop in self._reachable(self.next[at]) or at == loop}
        if any(ways > 1 for at in body for to, ways in self.next[at].items() if to in body):
            return True
        apart: set[tuple[int, ...]] = set()
        self._reaches((loop, loop), lambda pair: pair[0] != pair[1] and apart.add(pair) is not None)
        return any(self._reaches_goal(pair, (loop, loop)) for pair in apart if set(pair) <= body)

    def _reaches(
        self,
        start: tuple[int, ...],
        is_goal: Callable[[tuple[int, ...]], bool],
        until: Collection[int] = frozenset(),
    ) -> bool:
        seen, waiting = {start}, deque([start])
        while waiting:
            for after in self._steps(waiting.popleft()):
                if after[-1] in until:
                    continue
                if is_goal(after):
                    return True
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
        return False

    def _steps(self, positions: tuple[int, ...]) -> list[tuple[int, ...]]:
        found: list[tuple[tuple[int, ...], int]] = [((), -1)]
        for at in positions:
            found = [
                ((*done, to), letters & self.reads[to])
                for done, letters in found
                for to in self.next[at]
                if letters & self.reads[to]
            ]
        return [done for done, _ in found]

    def _word(self, start: int, goal: int) -> Any:
        """Return a shortest text from one position to another."""
        empty = self.alphabet[0][:0]
        seen, waiting = {start}, deque([(start, empty)])
        while waiting:
            at, word = waiting.popleft()
            for to in self.next[at]:
                longer = word + self._letter(self.reads[to])
                if to == goal:
                    return longer
                if to not in seen:
                    seen.add(to)
                    waiting.append((to, longer))
        return empty

    def _letter(self, letters: int) -> Any:
        """Return one character of a set; prefer a letter, a digit or a space to a control character."""
        alike = [n for n in range(len(self.alphabet)) if letters >> n & 1]
        preferred = [n for n in alike if n in (32, 46, 48, 97)] or [n for n in alike if n > 32]
        return self.alphabet[(preferred or alike or [0])[0]]

    def _shown(self, at: int) -> str:
        return f"the loop over {self._letter(self.reads[at])!r}, position {at}"
