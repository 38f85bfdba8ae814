"""The words of a grammar, counted out by its definition: the plain twin of everything that matches.

Also random grammars, and xgrammar's verdict on a text over a vocabulary of single bytes.
"""

from __future__ import annotations

import functools
import itertools

import xgrammar as xgr
from hypothesis import strategies as st

from rtlang.grammar.ir import Alt, Chars, Dispatch, Expr, Grammar, Ref, Repeat, Seq, Text


def all_words(alphabet: str, longest: int) -> list[str]:
    found = (itertools.product(alphabet, repeat=n) for n in range(longest + 1))
    return ["".join(word) for words in found for word in words]


def words(grammar: Grammar, alphabet: str, longest: int) -> set[str]:
    """The texts over ``alphabet`` of at most ``longest`` characters: a fixpoint from below."""
    known: dict[str, set[str]] = {name: set() for name in grammar.rules}
    while True:
        new = {n: _words(e, known, alphabet, longest) for n, e in grammar.rules.items()}
        if new == known:
            return known[grammar.root]
        known = new


def _words(expr: Expr, known: dict[str, set[str]], alphabet: str, longest: int) -> set[str]:
    def inner(part: Expr) -> set[str]:
        return _words(part, known, alphabet, longest)

    def joined(left: set[str], right: set[str]) -> set[str]:
        return {a + b for a in left for b in right if len(a) + len(b) <= longest}

    if isinstance(expr, Text):
        fits = len(expr.text) <= longest and set(expr.text) <= set(alphabet)
        return {expr.text} if fits else set()
    if isinstance(expr, Chars):
        return {c for c in alphabet if any(lo <= ord(c) <= hi for lo, hi in expr.ranges)}
    if isinstance(expr, Ref):
        return known[expr.name]
    if isinstance(expr, Alt):
        return set().union(*map(inner, expr.parts))
    if isinstance(expr, Seq):
        return functools.reduce(joined, map(inner, expr.parts), {""})
    if isinstance(expr, Dispatch):
        return _free(expr, known, alphabet, longest)
    body = inner(expr.expr)
    rounds, found = {""}, set[str]()
    last = expr.low + longest if expr.high is None else expr.high
    for count in range(last + 1):
        found |= rounds if count >= expr.low else set()
        rounds = joined(rounds, body)
    return found


def _free(expr: Dispatch, known: dict[str, set[str]], alphabet: str, longest: int) -> set[str]:
    def ends_with_trigger(text: str) -> list[str]:
        return [name for trigger, name in expr.tags if text.endswith(trigger)]

    found: set[str] = set()
    queue = [("", "")]  # (all so far, the free part since the last rule)
    seen = set(queue)
    while queue:
        text, free = queue.pop()
        if names := ends_with_trigger(free):
            after = [(text + word, "") for word in known[names[0]]]
        elif any(free.endswith(x) for x in expr.excludes):
            continue
        else:
            found.add(text)
            after = [(text + c, free + c) for c in alphabet]
        fresh = {state for state in after if len(state[0]) <= longest} - seen
        seen |= fresh
        queue += fresh
    return found


@functools.cache
def _compiler() -> xgr.GrammarCompiler:
    vocab = [bytes([i]) for i in range(256)] + [b""]
    info = xgr.TokenizerInfo(vocab, xgr.VocabType.RAW, vocab_size=257, stop_token_ids=[256])
    return xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)


class Engine:
    """xgrammar on an EBNF text."""

    def __init__(self, ebnf: str) -> None:
        self.matcher = xgr.GrammarMatcher(_compiler().compile_grammar(ebnf))

    def accepts(self, text: str) -> bool:
        self.matcher.reset()
        data = text.encode()
        return all(self.matcher.accept_token(b) for b in data) and self.matcher.is_completed()


def grammars(
    alphabet: str, names: tuple[str, ...] = ("root", "x", "y")
) -> st.SearchStrategy[Grammar]:
    """Any grammar over a small alphabet: recursive, cyclic, dead and empty rules included."""
    single = st.sampled_from(alphabet)
    chars = st.sets(single, min_size=0, max_size=2).map(
        lambda some: Chars(tuple((ord(c), ord(c)) for c in sorted(some)))
    )
    free = st.builds(Dispatch, st.sampled_from([(), (("a", "x"),), (("ab", "y"), ("aa", "x"))]))
    leaf = st.one_of(
        free, st.text(alphabet, max_size=2).map(Text), chars, st.sampled_from(names).map(Ref)
    )
    bounds = st.tuples(st.integers(0, 3), st.none() | st.integers(0, 3)).map(
        lambda b: (b[0], None if b[1] is None else b[0] + b[1])
    )

    def larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        some = st.lists(inner, max_size=3).map(tuple)
        repeated = st.builds(lambda e, b: Repeat(e, *b), inner, bounds)
        return st.one_of(some.map(Seq), some.map(Alt), repeated)

    expr: st.SearchStrategy[Expr] = st.recursive(leaf, larger, max_leaves=6)
    return st.fixed_dictionaries(dict.fromkeys(names, expr)).map(Grammar)
