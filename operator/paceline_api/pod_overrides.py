"""`spec.podOverrides`: the few fields of a pod that depend on the cluster it runs in."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from paceline_api.part import Part, Rule, listed
from paceline_api.units import Name

MOUNTS: Final = "/mnt"
"""Where the engine sees the volumes that were added, each in a folder of its name."""

Address = Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]{2,45}$", max_length=45)]
HostName = Annotated[
    str, Field(pattern=r"^[a-zA-Z0-9_]([-.a-zA-Z0-9_]*[a-zA-Z0-9_])?\.?$", max_length=253)
]


class EnvVar(Part):
    """One variable of the engine's environment."""

    cel_rules: ClassVar = (
        Rule(
            "!self.name.startsWith('PACELINE_') && self.name != 'HOME' && self.name != 'HF_TOKEN'",
            "is set by the operator: a field of spec stands behind each PACELINE_ variable, and"
            " model.credentialsSecretRef behind HF_TOKEN",
            ".name",
        ),
    )

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
    value: Annotated[str, Field(max_length=4096)]


class SidecarVar(Part):
    """One variable of the sidecar's environment."""

    name: Annotated[str, Field(pattern=r"^OTEL_[A-Z0-9_]+$", max_length=128)]
    value: Annotated[str, Field(max_length=4096)]


class ExtraVolume(Part):
    """A volume that the engine reads in a folder of its name below /mnt."""

    cel_rules: ClassVar = (
        Rule(
            "[has(self.claimName), has(self.configMapName), has(self.secretName)]"
            ".exists_one(given, given)",
            "name one of claimName, configMapName and secretName",
        ),
    )

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=50)]
    claim_name: Name | None = None
    """A PersistentVolumeClaim, mounted read-only."""
    config_map_name: Name | None = None
    """A ConfigMap, such as one of certificates."""
    secret_name: Name | None = None
    """A Secret, readable by the pod's group."""


class HostAlias(Part):
    """Names of one address, as in /etc/hosts."""

    ip: Address
    hostnames: Annotated[list[HostName], Field(json_schema_extra=listed("atomic", max_items=16))]


class DnsOption(Part):
    """One option of resolv.conf."""

    name: Annotated[str, Field(pattern=r"^[-a-z0-9]+$", max_length=63)]
    value: Annotated[str, Field(max_length=63)] | None = None


class DnsConfig(Part):
    """Added to what the cluster's DNS says."""

    nameservers: (
        Annotated[list[Address], Field(json_schema_extra=listed("atomic", max_items=3))] | None
    ) = None
    searches: (
        Annotated[list[HostName], Field(json_schema_extra=listed("atomic", max_items=32))] | None
    ) = None
    options: (
        Annotated[list[DnsOption], Field(json_schema_extra=listed("atomic", max_items=16))] | None
    ) = None


class PodOverrides(Part):
    """What a pod needs in this cluster. A passthrough of a whole pod's spec would undo promises."""

    env: (
        Annotated[
            list[EnvVar], Field(json_schema_extra=listed("map", max_items=64, keys=("name",)))
        ]
        | None
    ) = None
    """Variables of the engine, such as HTTPS_PROXY or NCCL_DEBUG."""
    sidecar_env: (
        Annotated[
            list[SidecarVar], Field(json_schema_extra=listed("map", max_items=32, keys=("name",)))
        ]
        | None
    ) = None
    """OpenTelemetry's variables (OTEL_*) of the sidecar, which say where traces are sent."""
    volumes: (
        Annotated[
            list[ExtraVolume], Field(json_schema_extra=listed("map", max_items=16, keys=("name",)))
        ]
        | None
    ) = None
    """Volumes that the engine reads, each in /mnt/NAME."""
    host_aliases: (
        Annotated[
            list[HostAlias], Field(json_schema_extra=listed("map", max_items=32, keys=("ip",)))
        ]
        | None
    ) = None
    """Lines of /etc/hosts."""
    dns_config: DnsConfig | None = None
    supplemental_groups: (
        Annotated[
            list[Annotated[int, Field(ge=1, le=2_147_483_647)]],
            Field(json_schema_extra=listed("set", max_items=16)),
        ]
        | None
    ) = None
    """Groups of the pod's user, such as that of a file server's export."""
