"""A user's grammar in EBNF, read into the grammar IR.

The notation is what llama.cpp's GBNF and xgrammar's EBNF have in common::

    root   ::= "yes" | "no" reason?      # a comment; rules may run over several lines
    reason ::= ": " [^\\n"]{1,80}

- a rule is ``name ::= expression``; names are letters, digits, ``_``, ``-`` and ``.``; a text
  has to match the rule ``root`` as a whole
- ``"..."`` is a literal (``""``: the empty text), ``[...]`` one character out of a class with
  ranges, ``[^...]`` one character outside of it
- escapes in both: ``\\n \\r \\t \\f \\b \\v \\a \\0``, ``\\xHH``, ``\\uHHHH``, ``\\UHHHHHHHH`` with
  exactly so many digits, and ``\\`` before a punctuation mark
- ``|`` separates alternatives, ``( )`` groups (``()``: the empty text), and ``* + ? {m} {m,}
  {m,n}`` repeat what stands before them

Rules may be recursive in any way. Look-ahead ``(= ...)`` and macros such as ``TagDispatch(...)``
are refused.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rtlang.errors import GrammarTooLarge, InvalidEbnf
from rtlang.grammar.ebnf_lexer import Source, Word
from rtlang.grammar.ir import Chars, Expr, Grammar, Ref, Text
from rtlang.grammar.ir_build import alt, repeat, seq

MAX_RULES = 5_000
MAX_DEPTH = 200
#: Of counts: of one character, of anything else, and of one in another multiplied.
MAX_COUNT_CHARS = 100_000
MAX_COUNT = 1_000
MAX_COUNT_PRODUCT = 100_000

_EXPECTED = 'a literal "...", a class [...], a rule or ('


class _Item(NamedTuple):
    """A part of a sequence. ``counts``: the largest product of the nested counts in it."""

    expr: Expr
    counts: int = 1
    repeated: bool = False


@dataclasses.dataclass(slots=True)
class _Group:
    """What stands between parentheses, or a whole rule, as far as it has been read."""

    at: int
    alternatives: list[list[_Item]] = dataclasses.field(default_factory=lambda: [[]])


def parse(text: str) -> Grammar:
    """Read a grammar; its rules other than ``root`` get names of our own.

    Raises:
        InvalidEbnf: with ``line`` and ``column``, both from 1.
        GrammarTooLarge: too many rules, too deep nesting, too large counts.
    """
    return _Parser(text).grammar()


class _Parser:
    def __init__(self, text: str) -> None:
        self._source = Source(text)
        self._words = list(self._source.words())
        self._at = 0
        self._names: dict[str, str] = {"root": "root"}  # of rules, as written: in the IR
        self._used: dict[str, Word] = {}  # where a rule is first used
        self._rules: dict[str, Expr] = {}

    def grammar(self) -> Grammar:
        defined: set[str] = set()
        while (word := self._next()).kind != "end":
            if word.kind != "name" or self._next().kind != "define":
                raise self._error("expected a rule: name ::= expression", word)
            if word.text in defined:
                raise self._error(f"the rule {word.text} is defined twice", word)
            if len(defined) == MAX_RULES:
                raise GrammarTooLarge(f"more than {MAX_RULES} rules", limit="rules")
            defined.add(word.text)
            name = self._name(word.text)
            self._rules[name] = self._body()
        for name, use in self._used.items():
            if name not in defined:
                macro = self._source.text.startswith("(", use.at + len(name))
                hint = "; macros are not supported" if macro else ""
                raise self._error(f"the rule {name} is used but not defined{hint}", use)
        if "root" not in defined:
            raise self._source.error("there is no rule called root", 0)
        return Grammar(self._rules)

    def _body(self) -> Expr:
        """One rule's expression, up to the next rule. A stack of open groups, no recursion."""
        stack = [_Group(self._peek().at)]
        while not self._at_rule_end():
            word = self._next()
            items = stack[-1].alternatives[-1]
            if word.kind == "count":
                self._repeat(items, word)
            elif word.text == "(" and word.kind == "sign":
                self._open(stack, word)
            elif word.text == ")" and word.kind == "sign":
                if len(stack) == 1:
                    raise self._error("this ) closes nothing", word)
                group = self._closed(stack.pop(), word)
                stack[-1].alternatives[-1].append(group)
            elif word.text == "|" and word.kind == "sign":
                self._need_items(items, word)
                stack[-1].alternatives.append([])
            else:
                items.append(_Item(self._element(word)))
        end = self._peek()
        if len(stack) > 1:
            raise self._source.error("this ( is not closed", stack[-1].at)
        self._need_items(stack[0].alternatives[-1], end)
        return self._closed(stack[0], end).expr

    def _at_rule_end(self) -> bool:
        word = self._peek()
        following = self._words[min(self._at + 1, len(self._words) - 1)]
        return word.kind == "end" or (word.kind == "name" and following.kind == "define")

    def _element(self, word: Word) -> Expr:
        if word.kind == "text":
            return Text(self._source.literal(word))
        if word.kind == "chars":
            return Chars(self._source.char_class(word).ranges)
        if word.kind != "name":
            raise self._error(f"expected {_EXPECTED}", word)
        self._used.setdefault(word.text, word)
        return Ref(self._name(word.text))

    def _open(self, stack: list[_Group], word: Word) -> None:
        if len(stack) > MAX_DEPTH:
            raise GrammarTooLarge(f"groups nested deeper than {MAX_DEPTH}", limit="depth")
        stack.append(_Group(word.at))

    def _closed(self, group: _Group, end: Word) -> _Item:
        if group.alternatives != [[]]:
            self._need_items(group.alternatives[-1], end)
        exprs = [seq(item.expr for item in items) for items in group.alternatives]
        counts = [item.counts for items in group.alternatives for item in items]
        return _Item(alt(exprs), max(counts, default=1))

    def _repeat(self, items: list[_Item], word: Word) -> None:
        if not items or items[-1].repeated:
            raise self._error(f"nothing that {word.text} could repeat: expected {_EXPECTED}", word)
        low, high = self._source.count(word)
        expr, counts, _ = items.pop()
        single = isinstance(expr, Chars) or (isinstance(expr, Text) and len(expr.text) <= 1)
        limit = MAX_COUNT_CHARS if single else MAX_COUNT
        times = max(low, high or 1)
        if times > limit:
            raise GrammarTooLarge(f"the count {word.text} is larger than {limit}", limit="repeat")
        counts *= times
        if counts > MAX_COUNT_PRODUCT:
            message = f"counts in one another multiply to more than {MAX_COUNT_PRODUCT}"
            raise GrammarTooLarge(message, limit="repeat")
        items.append(_Item(repeat(expr, low, high), counts, repeated=True))

    def _need_items(self, items: list[_Item], word: Word) -> None:
        if not items:
            raise self._error(f'expected {_EXPECTED} (the empty text is "")', word)

    def _name(self, written: str) -> str:
        return self._names.setdefault(written, f"r{len(self._names)}")

    def _peek(self) -> Word:
        return self._words[self._at]

    def _next(self) -> Word:
        word = self._words[self._at]
        self._at = min(self._at + 1, len(self._words) - 1)
        return word

    def _error(self, message: str, word: Word) -> InvalidEbnf:
        if word.kind == "end":
            message += ", found the end"
        return self._source.error(message, word.at)
