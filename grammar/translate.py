"""From a constraint to its grammar: what it means exactly, or why it is refused."""

from __future__ import annotations

import json

from rtlang.grammar import ebnf_parser, regex, structural
from rtlang.grammar.charset import CharSet
from rtlang.grammar.checks import Prepared, prepared
from rtlang.grammar.ir import Chars, Expr, Grammar, Ref, Text
from rtlang.grammar.ir_build import alt
from rtlang.grammar.schema import SchemaOptions
from rtlang.grammar.schema import translate as translate_schema
from rtlang.grammar.spec import GrammarSpec


def translate(spec: GrammarSpec) -> Prepared:
    """The grammar of exactly the texts that ``spec`` allows, without dead parts.

    Of a JSON schema's texts some are left out, as docs/constraints.md says.

    Raises:
        GrammarError: one of its children, for a constraint that is wrong, has no text at all,
            is too large, or cannot be enforced.
    """
    return prepared(_READERS[spec.kind](spec))


def _json_schema(spec: GrammarSpec) -> Grammar:
    options = SchemaOptions(whitespace=spec.whitespace, additional=spec.additional)
    return translate_schema(json.loads(spec.source), options)


def _regex(spec: GrammarSpec) -> Grammar:
    rules: dict[str, Expr] = {}

    def define(expr: Expr) -> Ref:
        name = f"r{len(rules)}"
        rules[name] = expr
        return Ref(name)

    def encode(chars: CharSet) -> Expr:
        return Chars(chars.ranges)

    root = regex.parse(spec.source, search=False).to_ir(encode, define)
    return Grammar({"root": root, **rules})


def _ebnf(spec: GrammarSpec) -> Grammar:
    return ebnf_parser.parse(spec.source)


def _choice(spec: GrammarSpec) -> Grammar:
    # Flat: xgrammar shares common beginnings by itself, faster than a tree of rules.
    return Grammar({"root": alt([Text(text) for text in dict.fromkeys(json.loads(spec.source))])})


def _structural_tag(spec: GrammarSpec) -> Grammar:
    return structural.parse(spec, translate)


_READERS = {
    "json_schema": _json_schema,
    "regex": _regex,
    "ebnf": _ebnf,
    "choice": _choice,
    "structural_tag": _structural_tag,
}
