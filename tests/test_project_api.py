"""The public names: deliberate, sorted, and each of them says what it is."""

from __future__ import annotations

import tomllib
import types

import pytest
from project_tree import ROOT

import rtlang


def visible() -> set[str]:
    """What a reader of ``dir(rtlang)`` would take for public: ours, no module, no underscore."""
    return {
        name
        for name in dir(rtlang)
        if not name.startswith("_")
        and not isinstance(getattr(rtlang, name), types.ModuleType)
        and _home(getattr(rtlang, name)).startswith("rtlang")
    }


def _home(value: object) -> str:
    return str(getattr(value, "__module__", type(value).__module__))


def test_all_is_sorted_and_is_what_is_visible() -> None:
    assert sorted(rtlang.__all__) == list(rtlang.__all__)
    assert set(rtlang.__all__) == visible()


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(rtlang, "no_such_name")  # noqa: B009


@pytest.mark.parametrize("name", rtlang.__all__)
def test_public_object_is_documented(name: str) -> None:
    value = getattr(rtlang, name)
    assert (value if callable(value) else type(value)).__doc__


@pytest.mark.parametrize("name", rtlang.__all__)
def test_public_class_has_a_repr(name: str) -> None:
    value = getattr(rtlang, name)
    if isinstance(value, type):
        assert "__repr__" in {name for kind in value.__mro__[:-1] for name in vars(kind)}


def test_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert rtlang.__version__ == project["version"]
