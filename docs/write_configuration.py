"""Writes the table of the engine's options into docs/engine.md, from their one definition."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rtlang.runtime.config import EngineConfig

PAGE = Path(__file__).with_name("engine.md")
BEGIN = "<!-- options: written by `make docs` -->\n"
END = "<!-- end of options -->\n"


def table() -> str:
    """A Markdown row for each option, in the order of ``EngineConfig``."""
    rows = [
        f"| `{field.name}` | `{field.default!r}` | {field.metadata['doc'].replace('|', ',')} |\n"
        for field in dataclasses.fields(EngineConfig)
    ]
    return "| option | default | meaning |\n|---|---|---|\n" + "".join(rows)


def rendered(page: str) -> str:
    """The page with a fresh table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + table() + "\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
