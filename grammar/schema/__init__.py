"""JSON schema as grammar: what a schema's grammar accepts, the schema accepts."""

from __future__ import annotations

from rtlang.grammar.schema.text import parse_schema
from rtlang.grammar.schema.translation import SchemaOptions, translate

__all__ = ["SchemaOptions", "parse_schema", "translate"]
