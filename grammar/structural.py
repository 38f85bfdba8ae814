"""Structural tags: text of which some parts are constrained, as xgrammar and SGLang spell them.

    {"type": "structural_tag", "format": {"type": "triggered_tags", ...}}
    {"structures": [{"begin": ..., "schema": ..., "end": ...}], "triggers": [...]}

Formats: const_string, json_schema, any_text, regex, grammar (EBNF); sequence, or, optional, plus,
star, repeat; tag, triggered_tags, tags_with_separator, dispatch. Free text inside of a tag stops
at the first place where one of the tag's ends stands. Where texts overlap, the trigger that ends
first counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from rtlang.errors import GrammarError, GrammarTooLarge
from rtlang.grammar.ir import Alt, Dispatch, Expr, Grammar, Ref, Text
from rtlang.grammar.ir_build import alt, included, repeat, seq
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.structural_fields import invalid, read

MAX_DEPTH = 50
MAX_COUNT = 1_000

#: The grammar of a part that is a constraint of its own.
Inner = Callable[[GrammarSpec], Grammar]

#: Texts before which free text stops: the ends of the tag around it; None: there is no tag.
_Ends = tuple[str, ...] | None


def parse(spec: GrammarSpec, inner: Inner) -> Grammar:
    """The grammar of a structural tag (``spec.kind`` says that it is one).

    Raises:
        InvalidSchema: unknown or wrong fields, or triggers that cannot be told apart.
        UnsupportedKeyword: a format or an option that cannot be enforced.
        GrammarTooLarge: nested too deep, or a count too large.

    Those, and what ``inner`` raises, have the JSON pointer of the place in ``pointer``.
    """
    given: dict[str, Any] = json.loads(spec.source)
    if "structures" in given:
        node, at = _modern(given), ""
    else:
        if set(given) != {"type", "format"} or given["type"] != "structural_tag":
            raise invalid("", 'expected {"type": "structural_tag", "format": {...}}')
        node, at = given["format"], "/format"
    translation = _Translation(spec, inner)
    root = translation.format(node, at, None)
    return Grammar({"root": root, **translation.rules})


def _modern(given: dict[str, Any]) -> dict[str, Any]:
    """The older form as a format; errors keep to the newer names."""
    tags: list[Any] = []
    structures = given["structures"]
    if set(given) - {"type", "structures", "triggers"}:
        raise invalid("", "expected the fields structures and triggers only")
    if not isinstance(structures, list):
        raise invalid("/structures", "expected a list")
    for number, item in enumerate(structures):
        if not isinstance(item, dict) or set(item) != {"begin", "schema", "end"}:
            raise invalid(f"/structures/{number}", "expected the fields begin, schema and end")
        content = {"type": "json_schema", "json_schema": item["schema"]}
        tags.append({"begin": item["begin"], "content": content, "end": item["end"]})
    return {"type": "triggered_tags", "tags": tags, "triggers": given.get("triggers")}


class _Translation:
    def __init__(self, spec: GrammarSpec, inner: Inner) -> None:
        self.rules: dict[str, Expr] = {}
        self._spec = spec
        self._inner = inner
        self._depth = 0

    def format(self, node: object, at: str, ends: _Ends) -> Expr:
        """One format, at a JSON pointer."""
        if self._depth > MAX_DEPTH:
            raise GrammarTooLarge(f"formats nested deeper than {MAX_DEPTH}", limit="depth")
        fields = read(node, at)
        self._depth += 1
        made: Expr = getattr(self, f"_{fields['type']}")(fields, at, ends)
        self._depth -= 1
        return made

    def _const_string(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        return Text(fields["value"])

    def _any_text(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        return self._free(at, [], fields["excludes"], ends)

    def _json_schema(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        given = fields["max_whitespace_cnt"]
        whitespace = self._spec.whitespace if given is None else given
        return self._part(
            f"{at}/json_schema",
            lambda: GrammarSpec.json_schema(
                fields["json_schema"], whitespace=whitespace, additional=self._spec.additional
            ),
        )

    def _regex(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        return self._part(f"{at}/pattern", lambda: GrammarSpec.regex(fields["pattern"]))

    def _grammar(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        return self._part(f"{at}/grammar", lambda: GrammarSpec.ebnf(fields["grammar"]))

    def _part(self, at: str, make: Callable[[], GrammarSpec]) -> Ref:
        try:
            grammar = self._inner(make())
        except GrammarError as error:
            data = {**error.data, "pointer": at + error.data.get("pointer", "")}
            raise type(error)(f"{at}: {error.message}", **data) from error
        return included(self.rules, grammar, f"s{len(self.rules)}_")

    def _define(self, expr: Expr) -> Ref:
        name = f"t{len(self.rules)}"
        self.rules[name] = expr
        return Ref(name)

    def _sequence(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        return seq(self._elements(fields["elements"], f"{at}/elements", ends))

    def _or(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        return alt(self._elements(fields["elements"], f"{at}/elements", ends))

    def _elements(self, nodes: list[object], at: str, ends: _Ends) -> list[Expr]:
        return [self.format(node, f"{at}/{i}", ends) for i, node in enumerate(nodes)]

    def _optional(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        return repeat(self.format(fields["content"], f"{at}/content", ends), 0, 1)

    def _plus(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        return repeat(self.format(fields["content"], f"{at}/content", ends), 1, None)

    def _star(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        return repeat(self.format(fields["content"], f"{at}/content", ends), 0, None)

    def _repeat(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        low, high = fields["min"], None if fields["max"] == -1 else fields["max"]
        if high is not None and high < low:
            raise invalid(f"{at}/max", "max is below min")
        if max(low, high or 0) > MAX_COUNT:
            raise GrammarTooLarge(f"{at}: a count above {MAX_COUNT}", limit="repeat", pointer=at)
        return repeat(self.format(fields["content"], f"{at}/content", ends), low, high)

    def _tag(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        return seq([Text(fields["begin"]), self._inside(fields, at)])

    def _inside(self, fields: dict[str, Any], at: str) -> Expr:
        """A tag without its begin."""
        given = fields["end"]
        ends = (given,) if isinstance(given, str) else tuple(given)
        stops = tuple(end for end in ends if end)
        content = self.format(fields["content"], f"{at}/content", stops)
        return seq([content, alt([Text(end) for end in ends])])

    def _triggered_tags(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        triggers = fields["triggers"]
        groups: dict[str, list[Expr]] = {trigger: [] for trigger in triggers}
        whole: list[Expr] = []
        for number, node in enumerate(fields["tags"]):
            place = f"{at}/tags/{number}"
            tag = read(node, place, "tag")
            begin = tag["begin"]
            found = [trigger for trigger in groups if begin.startswith(trigger)]
            if len(found) != 1:
                message = f"begins with {len(found)} of the triggers, not with exactly one"
                raise invalid(f"{place}/begin", message)
            inside = self._define(self._inside(tag, place))
            groups[found[0]].append(seq([Text(begin[len(found[0]) :]), inside]))
            whole.append(seq([Text(begin), inside]))
        rules = [(trigger, self._define(Alt(tuple(g))).name) for trigger, g in groups.items()]
        first, once = fields["at_least_one"], fields["stop_after_first"]
        if first and once:
            return alt(whole)
        free = self._free(at, rules, fields["excludes"], ends, once=once)
        return seq([alt(whole), free]) if first else free

    def _tags_with_separator(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        tags: list[Expr] = []
        for number, node in enumerate(fields["tags"]):
            place = f"{at}/tags/{number}"
            tags.append(self._tag(read(node, place, "tag"), place, None))
        one: Expr = self._define(alt(tags))
        if not fields["stop_after_first"]:
            one = seq([one, repeat(seq([Text(fields["separator"]), one]), 0, None)])
        return one if fields["at_least_one"] else repeat(one, 0, 1)

    def _dispatch(self, fields: dict[str, Any], at: str, ends: _Ends) -> Expr:
        rules = [
            (trigger, self._define(self.format(node, f"{at}/rules/{i}/1", ())).name)
            for i, (trigger, node) in enumerate(fields["rules"])
        ]
        return self._free(at, rules, fields["excludes"], ends, once=not fields["loop"])

    def _free(
        self,
        at: str,
        rules: list[tuple[str, str]],
        excludes: Iterable[str],
        ends: _Ends,
        *,
        once: bool = False,
    ) -> Expr:
        """Free text with triggers; ``once``: the text ends with what the first one starts."""
        if ends == ():
            raise invalid(at, "free text in a tag needs an end that is not empty")
        triggers = [trigger for trigger, _ in rules]
        barred = tuple(dict.fromkeys((*excludes, *(ends or ()))))
        _check_apart(at, triggers, barred)
        if not once:
            return Dispatch(tuple(rules), barred)
        tags = alt([seq([Text(trigger), Ref(name)]) for trigger, name in rules])
        return seq([Dispatch((), (*barred, *triggers)), repeat(tags, 0, 1)])


def _check_apart(at: str, triggers: list[str], barred: tuple[str, ...]) -> None:
    """Whichever text comes must be known when it ends: none may be part of another."""
    for number, trigger in enumerate(triggers):
        for other in (*triggers[:number], *triggers[number + 1 :]):
            if trigger in other:
                raise invalid(at, f"the trigger {trigger!r} is a part of the trigger {other!r}")
        for text in barred:
            if trigger in text or text in trigger:
                message = f"the trigger {trigger!r} and the excluded or ending text {text!r}"
                raise invalid(at, f"{message}: one is a part of the other")
