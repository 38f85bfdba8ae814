"""CallReader: free text with calls in it; formats derive from it and say how calls look."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rtlang.runtime.parsers.call_object import CallObject
from rtlang.runtime.parsers.events import CallArguments, CallBegin, CallEnd, Content, Event
from rtlang.runtime.parsers.json_text import JsonText
from rtlang.runtime.parsers.scanning import Events, begins, scanner, space_end

#: Characters of a name, or of what stands around it; what is longer is no call.
MAX_HEADER_LEN = 300

#: Reads from an index of a text on. The index up to which it has; the same one, in the same
#: state: it wants the text from there again, and more of it.
State = Callable[[str, int], int]


class CallReader:
    """An ``OutputParser``. What begins as a call and turns out to be none becomes content.

    raw     the text since a call may have begun; none any more once it has
    space   white space and separators behind a call: they go if another call follows
    """

    #: Texts that close a call, with any white space before each.
    tail: Sequence[str] = ()
    #: Whether JSON that begins like no call is told from calls by that.
    known_start = False

    def __init__(self, names: Sequence[str], triggers: Sequence[str]) -> None:
        """``triggers``: each turns free text into what may be a call."""
        self.names = frozenset(names)
        self.events = Events()
        self.raw: list[str] = []
        self.space: list[str] = []
        self.state: State = self.free
        self.after_call: State = self.between
        self.num_calls = 0
        self.behind_call = False  # nothing but white space and separators since the last one
        self._triggers = scanner(*triggers)
        self._rest = ""
        self._object: CallObject | None = None
        self._refused = False  # the last call in the list
        self._name = ""
        self._arguments = JsonText()
        self.closing: list[str] = []  # what is left of ``tail``
        self._wanted = scanner()
        self._words: Collection[str] = ()
        self._limit = 0
        self._collected: list[str] = []
        self._then: Callable[[str, str], None] = self._nothing

    def feed(self, text: str) -> list[Event]:
        text, at = self._rest + text, 0
        while at < len(text):
            state = self.state
            end = state(text, at)
            if end == at and self.state == state:
                break
            at = end
        self._rest = text[at:]
        return self.events.taken()

    def finish(self) -> list[Event]:
        rest, self._rest = self._rest, ""
        self.end(rest)
        return self.events.taken()

    def end(self, rest: str) -> None:
        """The generation ends, and ``rest`` was not read. What is left of a call that has begun
        is a part of its syntax, which nobody misses."""
        if "".join(self.raw).strip() or (rest and self.state == self.free):
            self.fail(rest)

    # -- free text -----------------------------------------------------------------------------

    def begin(self, trigger: str) -> None:
        """A trigger has come, and is in ``raw``. Sets the state of what follows."""
        raise NotImplementedError

    def text(self, text: str) -> None:
        """Text that belongs to no call."""
        self.events.add(Content(text))

    def free(self, text: str, at: int) -> int:
        found = self._triggers.find(text, at)
        end = found[0] if found is not None else self._triggers.cut(text, at)
        if end > at:
            self.text("".join(self.space) + text[at:end])
            self.space = []
            self.behind_call = False
        if found is None:
            return end
        self.raw, self.space = [*self.space, found[1]], []
        self.begin(found[1])
        return end + len(found[1])

    def fail(self, rest: str = "") -> None:
        """No call: what has been read of it is text."""
        self.text("".join([*self.raw, *self.space, rest]))
        self.raw, self.space = [], []
        self.state, self.after_call = self.free, self.between
        self.behind_call = False

    # -- behind a call -------------------------------------------------------------------------

    #: One of them may stand between two calls.
    separators = ""

    def between(self, text: str, at: int) -> int:
        end = space_end(text, at)
        if end < len(text) and text[end] in self.separators:
            end += 1
        self.space.append(text[at:end])
        if end == at:
            self.state = self.free
        return end

    def in_list(self, text: str, at: int) -> int:
        """Behind a call in a JSON list. What stands behind one that was refused is text."""
        char, end = text[at], space_end(text, at)
        if char == "{":
            self.raw, self.space = self.space, []
            self.open_object()
            return at
        if end == at and char not in ",]":
            self.state, self.after_call = self.free, self.between
            return at
        end = max(end, at + 1)
        if self._refused:
            self.text(text[at:end])
        else:
            self.space.append(text[at:end])
        if char == "]":
            self.space = []
            self.state = self.after_call = self.between
        return end

    # -- a call that is one JSON object --------------------------------------------------------

    def before_object(self, text: str, at: int) -> int:
        """White space, then ``{"name": ..., "arguments": ...}``."""
        end = space_end(text, at)
        self.raw.append(text[at:end])
        if end < len(text):
            if text[end] == "{":
                self.open_object()
            else:
                self.fail()
        return end

    def open_object(self) -> None:
        self._refused = False
        self._object = CallObject(self.names, self.num_calls, known_start=self.known_start)
        self.state = self._in_object

    def _in_object(self, text: str, at: int) -> int:
        call = self._object
        assert call is not None
        end = call.feed(text, at)
        if call.refused:
            self.text("".join(self.raw) + text[at:end])
            self.raw = []
        elif call.begun:
            self.raw = []
        else:
            self.raw.append(text[at:end])
        for event in call.taken():
            self.events.add(event)
        if call.done or call.broken:
            self.num_calls += call.begun
            self._leave_object(call)
        return end

    def _leave_object(self, call: CallObject) -> None:
        self._object = None
        if call.broken:
            self.fail()
        elif call.begun:
            self.close_call()
        elif self.after_call == self.in_list:
            self._refused = True
            self.state = self.in_list
        else:
            self.state = self.free
            self.behind_call = False

    # -- a call of which the arguments alone are JSON ------------------------------------------

    def begin_call(self, name: str) -> None:
        self.raw, self.space = [], []
        self.events.add(CallBegin(self.num_calls, name))
        self.num_calls += 1

    def pass_arguments(self, fragment: str) -> None:
        self.events.add(CallArguments(self.num_calls - 1, fragment))

    def end_call(self) -> None:
        self.events.add(CallEnd(self.num_calls - 1))
        self.close_call()

    def open_arguments(self, name: str) -> None:
        """``name`` is listed; its arguments follow."""
        self._name, self._arguments = name, JsonText()
        self.state = self.before_arguments

    def before_arguments(self, text: str, at: int) -> int:
        end = space_end(text, at)
        self.raw.append(text[at:end])
        if end < len(text):
            if text[end] == "{":
                self.begin_call(self._name)
                self.state = self._in_arguments
            else:
                self.fail()
        return end

    def _in_arguments(self, text: str, at: int) -> int:
        end, fragment = self._arguments.feed(text, at)
        self.pass_arguments(fragment)
        if self._arguments.done:
            self.end_call()
        elif self._arguments.broken:
            self.fail()
        return end

    # -- what closes a call --------------------------------------------------------------------

    def close_call(self) -> None:
        self.raw, self.behind_call = [], True
        self.closing = list(self.tail)
        self.state = self._in_tail

    def _in_tail(self, text: str, at: int) -> int:
        """A missing end is forgiven: what comes instead is read as what follows the call."""
        end = space_end(text, at)
        if not self.closing:
            self.state = self.after_call
        elif end > at:
            self.space.append(text[at:end])
            return end
        else:
            stands = begins(text, at, self.closing[0])
            if stands:
                self.space = []
                return at + len(self.closing.pop(0))
            if stands is False:
                self.state = self.after_call
        return at

    # -- other steps of formats ----------------------------------------------------------------

    def reread(self, last: str) -> None:
        """The last of ``raw`` belongs to what the state reads."""
        self.raw.pop()
        at = 0
        while at < len(last):
            at = self.state(last, at)

    def _nothing(self, collected: str, marker: str) -> None:
        raise AssertionError("no step follows")

    def collect(
        self,
        markers: Sequence[str],
        then: Callable[[str, str], None],
        *,
        words: Collection[str] = (),
        limit: int = MAX_HEADER_LEN,
    ) -> None:
        """Read to the first of the markers, then call ``then(what stood before it, it)``, which
        sets the state. Longer than ``limit``, or something else than one of the ``words`` (if
        there are any): it is no call."""
        self._wanted, self._then = scanner(*markers), then
        self._words, self._limit = words, limit
        self._collected = []
        self.state = self.collecting

    def collecting(self, text: str, at: int) -> int:
        found = self._wanted.find(text, at)
        end = found[0] if found is not None else self._wanted.cut(text, at)
        fitting = self._fitting(text, at, end)
        self.raw.append(text[at:fitting])
        self._collected.append(text[at:fitting])
        self._limit -= fitting - at
        if fitting < end:
            self.fail()
        elif found is not None:
            self.raw.append(found[1])
            self._then("".join(self._collected), found[1])
            return end + len(found[1])
        return fitting

    def _fitting(self, text: str, at: int, end: int) -> int:
        """Up to where the text may be what is wanted."""
        end = min(end, at + self._limit)
        if not self._words:
            return end
        said = "".join(self._collected).lstrip()
        for stop in range(at, end):
            said = (said + text[stop]).lstrip()
            word = said.rstrip()
            if not any(w == word or w.startswith(said) for w in self._words):
                return stop
        return end
