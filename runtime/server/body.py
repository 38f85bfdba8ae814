"""Body: the base of request bodies: text that has a UTF-8 form, and every field accounted for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Set
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from rtlang.errors import InvalidParameter, Unsupported

#: Sequences of one call: prompts times n.
MAX_SEQUENCES = 4096
#: Lists and objects inside of each other. Templates and schemas are walked by recursion.
MAX_DEPTH = 100
#: Lists and objects in all: millions fit into a body, and take seconds to be read.
MAX_PARTS = 100_000


STRICT = ConfigDict(extra="allow", arbitrary_types_allowed=False, strict=True)


class Body(BaseModel):
    """Numbers are numbers (no "3", no true), null is "not given" for every field, and what is
    refused can be told in an answer. Of fields that are not declared, ``WITHOUT_EFFECT`` names
    those that are accepted and change nothing, ``NOT_BUILT`` those that are refused with a reason;
    all others are refused as unknown."""

    model_config = STRICT

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset()
    NOT_BUILT: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_json(cls, data: Any) -> Any:
        return without_nulls(data)

    @model_validator(mode="after")
    def _refuse_unknown(self) -> Body:
        refuse_unknown(self.model_extra or {}, self.WITHOUT_EFFECT, self.NOT_BUILT)
        return self

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the fields that are not null."""
        return given(self, *names)


def without_nulls(data: Any) -> Any:
    """A body without the fields that are null. Raises what ``check_json`` does."""
    check_json(data)
    if isinstance(data, dict):
        return {name: value for name, value in data.items() if value is not None}
    return data


def refuse_unknown(
    extra: Mapping[str, Any], without_effect: Set[str], not_built: Mapping[str, str]
) -> None:
    """Raises ``Unsupported`` or ``InvalidParameter`` for the first field that is not accepted."""
    for name in extra:
        if name in without_effect:
            continue
        if name in not_built:
            raise Unsupported(f"{name}: {not_built[name]}", param=name)
        raise InvalidParameter(f"unknown field {name!r}", param=name)


def given(body: BaseModel, *names: str) -> dict[str, Any]:
    """Those of a body's fields that are not null."""
    return {name: value for name in names if (value := getattr(body, name)) is not None}


def check_count(num_sequences: int) -> None:
    """Raises ``InvalidParameter`` for more than one call may have."""
    if num_sequences > MAX_SEQUENCES:
        message = (
            f"{num_sequences} sequences (prompts times n), and a call may have {MAX_SEQUENCES}"
        )
        raise InvalidParameter(message, param="n")


def check_json(data: Any) -> None:
    """Raises ``InvalidParameter`` for lone surrogates, for nesting beyond ``MAX_DEPTH``, and for
    more than ``MAX_PARTS`` in a field; its ``param`` is the outermost field."""
    if not isinstance(data, dict):
        _check_under(data, None)
        return
    for name, value in data.items():
        _check_text(name, None)
        _check_under(value, name)


def _check_under(value: Any, param: str | None) -> None:
    level, num_parts, where = [value], 0, param or "the body"
    for _ in range(MAX_DEPTH):
        texts = [item for item in level if type(item) is str]
        for text in texts:
            _check_text(text, param)
        lists = [item for item in level if type(item) is list]
        objects = [item for item in level if type(item) is dict]
        if not lists and not objects:
            return
        num_parts += len(lists) + len(objects)
        if num_parts > MAX_PARTS:
            message = f"{where}: more than {MAX_PARTS} lists and objects"
            raise InvalidParameter(message, param=param)
        for item in objects:
            for key in item:
                _check_text(key, param)
        level = [
            child
            for child in itertools.chain(*lists, *(item.values() for item in objects))
            if type(child) is not int
        ]
    raise InvalidParameter(f"{where}: nested deeper than {MAX_DEPTH} levels", param=param)


def _check_text(text: str, param: str | None) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = param or "the body"
        message = f"{where}: a text has half a character (a lone surrogate)"
        raise InvalidParameter(message, param=param) from error
