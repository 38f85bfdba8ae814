"""What an installation holds, and that a clone works as one from its own root."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from project_tree import FOLDERS, LINKS, ROOT, modules, run_python

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the packaged files, as pip would build it."""
    copy = tmp_path_factory.mktemp("source")
    for name in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = "import setuptools.build_meta as b; b.build_wheel('dist')"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = (copy / "dist").glob("*.whl")
    return built


def test_wheel_holds_the_modules_and_the_page_and_nothing_else(wheel: Path) -> None:
    expected = {
        path if path.parts[0] == "rtlang" else Path("rtlang", path)
        for path in (module.path for module in modules())
    }
    expected |= {
        Path("rtlang", path.relative_to(ROOT)) for path in ROOT.glob("runtime/server/page/*")
    }
    names = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    metadata = {name for name in names if ".dist-info" in name.parts[0]}
    assert names - metadata == expected


def test_wheel_works_away_from_the_clone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import rtlang.runtime.scheduler, rtlang.kernels.norm as m; print(m.__file__)"
    assert run_python(code, cwd=tmp_path, path=tmp_path).startswith(str(tmp_path))


@pytest.mark.parametrize("name", LINKS)
def test_links_are_relative_and_lead_to_the_folder_beside(name: str) -> None:
    link = ROOT / "rtlang" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"


def test_kernels_is_no_package_of_its_own() -> None:
    # transformers imports a package called kernels if it finds one, and the root is on the path.
    assert list((ROOT / "kernels").rglob("__init__.py")) == []


def test_transformers_imports_from_the_root() -> None:
    code = "from transformers import LlamaForCausalLM; print(LlamaForCausalLM.__name__)"
    assert run_python(code).strip() == "LlamaForCausalLM"


def test_tests_are_no_package_and_the_root_has_no_conftest() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    assert not (ROOT / "conftest.py").exists()


def requirements() -> list[Requirement]:
    """Of an installation with ``[dev]``, which is what make installs."""
    extras = PROJECT["project"]["optional-dependencies"]
    found = [Requirement(line) for line in PROJECT["project"]["dependencies"] + extras["dev"]]
    for own in [each for each in found if each.name == PROJECT["project"]["name"]]:
        found.remove(own)
        found += [Requirement(line) for extra in sorted(own.extras) for line in extras[extra]]
    return sorted(set(found), key=str)


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in pairs}


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    assert pins()[canonicalize_name(requirement.name)] in requirement.specifier


def test_pins_carry_no_local_tag() -> None:
    assert [name for name, version in pins().items() if version.local] == []


def test_every_requirement_is_used() -> None:
    imported = {i.target.split(".")[0] for module in modules() for i in module.imports}
    names = {Requirement(line).name for line in PROJECT["project"]["dependencies"]}
    # transformers reads GGUF files through gguf, moves weights with accelerate, renders chat
    # templates with jinja2.
    through_transformers = {"accelerate", "gguf", "jinja2"}
    modules_of = {"pyzmq": "zmq"}
    unused = {name for name in names if modules_of.get(name, name) not in imported}
    assert unused <= through_transformers


def test_every_import_is_required() -> None:
    known = {canonicalize_name(r.name) for r in requirements()} | {"rtlang", "zmq"}
    known |= {
        canonicalize_name(Requirement(line).name)
        for extra in ("gpu", "otel", "server")
        for line in PROJECT["project"]["optional-dependencies"][extra]
    }
    imported = {i.target.split(".")[0] for module in modules() for i in module.imports}
    # Of flashinfer-python, opentelemetry-sdk and pydantic.
    imported -= {*sys.stdlib_module_names, "flashinfer", "opentelemetry", "pydantic_core"}
    assert {name for name in imported if canonicalize_name(name) not in known} == set()


def test_command_line_entry_exists() -> None:
    module, _, function = PROJECT["project"]["scripts"]["rtlang"].partition(":")
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_ci_runs_the_readmes_command() -> None:
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    lines = [line for line in run.read_text().splitlines() if not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]
