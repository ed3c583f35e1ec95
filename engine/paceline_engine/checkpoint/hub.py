"""Downloads from the Hugging Face hub, each failure with its reason."""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock
from typing import Any, Final

from paceline_engine.errors import CacheFull, DownloadFailed, ModelNotFound, RevisionNotFound

_BYTES: Final = "huggingface_hub.snapshot_download"
"""How the hub's client names the bar that counts the bytes on disk."""
_WANTED_FILES = ["*.json", "*.jinja", "*.safetensors"]


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub, as one pod may use it."""

    cache_dir: Path
    token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    """Address of a mirror; None takes `HF_ENDPOINT`, or the public hub."""
    progress: Callable[[float], None] | None = field(default=None, repr=False)
    """Called with the share of the bytes that are downloaded, which never decreases."""

    def download(self, repository: str, revision: str | None) -> tuple[Path, str]:
        """Fetch a repository, or find it in the cache; return its folder and its commit."""
        # Not imported at the top: they take most of a second, and few models are downloaded.
        import httpx  # noqa: PLC0415 - as above
        from huggingface_hub import snapshot_download  # noqa: PLC0415 - as above
        from huggingface_hub.errors import (  # noqa: PLC0415 - as above
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        at = f"hf://{repository}" + (f" at {revision}" if revision else "")
        meter = self.progress and _Meter(self.progress, *self._sizes(repository, revision))
        try:
            folder = snapshot_download(
                repository,
                revision=revision,
                cache_dir=self.cache_dir,
                token=self.token,
                endpoint=self.endpoint,
                allow_patterns=_WANTED_FILES,
                tqdm_class=None if meter is None else _bars(meter),
            )
        except HFValidationError as error:
            raise ModelNotFound(f"{at}: wanted is hf://ORG/NAME: {error}") from error
        except GatedRepoError as error:
            raise DownloadFailed(
                f"{at} is gated: accept its terms on the hub and give the pod an HF_TOKEN."
            ) from error
        except RepositoryNotFoundError as error:
            raise ModelNotFound(
                f"{at}: the hub has no such repository, or it is private and HF_TOKEN is missing."
            ) from error
        except RevisionNotFoundError as error:
            raise RevisionNotFound(f"{at}: the repository has no such revision.") from error
        except LocalEntryNotFoundError as error:
            raise DownloadFailed(f"{at}: the hub cannot be reached: {error}") from error
        except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
            if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise CacheFull(f"{at}: no room in {self.cache_dir}: {error}") from error
            raise DownloadFailed(f"{at}: the download failed: {error}") from error
        return Path(folder), Path(folder).name

    def _sizes(self, repository: str, revision: str | None) -> tuple[int, int]:
        """Return the bytes of the repository, and those already cached; 0 where that is unknown.

        The hub's client counts a file only once it has begun it: by that count, each file that
        begins would lower the reported progress. If listing fails, the download reports the reason.
        """
        import httpx  # noqa: PLC0415 - as in `download`
        from huggingface_hub import (  # noqa: PLC0415 - as in `download`
            HfApi,
            RepoFile,
            try_to_load_from_cache,
        )
        from huggingface_hub.errors import HFValidationError  # noqa: PLC0415 - as in `download`

        api = HfApi(endpoint=self.endpoint, token=self.token)
        try:
            listed = api.list_repo_tree(repository, recursive=True, revision=revision)
            sizes = {
                one.path: one.size
                for one in listed
                if isinstance(one, RepoFile) and any(fnmatch(one.path, p) for p in _WANTED_FILES)
            }
        except (HFValidationError, httpx.HTTPError, OSError):
            return 0, 0
        at = revision or "main"
        found = {
            path: try_to_load_from_cache(repository, path, self.cache_dir, at) for path in sizes
        }
        there = sum(size for path, size in sizes.items() if isinstance(found[path], str))
        return sum(sizes.values()), there


@dataclass(slots=True)
class _Meter:
    """Reports each new percent of the downloaded bytes."""

    tell: Callable[[float], None]
    total: int
    """Bytes of all files; 0 where that is unknown, and then nothing is reported."""
    done: float
    _told: int = field(init=False, default=-1)
    _counting: Lock = field(init=False, default_factory=Lock)
    """Guards the counts: files are downloaded in several threads."""

    def count(self, num_bytes: float) -> None:
        """Count bytes that have come."""
        with self._counting:
            self.done += num_bytes
            percent = min(100, int(100 * self.done / self.total)) if self.total else -1
            if percent > self._told:
                self._told = percent
                self.tell(percent / 100)


def _bars(meter: _Meter) -> type[Any]:
    """Make the class of progress bars that draw nothing and count bytes."""
    from huggingface_hub.utils.tqdm import tqdm as hub_tqdm  # noqa: PLC0415 - as in `Hub.download`

    class Bars(hub_tqdm):
        """Counts by itself: a bar that is not drawn does not."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = kwargs.get("name") == _BYTES
            super().__init__(*args, **kwargs | {"disable": True})  # type: ignore[no-untyped-call]  # tqdm has no types

        def update(self, n: float | None = 1) -> None:
            if self._counts:
                meter.count(n or 0)

    return Bars
