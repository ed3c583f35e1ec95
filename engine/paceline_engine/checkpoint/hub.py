"""Downloads from the Hugging Face hub, each failure with its reason."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from paceline_engine.errors import DownloadFailed, ModelNotFound, RevisionNotFound

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
    """Called with the share of the bytes that are there, of the files that were begun."""

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
        try:
            folder = snapshot_download(
                repository,
                revision=revision,
                cache_dir=self.cache_dir,
                token=self.token,
                endpoint=self.endpoint,
                allow_patterns=_WANTED_FILES,
                tqdm_class=None if self.progress is None else _bars(self.progress),
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
            raise DownloadFailed(f"{at}: the download failed: {error}") from error
        return Path(folder), Path(folder).name


def _bars(progress: Callable[[float], None]) -> type[Any]:
    """Make the class of progress bars that draw nothing, and report each per cent of the bytes."""
    from huggingface_hub.utils.tqdm import tqdm as hub_tqdm  # noqa: PLC0415 - as in `Hub.download`

    counting = Lock()  # files come in threads of their own

    class Bars(hub_tqdm):
        """Counts by itself: a bar that is not drawn does not."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = kwargs.get("name") == _BYTES
            self._done, self._told = 0.0, -1
            super().__init__(*args, **kwargs | {"disable": True})  # type: ignore[no-untyped-call]  # tqdm has no types

        def update(self, n: float | None = 1) -> None:
            if not self._counts or not self.total:
                return
            with counting:
                self._done += n or 0
                percent = min(100, int(100 * self._done / self.total))
                if percent != self._told:
                    self._told = percent
                    progress(percent / 100)

    return Bars
