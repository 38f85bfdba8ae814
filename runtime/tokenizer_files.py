"""A model's tokenizer for others: what a server tells of it, and how a client makes it again."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rtlang.errors import ModelLoadError, NotFound, Unsupported
from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.runtime.models.convert import cache_root, locked
from rtlang.runtime.tokenizer import Tokenizer

#: Files of a model's folder that its tokenizer may be made of; nothing else is ever given out.
NAMES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


def described(tokenizer: Tokenizer) -> dict[str, Any]:
    """What ``fetched`` needs: ``{"kind": "byte", ...}``, or ``{"kind": "files", "files": {name:
    sha256}, "chat_template": text or null}``. Reads the files; raises ``Unsupported`` for a
    tokenizer that is made of neither."""
    if type(tokenizer) is ByteTokenizer:
        return {"kind": "byte", **tokenizer.options}
    folder = folder_of(tokenizer)
    # Not always the folder's own: the engine may have been given another.
    template = getattr(getattr(tokenizer, "hf", None), "chat_template", None)
    return {
        "kind": "files",
        "files": {p.name: _digest(p, p.stat().st_mtime_ns) for p in _paths(folder)},
        "chat_template": template if isinstance(template, str) else None,
    }


def folder_of(tokenizer: Tokenizer) -> Path:
    """The folder that it was read from. Raises ``Unsupported``."""
    folder = getattr(tokenizer, "path", None)
    if not isinstance(folder, Path) or not any(_paths(folder)):
        kind = type(tokenizer).__name__
        raise Unsupported(f"a {kind} is not made of files that could be sent", param="tokenizer")
    return folder


def path_of(tokenizer: Tokenizer, name: str) -> Path:
    """One of its files. Raises ``NotFound``."""
    for path in _paths(folder_of(tokenizer)):
        if path.name == name:
            return path
    raise NotFound(f"the tokenizer has no file {name!r}")


def fetched(description: Mapping[str, Any], fetch: Callable[[str], bytes]) -> Tokenizer:
    """The tokenizer that ``described`` has described; ``fetch(name)`` gives a file's content.

    Files are kept on the disk, under the hash of all of them. Raises ``ModelLoadError``, and
    what ``fetch`` raises.
    """
    kind = description.get("kind")
    if kind == "byte":
        options = {k: v for k, v in description.items() if k != "kind"}
        return ByteTokenizer(**options)
    if kind != "files":
        raise ModelLoadError(f"the server's tokenizer is of a kind not known here: {kind!r}")
    folder = _fetched_folder(dict(description["files"]), fetch)
    # Not at the top: transformers takes seconds to load, and a byte is a token without it.
    module = importlib.import_module("rtlang.runtime.hf_tokenizer")
    made: Tokenizer = module.HFTokenizer(folder, chat_template=description["chat_template"])
    return made


def _fetched_folder(files: Mapping[str, str], fetch: Callable[[str], bytes]) -> Path:
    unknown = sorted(set(files) - set(NAMES))
    if unknown or not files:  # a name may be a path to anywhere
        raise ModelLoadError(f"the server names {unknown or 'no files'} as its tokenizer")
    key = hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()
    entry = cache_root().parent / "tokenizers" / key[:32]
    if entry.is_dir():
        return entry
    with locked(entry) as scratch:
        if not entry.is_dir():
            for name, digest in files.items():
                _save(scratch / name, fetch(name), digest)
            scratch.rename(entry)
    return entry


def _save(path: Path, content: bytes, digest: str) -> None:
    if hashlib.sha256(content).hexdigest() != digest:
        raise ModelLoadError(f"{path.name} did not arrive as the server described it")
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ModelLoadError(f"cannot keep {path.name} in {path.parent}: {error}") from error


def _paths(folder: Path) -> list[Path]:
    return [path for name in NAMES if (path := folder / name).is_file()]


@functools.lru_cache(maxsize=64)
def _digest(path: Path, changed: int) -> str:
    """``changed``: of the file, in nanoseconds, so that a new content is read again."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
