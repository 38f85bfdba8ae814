"""From a JSON schema to a grammar of the JSON texts that satisfy it.

A schema is brought to a normal form, a union of alternatives for each type (``values``), by an
exact algebra (``solver``); that form is written as rules (``rules`` and the modules that use it).
Every text of the grammar satisfies the schema; docs/constraints.md says which texts that satisfy
it are left out.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from rtlang.grammar.checks import prepared
from rtlang.grammar.ir import Expr, Grammar, Text
from rtlang.grammar.ir_build import alt
from rtlang.grammar.schema.applicators import expand
from rtlang.grammar.schema.document import Document, Place
from rtlang.grammar.schema.elements import different, elements
from rtlang.grammar.schema.members import members
from rtlang.grammar.schema.rules import Rules
from rtlang.grammar.schema.scalars import number, string
from rtlang.grammar.schema.solver import Solver
from rtlang.grammar.schema.values import Arrays, Values


@dataclasses.dataclass(frozen=True)
class SchemaOptions:
    """How the texts of a schema are written.

    whitespace  most white space characters in a row between two tokens; 0: none
    additional  "schema": an object of which no schema says anything about further members may
                have any; "closed": it has none beside its declared ones
    """

    whitespace: int = 16
    additional: Literal["schema", "closed"] = "schema"


def translate(schema: object, options: SchemaOptions | None = None) -> Grammar:
    """The grammar of the JSON texts that satisfy a parsed schema (an object, true or false).

    Raises:
        InvalidSchema: it is no JSON schema (``pointer``, ``keyword``).
        UnsupportedKeyword: it cannot be enforced (``pointer``, ``keyword``, ``reason``).
        GrammarTooLarge: it, or what it means, is beyond a limit (``limit``).
        GrammarUnsatisfiable: nothing satisfies it.
    """
    options = options or SchemaOptions()
    document = Document(schema)
    solver = Solver(document, expand)
    rules = Rules(options.whitespace, closed=options.additional == "closed")
    rules.node(solver.literal(document.inside(Place(document.root, "", ""))))
    while (pending := rules.next_node()) is not None:
        node, name = pending
        rules.put(name, _written(rules, solver, solver.of(node)))
    return prepared(rules.grammar())


def _written(rules: Rules, solver: Solver, values: Values) -> Expr:
    found: list[Expr] = [Text(text) for text in ("null", "true", "false") if text in values.simple]
    if not values.numbers.texts.is_empty:
        found.append(number(rules, values.numbers))
    found += [string(rules, strings) for strings in values.strings]
    found += [_array(rules, solver, arrays) for arrays in values.arrays]
    found += [members(rules, objects) for objects in values.objects]
    return alt(found)


def _array(rules: Rules, solver: Solver, arrays: Arrays) -> Expr:
    if arrays.unique is not None and (arrays.high is None or arrays.high > 1):
        return different(rules, arrays, solver.of(arrays.rest))
    return elements(rules, arrays)
