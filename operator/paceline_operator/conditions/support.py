"""What the schema can express and this version cannot do: said, not ignored."""

from paceline_api.inference_service import Spec


def unsupported(spec: Spec) -> str:
    """Name the first field that asks for too much; empty where all is supported."""
    asks = {
        "model.uri s3://": spec.model.uri.startswith("s3://"),
        "engine.speculative.draftModelUri s3://": (
            spec.engine.speculative.draft_model_uri or ""
        ).startswith("s3://"),
        "monitoring.podMonitor": spec.monitoring.pod_monitor,
        "monitoring.rules": spec.monitoring.rules,
    }
    return next(
        (
            f"spec.{field} is not supported by this version"
            for field, asked in asks.items()
            if asked
        ),
        "",
    )
