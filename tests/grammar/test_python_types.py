"""Types as constraints: which texts are allowed, which values they give, what is refused."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, TypedDict, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtlang.errors import ProgramError, UnsupportedKeyword
from rtlang.grammar import accepts
from rtlang.grammar.python_types import PythonType, parse, schema_of
from rtlang.grammar.translate import translate


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class City:
    name: str
    population: int
    capital: bool
    colours: list[Colour] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Tree:
    label: str
    children: list[Tree]


@dataclasses.dataclass
class Checked:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


Id = NewType("Id", int)


class FakeModel:
    """The two methods that Pydantic models have."""

    def __init__(self, given: Any) -> None:
        self.given = given

    @classmethod
    def model_json_schema(cls, ref_template: str) -> dict[str, Any]:
        part = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        ref = {"$ref": ref_template.format(model="Part")}
        hint = {"oneOf": [ref, {"type": "null"}], "discriminator": {"propertyName": "x"}}
        return {
            "type": "object",
            "properties": {"part": ref, "discriminator": hint},
            "required": ["part"],
            "$defs": {"Part": part},
        }

    @classmethod
    def model_validate_json(cls, text: str) -> FakeModel:
        return cls(json.loads(text))


def allows(kind: Any, text: str) -> bool:
    spec = PythonType(kind).spec()
    assert spec is not None
    return accepts(spec, text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "-12", -12),
        (int, "+7", 7),
        (int, "0", 0),
        (Id, "5", 5),
        (float, "-1.5e-3", -0.0015),
        (float, "12", 12.0),
        (float, "1E+299", 1e299),
        (bool, "True", True),
        (bool, "False", False),
        (Literal["a", "a b"], "a b", "a b"),
        (Literal[1, "one", True], "True", True),
        (Colour, "blue", Colour.BLUE),
        (Level, "2", Level.HIGH),
        (Literal[1, "1"], '"1"', "1"),
        (Literal["a", None], "null", None),
        (Literal[Colour.RED], "red", Colour.RED),
        (Optional[int], "null", None),  # noqa: UP045
        (int | None, "3", 3),
        (Union[bool, int], "1", 1),  # noqa: UP007
        (float | int, "3", 3.0),
        (list[int], "[1, 2]", [1, 2]),
        (list, '[1,{"a":null}]', [1, {"a": None}]),
        (tuple[int, str], '[1, "a"]', (1, "a")),
        (tuple[int, ...], "[1,2,3]", (1, 2, 3)),
        (tuple[()], "[]", ()),
        (dict[str, bool], '{"a": true}', {"a": True}),
        (dict[str, Any], '{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        (Movie, '{"title": "M"}', {"title": "M"}),
        (Movie, '{"title": "M", "year": 1931}', {"title": "M", "year": 1931}),
        (Annotated[list[str], "names"], '["x"]', ["x"]),
        (
            City,
            '{"name": "O\'Neil\\u2013\\"x\\"", "population": 3, "capital": false}',
            City('O\'Neil\u2013"x"', 3, False),
        ),
        (
            list[City],
            '[{"name":"é🙂","population":-1,"capital":true,"colours":["red"]}]',
            [City("é🙂", -1, True, [Colour.RED])],
        ),
        (
            Tree,
            '{"label":"a","children":[{"label":"b","children":[]}]}',
            Tree("a", [Tree("b", [])]),
        ),
        (City | Movie, '{"title": "M"}', {"title": "M"}),
    ],
    ids=str,
)
def test_a_texts_value(kind: Any, text: str, value: Any) -> None:
    assert allows(kind, text)
    found = parse(kind, text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "1.0"),
        (int, "007"),
        (int, " 1"),
        (int, ""),
        (float, "1."),
        (float, ".5"),
        (float, "1e300"),
        (float, "inf"),
        (bool, "true"),
        (Literal["a", "a b"], "a "),
        (Colour, '"red"'),
        (int | None, "None"),
        (list[int], "[1,"),
        (list[int], '["1"]'),
        (tuple[int, str], "[1]"),
        (tuple[int, str], '[1,"a",2]'),
        (dict[str, bool], '{"a": 1}'),
        (Movie, "{}"),
        (Movie, '{"title": "M", "more": 1}'),
        (City, '{"name": "x", "population": 3}'),
        (City, '{"name": "x", "population": 3.5, "capital": true}'),
        (Tree, '{"label":"a","children":[{"label":"b"}]}'),
    ],
    ids=str,
)
def test_a_text_that_is_no_value_is_not_allowed(kind: Any, text: str) -> None:
    assert not allows(kind, text)


def test_plain_numbers_are_finite() -> None:
    for text in ("9" * 300, "12345678.5e299", "-1e-999"):
        assert allows(float, text)
        assert abs(parse(float, text)) < float("inf")
    assert allows(int, "9" * 300) and parse(int, "9" * 300) == 10**300 - 1


def test_text_alone_is_free() -> None:
    assert PythonType(str).spec() is None
    assert parse(str, 'as "it" is') == 'as "it" is'
    assert schema_of(str) == {"type": "string"}


def test_a_schema_is_closed_and_lists_what_has_no_default() -> None:
    schema = schema_of(City)
    assert schema["required"] == ["name", "population", "capital"]
    assert schema["additionalProperties"] is False and "$defs" not in schema
    assert schema["properties"]["colours"] == {
        "type": "array",
        "items": {"enum": ["red", "blue"]},
    }
    assert schema_of(Tree)["$ref"] == "#/$defs/Tree"
    assert schema_of(Annotated[int, "years"]) == {"type": "integer", "description": "years"}


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (set, "set"),
        (bytes, "bytes"),
        (complex, "complex"),
        (list[set[int]], "set"),
        (dict[int, str], "text keys"),
        (dict[str, tuple[int, frozenset[int]]], "frozenset"),
        (Iterable[int], "Iterable"),
        (Annotated[int, 3], "would not be enforced"),
        (int | set, "set"),
        ("City", "City"),
        (3, "3"),
    ],
    ids=str,
)
def test_what_has_no_constraint_is_refused_by_name(kind: Any, part: str) -> None:
    with pytest.raises(ProgramError, match=part):
        PythonType(kind)


@dataclasses.dataclass
class Odd:
    fine: int
    inner: list[dict[str, set]]  # type: ignore[type-arg]


@dataclasses.dataclass
class WithInit:
    x: int
    y: dataclasses.InitVar[int]


def test_a_refusal_says_where_the_part_is() -> None:
    with pytest.raises(ProgramError, match=r"type set \(Odd\.inner\[\]\[\]\)") as raised:
        PythonType(Odd)
    assert raised.value.part == "Odd.inner[][]"
    with pytest.raises(ProgramError, match="fields alone"):
        PythonType(WithInit)
    with pytest.raises(ProgramError, match="no members"):
        PythonType(enum.Enum("Nothing", []))


def test_models_give_their_own_schema_and_values() -> None:
    assert allows(FakeModel, '{"part": {"x": 1}}')
    assert not allows(FakeModel, '{"part": {"x": 1}, "more": 2}')  # closed
    assert not allows(FakeModel, '{"part": {}}')
    assert parse(FakeModel, '{"part": {"x": 1}}').given == {"part": {"x": 1}}
    both = dict[str, FakeModel | int]
    assert allows(both, '{"a": {"part": {"x": 1}, "discriminator": null}, "b": 2}')
    assert parse(both, '{"a": {"part": {"x": 1}}}')["a"].given == {"part": {"x": 1}}


def test_a_models_keyword_that_cannot_be_enforced_is_named() -> None:
    class Model(FakeModel):
        @classmethod
        def model_json_schema(cls, ref_template: str) -> dict[str, Any]:
            return {"$ref": "https://example.com/schema.json"}

    spec = PythonType(Model).spec()
    assert spec is not None
    with pytest.raises(UnsupportedKeyword):
        translate(spec)


def test_the_types_own_checks_are_told() -> None:
    assert allows(Checked, '{"low": 2, "high": 1}')
    with pytest.raises(ValueError, match="low is above high"):
        parse(Checked, '{"low": 2, "high": 1}')
    with pytest.raises(ValueError, match="expected City"):
        PythonType(City).value({"name": 3})


def test_white_space_is_for_json_only() -> None:
    spec = PythonType(list[int]).spec(whitespace=0)
    assert spec is not None
    assert accepts(spec, "[1,2]") and not accepts(spec, "[1, 2]")
    with pytest.raises(ProgramError, match="plain text"):
        PythonType(int).spec(whitespace=0)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.integers(), st.booleans())
def test_every_value_can_be_written(name: str, population: int, capital: bool) -> None:
    city = City(name, population, capital)
    for ascii_only in (True, False):
        text = json.dumps(
            {"name": name, "population": population, "capital": capital}, ensure_ascii=ascii_only
        )
        assert allows(City, text)
        assert parse(City, text) == city
