"""Models from the Hugging Face hub."""

from __future__ import annotations

import errno
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from rtlang.errors import ModelLoadError

#: Weights, configs, tokenizers and templates of the top folder. No code, no pickles.
_ALLOW = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
_IGNORE = ["*/*", "consolidated*"]


def fetch(name: str, *, revision: str | None, token: str | None) -> Path:
    """The snapshot's folder; downloads (with a progress bar) what is not there yet.

    Raises ``ModelLoadError`` that says what to do, whatever went wrong on the way.
    """
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                token=token,
                allow_patterns=_ALLOW,
                ignore_patterns=_IGNORE,
            )
        )
    except Exception as error:  # the client lets errors of its transports through
        raise ModelLoadError(_explain(name, revision, error)) from error


def _explain(name: str, revision: str | None, error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        return f"{name} is gated: accept its licence on the hub, then pass hub_token=…"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no model {name!r}; if it is a private one, pass hub_token=…"
    if isinstance(error, RevisionNotFoundError):
        return f"{name} has no revision {revision!r}"
    if isinstance(error, LocalEntryNotFoundError):
        return (
            f"{name} is not in the local cache, and the hub cannot be reached: try again with a "
            f"network, or pass a folder that has the model ({error})"
        )
    if isinstance(error, HfHubHTTPError):
        return f"the hub refused to give {name}: {error}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left to fetch {name}: free some, or move the cache with HF_HOME ({error})"
    return f"cannot fetch {name}: {type(error).__name__}: {error}"
