"""Growth has a budget: lines, fields, inheritance, doors in the environment."""

from __future__ import annotations

import ast
import dataclasses

import pytest
from project_tree import Module, files, functions, modules

from rtlang.runtime.config import EngineConfig
from rtlang.runtime.server.config import ServerConfig

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60  # of the body: a signature and a contract may be as long as they need
MAX_CONFIG_FIELDS = 60

#: (module, variable): all that is read from the environment, none of it changes behaviour.
ENVIRONMENT = {
    ("rtlang.backends.anthropic", "ANTHROPIC_API_KEY"),  # secrets
    ("rtlang.backends.openai", "OPENAI_API_KEY"),
    ("rtlang.runtime.launch", "*"),  # handed to the scheduler's own process
    ("rtlang.runtime.server.keys", "RTLANG_API_KEY"),
    ("rtlang.runtime.server.supervisor", "*"),  # handed to the frontends' processes
    ("rtlang.runtime.models.convert", "XDG_CACHE_HOME"),
}

every_module = pytest.mark.parametrize("module", modules(), ids=lambda m: str(m.path))


@every_module
def test_files_are_short(module: Module) -> None:
    assert len(module.source.splitlines()) <= MAX_FILE_LINES


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    end = body[-1].end_lineno if body else None
    return end - body[0].lineno + 1 if end is not None else 0


@every_module
def test_functions_are_short(module: Module) -> None:
    long = [
        f"{module.path}:{f.lineno} {f.name}: {body_lines(f)} lines"
        for f in functions(module.tree)
        if body_lines(f) > MAX_FUNCTION_LINES
    ]
    assert not long


def test_length_of_a_function_is_that_of_its_body() -> None:
    lines = [
        "def f(",
        "    a,",
        "):",
        '    """One.',
        "",
        '    Two."""',
        "    x = 1",
        "    return x",
    ]
    assert [body_lines(f) for f in functions(ast.parse("\n".join(lines)))] == [2]


def test_configuration_is_small_and_documented() -> None:
    fields = dataclasses.fields(EngineConfig) + dataclasses.fields(ServerConfig)
    assert len(fields) <= MAX_CONFIG_FIELDS
    assert [f.name for f in fields if not f.metadata.get("doc")] == []


def read_from_environment(module: Module) -> set[str]:
    """Names of the variables read; ``*`` for a use of the whole environment."""
    found: set[str] = set()
    accounted: set[ast.AST] = set()
    for node in ast.walk(module.tree):  # outer nodes come first
        name: ast.expr | None = None
        readers = ("environ.get", "getenv")
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(readers):
            name = node.args[0]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
            name = node.slice
        if name is not None:
            accounted |= set(ast.walk(node))
            found.add(str(name.value) if isinstance(name, ast.Constant) else "?")
        elif node not in accounted and ast.unparse(node) in {"os.environ", "os.getenv"}:
            found.add("*")
    return found


def test_no_switch_in_the_environment() -> None:
    read = {(m.name, variable) for m in modules() for variable in read_from_environment(m)}
    assert read == ENVIRONMENT


def test_environment_is_imported_as_os_only() -> None:
    wrong = [
        f"{m.path}:{node.lineno}"
        for m in modules()
        for node in ast.walk(m.tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and {a.name for a in node.names} & {"environ", "getenv", "environb"}
    ]
    assert not wrong


def test_inheritance_has_one_level_and_no_mixins() -> None:
    bases = {
        node.name: [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
        for m in modules()
        if m.name != "rtlang.errors"  # a tree of exceptions is one by nature
        for node in ast.walk(m.tree)
        if isinstance(node, ast.ClassDef)
    }
    deep = [
        name
        for name, parents in bases.items()
        if any(grandparent in bases for parent in parents for grandparent in bases.get(parent, []))
    ]
    assert not deep
    assert not [name for name in bases if name.endswith("Mixin")]


def test_every_module_says_what_it_is_for() -> None:
    assert [str(m.path) for m in modules() if not ast.get_docstring(m.tree)] == []


def test_names_of_test_files_are_unique() -> None:
    names = [path.name for path in files("tests") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
