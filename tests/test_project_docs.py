"""The documentation names what exists, and nothing else."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from conftest import MakeEngine
from project_tree import ROOT, modules

from rtlang.runtime.config import EngineConfig
from rtlang.testing import ScriptedModel

ROW = re.compile(r"^\| `(\S+)` \| (.*) \|$", re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rows(page: str) -> dict[str, str]:
    """First cell to the rest of a row, in all tables of a page."""
    return dict(ROW.findall((ROOT / "docs" / page).read_text()))


def test_architecture_describes_every_module_in_one_sentence() -> None:
    described = rows("architecture.md")
    existing = {str(m.path) for m in modules() if m.path.name != "__init__.py"}
    assert sorted(described) == sorted(existing)
    assert [path for path, text in described.items() if not text.endswith(".")] == []


@pytest.mark.parametrize("name", ["engine.md", "server.md"])
def test_every_option_is_documented_as_it_is_defined(name: str) -> None:
    page, writer = (ROOT / "docs" / name).read_text(), _writer()
    assert page == writer.rendered(page, writer.PAGES[name]), "run make docs"


def _writer() -> ModuleType:
    path = ROOT / "docs" / "write_configuration.py"
    spec = importlib.util.spec_from_file_location("write_configuration", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_statistic_is_documented(make_engine: MakeEngine) -> None:
    options = dict(ROW.findall(_writer().table(EngineConfig)))
    stats = make_engine(ScriptedModel(["a"])).stats()
    assert set(rows("engine.md")) - set(options) == set(stats)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_examples_compile(page: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        compile(code, page.name, "exec")


def test_first_program_of_the_readme_runs(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    engine = make_engine(ScriptedModel(["Because of Rayleigh scattering."]))
    monkeypatch.setattr("rtlang.Engine", lambda **_: engine)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert "Because of Rayleigh scattering." in capsys.readouterr().out
