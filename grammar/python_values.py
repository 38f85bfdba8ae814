"""Shapes of Python values: the JSON schema of each, and the value that parsed JSON makes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Protocol

Schema = dict[str, Any]


class Mismatch(ValueError):
    """The JSON is of another shape; a union then tries its next member."""


class Shape(Protocol):
    """``schema`` may refer to the definitions that its maker has collected."""

    @property
    def schema(self) -> Schema: ...

    def value(self, given: Any) -> Any:
        """The value of parsed JSON. Raises ``Mismatch``, or what the type's own checks raise."""
        ...


@dataclasses.dataclass(frozen=True)
class Scalar:
    """null, a boolean, an integer, a number or a string. A number without a point is a float."""

    kind: type

    @property
    def schema(self) -> Schema:
        return {"type": _NAMES[self.kind]}

    def value(self, given: Any) -> Any:
        if self.kind is float and type(given) is int:
            return float(given)
        if type(given) is not self.kind:
            raise Mismatch(f"expected {_NAMES[self.kind]}, got {_shown(given)}")
        return given


_NAMES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}


@dataclasses.dataclass(frozen=True)
class Constants:
    """One of a few: (as JSON, the value) pairs."""

    pairs: tuple[tuple[Any, Any], ...]

    @property
    def schema(self) -> Schema:
        return {"enum": [constant for constant, _ in self.pairs]}

    def value(self, given: Any) -> Any:
        for constant, value in self.pairs:
            # 1 == True in Python, not in JSON.
            if isinstance(constant, bool) is isinstance(given, bool) and constant == given:
                return value
        raise Mismatch(f"expected one of {[c for c, _ in self.pairs]}, got {_shown(given)}")


@dataclasses.dataclass(frozen=True)
class AnyJson:
    name: str  # of the definition that it refers to

    @property
    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self.name}"}

    def value(self, given: Any) -> Any:
        return given

    def definition(self) -> Schema:
        """Said in full, so that closing all objects that say nothing does not close these."""
        types = ["null", "boolean", "number", "string", "array", "object"]
        return {"type": types, "items": self.schema, "additionalProperties": self.schema}


@dataclasses.dataclass(frozen=True)
class Items:
    """A list, or (``many``: tuple) a tuple of any length."""

    item: Shape
    many: type = list

    @property
    def schema(self) -> Schema:
        return {"type": "array", "items": self.item.schema}

    def value(self, given: Any) -> Any:
        if not isinstance(given, list):
            raise Mismatch(f"expected an array, got {_shown(given)}")
        return self.many(self.item.value(part) for part in given)


@dataclasses.dataclass(frozen=True)
class Row:
    """A tuple of so many items."""

    items: Sequence[Shape]

    @property
    def schema(self) -> Schema:
        count = len(self.items)
        if not count:
            return {"type": "array", "maxItems": 0}
        listed = [item.schema for item in self.items]
        return {"type": "array", "prefixItems": listed, "minItems": count, "maxItems": count}

    def value(self, given: Any) -> tuple[Any, ...]:
        if not isinstance(given, list) or len(given) != len(self.items):
            raise Mismatch(f"expected an array of {len(self.items)}, got {_shown(given)}")
        return tuple(item.value(part) for item, part in zip(self.items, given, strict=True))


@dataclasses.dataclass(frozen=True)
class Names:
    """A dictionary with any keys."""

    item: Shape

    @property
    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": self.item.schema}

    def value(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise Mismatch(f"expected an object, got {_shown(given)}")
        return {name: self.item.value(part) for name, part in given.items()}


@dataclasses.dataclass(frozen=True)
class OneOf:
    """A union: the first member that fits."""

    members: Sequence[Shape]

    @property
    def schema(self) -> Schema:
        return {"anyOf": [member.schema for member in self.members]}

    def value(self, given: Any) -> Any:
        reasons: list[str] = []
        for member in self.members:
            try:
                return member.value(given)
            except ValueError as error:  # Pydantic's are ValueErrors, too
                reasons.append(str(error))
        raise Mismatch("; ".join(reasons))


@dataclasses.dataclass(frozen=True)
class Described:
    shape: Shape
    description: str

    @property
    def schema(self) -> Schema:
        return {**self.shape.schema, "description": self.description}

    def value(self, given: Any) -> Any:
        return self.shape.value(given)


@dataclasses.dataclass(eq=False)
class Record:
    """A dataclass or a ``TypedDict``: a closed object. ``name``: its definition's, if it needs one
    because it is inside itself."""

    kind: Any
    fields: dict[str, Shape] = dataclasses.field(default_factory=dict)
    required: list[str] = dataclasses.field(default_factory=list)
    name: str = ""

    @property
    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self.name}"} if self.name else self.definition()

    def definition(self) -> Schema:
        return {
            "type": "object",
            "properties": {name: shape.schema for name, shape in self.fields.items()},
            "required": list(self.required),
            "additionalProperties": False,
        }

    def value(self, given: Any) -> Any:
        fits = isinstance(given, dict) and set(self.required) <= given.keys() <= set(self.fields)
        if not fits:
            raise Mismatch(f"expected {self.kind.__name__}, got {_shown(given)}")
        return self.kind(**{name: self.fields[name].value(part) for name, part in given.items()})


@dataclasses.dataclass(frozen=True)
class Model:
    """A Pydantic model, or what has the same two methods."""

    kind: Any
    schema: Schema

    def value(self, given: Any) -> Any:
        return self.kind.model_validate_json(json.dumps(given))


def _shown(given: Any) -> str:
    text = json.dumps(given, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
