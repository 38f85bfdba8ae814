"""The project's own files and what they import, for the tests that hold its rules."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("rtlang", "runtime", "kernels", "grammar")
LINKS = ("runtime", "kernels", "grammar")


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported module. ``lazy``: inside a function; ``typing``: under ``TYPE_CHECKING``."""

    target: str
    line: int
    lazy: bool
    typing: bool


@dataclasses.dataclass(frozen=True)
class Module:
    """A module of the project: its file, relative to the root, and its importable name."""

    path: Path
    name: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, str(self.path))

    @cached_property
    def source(self) -> str:
        return (ROOT / self.path).read_text()

    @cached_property
    def imports(self) -> list[Import]:
        """Every import; ``from a import b`` counts as a.b where that is a module, else as a."""
        return list(self._imports(self.tree, lazy=False, typing=False))

    def _imports(self, node: ast.AST, *, lazy: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, lazy, typing)
            elif isinstance(child, ast.ImportFrom):
                base = "." * child.level + (child.module or "")
                for alias in child.names:
                    inner = f"{base}.{alias.name}"
                    yield Import(inner if _is_module(inner) else base, child.lineno, lazy, typing)
            elif isinstance(child, ast.stmt) and (named := _imported_by_name(child)) is not None:
                yield Import(named, child.lineno, lazy, typing)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from self._imports(child, lazy=lazy or function, typing=typing or guard)


def _imported_by_name(node: ast.stmt) -> str | None:
    """x of the statement ``… = importlib.import_module("x")``."""
    if isinstance(node, ast.Assign | ast.Expr | ast.Return) and isinstance(node.value, ast.Call):
        called, arguments = ast.unparse(node.value.func), node.value.args
        if called.endswith("import_module") and isinstance(arguments[0], ast.Constant):
            return str(arguments[0].value)
    return None


def _is_module(name: str) -> bool:
    if not name.startswith("rtlang."):
        return False
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _name(path: Path) -> str:
    parts = list(path.with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts if parts[0] == "rtlang" else ["rtlang", *parts])


def files(folder: str) -> list[Path]:
    """The Python files of a top-level folder, relative to the root; its links not followed."""
    found: list[Path] = []
    for directory, _, names in os.walk(ROOT / folder, followlinks=False):
        found += [Path(directory, name) for name in names if name.endswith(".py")]
    return sorted(path.relative_to(ROOT) for path in found)


def modules() -> list[Module]:
    """The modules that a wheel holds, sorted by path."""
    return [Module(path, _name(path)) for folder in FOLDERS for path in files(folder)]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def run_python(code: str, cwd: Path = ROOT, path: Path = ROOT) -> str:
    """What a fresh interpreter prints that runs ``code``; its error output if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
