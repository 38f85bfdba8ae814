"""What a docstring says of a function and of its parameters, in the three usual styles."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import NamedTuple

_PARAMETERS = frozenset({"args", "arguments", "parameters", "keyword args", "other parameters"})
_HEADS = "args|arguments|parameters|keyword args|other parameters|returns?|yields?|raises|"
_HEADS += "attributes|examples?|notes?|references|see also|warns|warnings?|todo"
_HEAD = re.compile(rf"({_HEADS}):?", re.IGNORECASE)
_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*(?::(.*))?")
_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:(.*)")


class Documented(NamedTuple):
    summary: str  # all that is not about parameters, results and the like
    parameters: dict[str, str]  # name -> description, of those that have one


def read(doc: str | None) -> Documented:
    """``Args:`` (Google), underlined ``Parameters`` (NumPy) and ``:param x:`` (reST) are known;
    whatever else a docstring has belongs to the summary, up to the first section."""
    lines = inspect.cleandoc(doc or "").splitlines()
    first = next((i for i in range(len(lines)) if _starts_section(lines, i)), len(lines))
    summary = "\n".join(lines[:first]).strip()
    found: dict[str, str] = {}
    at = first
    while at < len(lines):
        end = next((i for i in range(at + 1, len(lines)) if _starts_section(lines, i)), len(lines))
        found |= _parameters(lines[at:end])
        at = end
    return Documented(summary, {name: text for name, text in found.items() if text})


def _starts_section(lines: Sequence[str], at: int) -> bool:
    line = lines[at]
    if _FIELD.match(line):
        return True
    if not _HEAD.fullmatch(line.rstrip()):
        return False
    following = lines[at + 1] if at + 1 < len(lines) else ""
    return line.rstrip().endswith(":") or _underlines(following)


def _underlines(line: str) -> bool:
    return re.fullmatch(r"-{3,}\s*", line) is not None


def _parameters(section: Sequence[str]) -> dict[str, str]:
    if field := _FIELD.match(section[0]):
        kind, words, text = field.groups()
        name = (words or "").split()[-1:]
        if kind not in ("param", "parameter", "arg", "argument") or not name:
            return {}
        return {name[0].lstrip("*"): _joined([text, *section[1:]])}
    if section[0].strip().rstrip(":").lower() not in _PARAMETERS:
        return {}
    underlined = len(section) > 1 and _underlines(section[1])
    return _items(section[2 if underlined else 1 :], typed=underlined)


def _items(lines: Sequence[str], *, typed: bool) -> dict[str, str]:
    """``typed``: behind an item's colon stands its type, not its description."""
    filled = [line for line in lines if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    found: dict[str, list[str]] = {}
    texts: list[str] = []
    for line in filled:
        item = _ITEM.fullmatch(line.strip())
        if len(line) - len(line.lstrip()) == margin and item:
            texts = found.setdefault(item[1], [])
            texts += [item[2] or ""] if not typed else []
        else:
            texts.append(line)
    return {name: _joined(lines) for name, lines in found.items()}


def _joined(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())
