"""Writes the tables of options into the documentation, from their one definition."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rtlang.runtime.config import EngineConfig
from rtlang.runtime.server.config import ServerConfig

#: Which page holds the table of which configuration.
PAGES: dict[str, Any] = {"engine.md": EngineConfig, "server.md": ServerConfig}
BEGIN = "<!-- options: written by `make docs` -->\n"
END = "<!-- end of options -->\n"


def table(config: Any) -> str:
    """A Markdown row for each option, in the order of the dataclass."""
    rows = [
        f"| `{field.name}` | `{field.default!r}` | {field.metadata['doc'].replace('|', ',')} |\n"
        for field in dataclasses.fields(config)
    ]
    return "| option | default | meaning |\n|---|---|---|\n" + "".join(rows)


def rendered(page: str, config: Any) -> str:
    """The page with a fresh table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + table(config) + "\n" + END + after


if __name__ == "__main__":
    for name, config in PAGES.items():
        path = Path(__file__).with_name(name)
        path.write_text(rendered(path.read_text(), config))
