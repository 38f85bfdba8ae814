"""Who may import whom: the arrows between the folders, and what imports may cost."""

from __future__ import annotations

import graphlib
import json

import pytest
from project_tree import Module, modules, run_python

#: What of the runtime the language may know: its vocabulary and the handle of an engine.
CLIENT_SURFACE = {
    "rtlang.runtime.chunk",
    "rtlang.runtime.config",
    "rtlang.runtime.engine",
    "rtlang.runtime.job",
    "rtlang.runtime.messages",
    "rtlang.runtime.result",
    "rtlang.runtime.sampling.seeds",
    "rtlang.runtime.sampling_params",
    "rtlang.runtime.tokenizer",
    "rtlang.runtime.tokenizer_files",
    "rtlang.runtime.tools.describe",
    "rtlang.runtime.tools.formats",
    "rtlang.runtime.tools.style",
}

#: Of the grammars: constraints as data, and what reads them. None of it matches tokens.
GRAMMAR_SURFACE = {
    "rtlang.grammar.captures",
    "rtlang.grammar.checks",
    "rtlang.grammar.emit",
    "rtlang.grammar.ir",
    "rtlang.grammar.ir_build",
    "rtlang.grammar.python_types",
    "rtlang.grammar.spec",
    "rtlang.grammar.translate",
}

#: Area of the importing module -> areas that it may import. ``errors`` is the leaf.
MAY_IMPORT = {
    "errors": set[str](),
    "kernels": {"kernels", "errors"},
    "grammar": {"grammar", "errors"},
    "runtime": {"runtime", "kernels", "grammar", "errors"},
    "language": {"language", "errors", "client surface", "grammar surface"},
    "testing": {"testing", "runtime", "errors", "client surface"},
    "cli": {"cli", "testing", "language", "runtime", "grammar", "errors", "client surface"},
}

#: (module, what it imports inside a function): optional or heavy things, in a factory.
LATE_IMPORTS = {
    ("rtlang.api", "rtlang.tools"),  # what reads signatures takes long to load
    ("rtlang.api", "rtlang.typed"),  # what reads constraints takes long to load
    ("rtlang.defaults", "rtlang.backends.engine"),  # loads torch
    ("rtlang.batching", "rich.progress"),  # only for who asks for a progress bar
    ("rtlang.grammar.llg_backend", "llguidance"),  # optional
    ("rtlang.grammar.service", "rtlang.grammar.compiler"),  # loads xgrammar and torch
    ("rtlang.kernels.fp8", "rtlang.kernels.triton.quantize"),  # Triton, only for a GPU
    ("rtlang.runtime.checkpoint", "rtlang.runtime.gpu.runner"),  # Triton, only for a GPU
    ("rtlang.runtime.checkpoint", "rtlang.runtime.hf_tokenizer"),  # loads transformers
    ("rtlang.runtime.gpu.backends", "rtlang.kernels.attention.flashinfer_backend"),  # optional
    ("rtlang.runtime.models.convert", "rtlang.runtime.models.gguf"),  # loads transformers' models
    ("rtlang.cli.bench_serve", "rtlang.loadtest.client"),  # optional: httpx
    ("rtlang.cli.bench_serve", "rtlang.loadtest.plot"),  # optional: matplotlib
    ("rtlang.cli.common", "rtlang.runtime.engine"),  # loads torch
    ("rtlang.cli.serve", "rtlang.runtime.server.supervisor"),  # loads torch; the port comes first
    ("rtlang.runtime.server.observability", "rtlang.runtime.server.tracing"),  # optional
    ("rtlang.runtime.server.observability", "rtlang.runtime.server.usage"),  # loads SQLAlchemy
    ("rtlang.runtime.tokenizer_files", "rtlang.runtime.hf_tokenizer"),  # loads transformers
}

#: Decides without a device: imports no torch, neither itself nor through others.
TORCH_FREE = [
    "admission",
    "batch",
    "chunk",
    "client",
    "config",
    "counters",
    "forks",
    "mem.eviction",
    "mem.kv_manager",
    "mem.radix_cache",
    "mem.rows",
    "mem.slots",
    "messages",
    "outbox",
    "policy",
    "req",
    "sampling_params",
    "scheduler",
    "stage_clock",
    "stops",
    "tokenizer",
]


def area(name: str) -> str:
    parts = name.split(".")
    if name == "rtlang.errors":
        return "errors"
    if name == "rtlang.__main__":
        return "cli"
    if len(parts) > 1 and parts[1] in MAY_IMPORT:
        return parts[1]
    return "language"


def allowed(module: Module, target: str) -> bool:
    may = MAY_IMPORT[area(module.name)]
    if target in CLIENT_SURFACE and "client surface" in may:
        return True
    if target in GRAMMAR_SURFACE and "grammar surface" in may:
        return True
    return area(target) in may


def ours(module: Module) -> list[tuple[int, str]]:
    return [(i.line, i.target) for i in module.imports if i.target.split(".")[0] == "rtlang"]


@pytest.mark.parametrize("module", modules(), ids=lambda m: str(m.path))
def test_imports_follow_the_arrows_between_the_folders(module: Module) -> None:
    wrong = [f"{module.path}:{n} {t}" for n, t in ours(module) if not allowed(module, t)]
    assert not wrong


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("rtlang.kernels.norm", "rtlang.runtime.req", False),
        ("rtlang.kernels.norm", "rtlang.errors", True),
        ("rtlang.grammar.spec", "rtlang.kernels.checks", False),
        ("rtlang.runtime.engine", "rtlang.state", False),
        ("rtlang.runtime.engine", "rtlang", False),
        ("rtlang.runtime.engine", "rtlang.testing.tiny", False),
        ("rtlang.runtime.engine", "rtlang.kernels.norm", True),
        ("rtlang.state", "rtlang.runtime.scheduler", False),
        ("rtlang.backends.engine", "rtlang.runtime.engine", True),
        ("rtlang.errors", "rtlang.runtime.messages", False),
        ("rtlang.testing.tiny", "rtlang.runtime.model_runner", True),
    ],
)
def test_the_arrows_themselves(name: str, target: str, expected: bool) -> None:
    module = next((m for m in modules() if m.name == name), None)
    probe = module or Module(modules()[0].path, name)
    assert allowed(probe, target) is expected


def test_imports_are_absolute_and_name_the_installed_package() -> None:
    wrong = [
        f"{module.path}:{i.line} {i.target}"
        for module in modules()
        for i in module.imports
        if i.target.split(".")[0] in {"", "runtime", "kernels", "grammar", "tests"}
    ]
    assert not wrong


def test_imports_inside_functions_are_the_listed_factories_only() -> None:
    late = {(m.name, i.target) for m in modules() for i in m.imports if i.lazy}
    assert late == LATE_IMPORTS


def test_no_import_cycle() -> None:
    graph = {
        module.name: {
            i.target
            for i in module.imports
            if i.target.startswith("rtlang") and not i.typing and not i.lazy
        }
        for module in modules()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def loaded(imports: list[str], watched: list[str]) -> list[str]:
    """Which of the ``watched`` top-level packages a fresh interpreter has loaded afterwards."""
    code = "import importlib, json, sys\n"
    code += f"for name in {imports!r}: importlib.import_module(name)\n"
    code += f"print(json.dumps([name for name in {watched!r} if name in sys.modules]))"
    found: list[str] = json.loads(run_python(code))
    return found


def test_importing_the_language_loads_no_engine() -> None:
    heavy = ["torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "gguf"]
    heavy += ["accelerate", "zmq", "numpy", "jinja2", "rich", "xgrammar", "regex"]
    heavy += ["httpx", "pydantic", "fastapi", "matplotlib"]
    assert loaded(["rtlang"], heavy) == []


def test_scheduler_core_loads_no_torch() -> None:
    names = [f"rtlang.runtime.{name}" for name in TORCH_FREE]
    existing = {module.name for module in modules()}
    assert set(names) <= existing, sorted(set(names) - existing)
    assert loaded(names, ["torch", "transformers", "tokenizers"]) == []


def test_the_check_for_loaded_packages_sees_torch() -> None:
    assert loaded(["torch"], ["torch", "zmq"]) == ["torch"]
