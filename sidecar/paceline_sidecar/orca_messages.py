"""The two messages of ORCA's out-of-band reports, as protobuf reads and writes them.

They are those of xds/service/orca/v3/orca.proto and xds/data/orca/v3/orca_load_report.proto
(github.com/cncf/xds), with the fields that are used here: protobuf passes over others.
"""

from typing import Final

from google.protobuf import duration_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_STRING: Final = FieldDescriptorProto.TYPE_STRING
_DOUBLE: Final = FieldDescriptorProto.TYPE_DOUBLE
_MESSAGE: Final = FieldDescriptorProto.TYPE_MESSAGE
# The wire knows numbers and no names, so one package holds both.
_PACKAGE: Final = "orca"


def _declared() -> DescriptorPool:
    """Return a pool of our own: no other library's messages can clash with these."""
    file = FileDescriptorProto(
        name="orca.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[duration_pb2.DESCRIPTOR.name],
    )
    report = file.message_type.add(name="OrcaLoadReport")
    report.field.add(name="rps_fractional", number=6, type=_DOUBLE)
    report.field.add(
        name="named_metrics",
        number=8,
        type=_MESSAGE,
        type_name=f".{_PACKAGE}.OrcaLoadReport.NamedMetricsEntry",
        label=FieldDescriptorProto.LABEL_REPEATED,
    )
    report.field.add(name="application_utilization", number=9, type=_DOUBLE)
    # A map is a list of such entries.
    entry = report.nested_type.add(name="NamedMetricsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_STRING)
    entry.field.add(name="value", number=2, type=_DOUBLE)

    request = file.message_type.add(name="OrcaLoadReportRequest")
    request.field.add(
        name="report_interval", number=1, type=_MESSAGE, type_name=".google.protobuf.Duration"
    )
    pool = DescriptorPool()
    pool.AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return pool


_POOL: Final = _declared()


def _type(name: str) -> type[Message]:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


LOAD_REPORT: Final = _type("OrcaLoadReport")
"""`rps_fractional` and `application_utilization`, numbers, and the map `named_metrics`."""
LOAD_REPORT_REQUEST: Final = _type("OrcaLoadReportRequest")
"""`report_interval`, a Duration."""
