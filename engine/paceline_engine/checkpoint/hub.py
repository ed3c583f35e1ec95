"""Downloads from the Hugging Face hub, each failure with its reason."""

from dataclasses import dataclass, field
from pathlib import Path

from paceline_engine.errors import DownloadFailed, ModelNotFound, RevisionNotFound

_WANTED_FILES = ["*.json", "*.jinja", "*.safetensors"]


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub, as one pod may use it."""

    cache_dir: Path
    token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    """Address of a mirror; None takes `HF_ENDPOINT`, or the public hub."""

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
