"""Models from the Hugging Face hub."""

from __future__ import annotations

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

_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


def fetch(name: str, *, revision: str | None, token: str | None) -> Path:
    """The snapshot's folder; downloads (with a progress bar) what is not there yet."""
    try:
        return Path(
            snapshot_download(name, revision=revision, token=token, allow_patterns=_PATTERNS)
        )
    except GatedRepoError as error:
        raise ModelLoadError(
            f"{name} is gated: accept its licence on the hub and pass hub_token=…"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"the hub has no model {name!r} (or it is private: pass hub_token=…)"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelLoadError(f"{name} has no revision {revision!r}") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelLoadError(
            f"{name} is not in the local cache and the hub cannot be reached: {error}. "
            f"A folder with the model works without a network."
        ) from error
