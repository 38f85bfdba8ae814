"""CallObject: a JSON object that names a tool and its arguments, read as it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence

from rtlang.runtime.parsers.events import CallArguments, CallBegin, CallEnd, Event
from rtlang.runtime.parsers.json_text import SPACES, JsonText, json_space_end

#: One unit inside a string: plain text, a bare control character, or one character's escape.
_UNIT = re.compile(
    r'[^"\\\x00-\x1f]+|[\x00-\x1f]|\\["\\/bfnrt]'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}"
)
#: What may become a unit, or a longer one, with more text.
_UNIT_BEGUN = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3})?"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?"
)
#: Characters of a name in JSON.
MAX_NAME_LEN = 1_000

#: First keys, and the first type, by which a call is told from other JSON.
_KNOWN_KEYS = ('"name"', '"parameters"', '"arguments"', '"type"')
_KNOWN_TYPES = ('"function"',)


class CallObject:
    """``{"name": NAME, "arguments": {...}}``, its members in any order, as the events of a call.

    The arguments may be called parameters, may be missing or null, and may be a string with
    JSON in it. Other members are allowed, and have no meaning.

    begun    its name is listed and its arguments have begun (or it has none)
    refused  it names no tool that is listed; what follows, to its end, is not looked at
    done     the object is complete; ``begun`` or ``refused``
    broken   the next character cannot follow
    """

    def __init__(self, names: Collection[str], index: int, *, known_start: bool = False) -> None:
        """``known_start``: what begins like another JSON object is broken there."""
        self.begun = False
        self.refused = False
        self.done = False
        self.broken = False
        self._names = names
        self._index = index
        self._events: list[Event] = []
        self._name: str | None = None
        self._held: list[str] = []  # arguments that came before the name
        self._has_arguments = False  # all of them
        self._known_start = known_start
        self._key = ""
        self._word = ""
        self._value = JsonText()  # the key, name or other value being read
        self._said: list[str] = []  # what there is of it
        self._quoted = JsonText()  # arguments in a string
        self._state: Callable[[str, int], int] = self._open

    def taken(self) -> list[Event]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def feed(self, text: str, at: int = 0) -> int:
        """The index up to which it has read; where neither done nor broken, it wants the text
        from there again, and more of it."""
        while at < len(text) and not (self.done or self.broken):
            state = self._state
            if text[at] in SPACES and state in self._between_tokens():
                at = json_space_end(text, at)
                continue
            end = state(text, at)
            if end == at and self._state == state:
                break
            at = end
        return at

    def _between_tokens(self) -> tuple[Callable[[str, int], int], ...]:
        return (self._open, self._before_key, self._colon, self._before_value, self._after)

    def _break(self, at: int) -> int:
        self.broken = True
        return at

    # -- the object's own syntax ---------------------------------------------------------------

    def _open(self, text: str, at: int) -> int:
        if text[at] != "{":
            return self._break(at)
        self._state = self._before_key
        return at + 1

    def _before_key(self, text: str, at: int) -> int:
        if text[at] != '"':  # an object without members names no tool either
            return self._break(at)
        self._word = ""
        self._state = self._known_key if self._known_start else self._in_key
        return at

    def _known_key(self, text: str, at: int) -> int:
        if self._known(text[at], _KNOWN_KEYS):
            self._key = self._word[1:-1]
            self._state = self._colon
        return at + (not self.broken)

    def _known_type(self, text: str, at: int) -> int:
        if self._known(text[at], _KNOWN_TYPES):
            self._state = self._after
        return at + (not self.broken)

    def _known(self, char: str, words: Sequence[str]) -> bool:
        """One more character of one of the words; any other is broken where it differs."""
        self._word += char
        self.broken = not any(word.startswith(self._word) for word in words)
        return self._word in words

    def _in_key(self, text: str, at: int) -> int:
        end, done = self._read(text, at)
        if done:
            self._key = self._taken_value() or ""
            self._state = self._colon
        return end

    def _colon(self, text: str, at: int) -> int:
        if text[at] != ":":
            return self._break(at)
        self._state = self._before_value
        return at + 1

    def _before_value(self, text: str, at: int) -> int:
        known_start, self._known_start = self._known_start, False
        self._state = self._in_other
        if self.refused:
            return at
        if self._key == "name" and self._name is None:
            self._state = self._in_name
        elif self._key in ("arguments", "parameters") and not self._has_arguments:
            return self._open_arguments(text, at)
        elif self._key == "type" and known_start:
            self._word = ""
            self._state = self._known_type
        return at

    def _after(self, text: str, at: int) -> int:
        if text[at] == ",":
            self._state = self._before_key
        elif text[at] != "}" or (self._name is None and not self.refused):
            return self._break(at)
        else:
            if self._name is not None and not self._has_arguments:
                self._pass_arguments("{}")
                self._end_arguments()
            self.done = True
        return at + 1

    # -- values --------------------------------------------------------------------------------

    def _read(self, text: str, at: int) -> tuple[int, bool]:
        """(index up to which the value goes, whether that is its end); into ``said``."""
        end, fragment = self._value.feed(text, at)
        self._said.append(fragment)
        done, self.broken = self._value.done, self._value.broken
        if done:
            self._value = JsonText()
        return end, done

    def _taken_value(self) -> str | None:
        """The value in ``said``, if it is a string."""
        value = json.loads("".join(self._said))
        self._said.clear()
        return value if isinstance(value, str) else None

    def _in_other(self, text: str, at: int) -> int:
        end, done = self._read(text, at)
        self._said.clear()
        if done:
            self._state = self._after
        return end

    def _in_name(self, text: str, at: int) -> int:
        end, done = self._read(text, at)
        if not done:
            if not self._may_be_listed("".join(self._said)):
                self.refused = True
                self._state = self._in_other
            return end
        name = self._taken_value()
        self._state = self._after
        if name is None or name not in self._names:
            self.refused = True
            return end
        self._name = name
        if self._has_arguments:
            self._pass_arguments("".join(self._held))
            self._end_arguments()
            self._held.clear()
        return end

    def _may_be_listed(self, begun: str) -> bool:
        if "\\" in begun:  # an escape, which may stand for anything
            return len(begun) < MAX_NAME_LEN
        return any(f'"{name}"'.startswith(begun) for name in self._names)

    # -- the arguments -------------------------------------------------------------------------

    def _open_arguments(self, text: str, at: int) -> int:
        if text[at] == "{":
            self._state = self._in_arguments
        elif text[at] == '"':
            self._state = self._before_quoted
            return at + 1
        elif text[at] != "n":  # null: none
            return self._break(at)
        return at

    def _pass_arguments(self, fragment: str) -> None:
        if self._name is None:
            self._held.append(fragment)
            return
        if not self.begun:
            self.begun = True
            self._events.append(CallBegin(self._index, self._name))
        if fragment:
            self._events.append(CallArguments(self._index, fragment))

    def _end_arguments(self) -> None:
        self._has_arguments = True
        if self._name is not None:
            self._events.append(CallEnd(self._index))

    def _in_arguments(self, text: str, at: int) -> int:
        end, done = self._read(text, at)
        self._pass_arguments("".join(self._said))
        self._said.clear()
        if done:
            self._end_arguments()
            self._state = self._after
        return end

    def _before_quoted(self, text: str, at: int) -> int:
        """In a string, before the object that it should hold; a blank string holds none."""
        if text[at] == '"':
            self._pass_arguments("{}")
            self._end_arguments()
            self._state = self._after
            return at + 1
        if _UNIT_BEGUN.fullmatch(text, at):
            return at
        unit = _UNIT.match(text, at)
        if unit is None:
            return self._break(at)
        said = _unescaped(unit[0])
        skipped = json_space_end(said, 0)
        if skipped == len(said):
            return unit.end()
        if said[skipped] != "{":
            return self._break(at + skipped)
        self._state = self._in_quoted
        return at + skipped

    def _in_quoted(self, text: str, at: int) -> int:
        if text[at] == '"':
            if not self._quoted.done:
                return self._break(at)
            self._end_arguments()
            self._state = self._after
            return at + 1
        if _UNIT_BEGUN.fullmatch(text, at):
            return at
        unit = _UNIT.match(text, at)
        if unit is None:
            return self._break(at)
        said = _unescaped(unit[0])
        end, fragment = self._quoted.feed(said)
        self._pass_arguments(fragment)
        if self._quoted.done:
            end = json_space_end(said, end)
        return unit.end() if end == len(said) else self._break(at + end)


def _unescaped(unit: str) -> str:
    """The character that a unit stands for; half a character (a surrogate) stays an escape."""
    if not unit.startswith("\\"):
        return unit
    said: str = json.loads(f'"{unit}"')
    return unit if "\ud800" <= said <= "\udfff" else said
