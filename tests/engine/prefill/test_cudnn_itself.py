"""cuDNN's own frontend, where it is installed: it takes the graphs that we declare.

`pip install 'paceline[cudnn]'` brings it; CI has not got it. It needs no GPU for this: the graphs
are for a GPU that is described to it, and are taken as far as a machine without a driver goes.
"""

import json
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch

from paceline_engine.attention.prefill.cudnn_graphs import LADDER, Geometry, Rung, declared
from paceline_engine.attention.prefill.cudnn_paged import PACKAGE

pytestmark = [
    pytest.mark.skipif(find_spec(PACKAGE) is None, reason="nvidia-cudnn-frontend is not installed"),
    pytest.mark.filterwarnings("ignore"),  # those of its imports are its own
]
NO_DRIVER = "Cannot load CUDA driver library"
SM_COUNTS = {80: 108, 90: 132, 100: 148}


@pytest.fixture(scope="module")
def library() -> ModuleType:
    return import_module(PACKAGE)


def described(library: ModuleType, capability: int) -> Any:
    """A GPU, by what cuDNN asks of a device; sizes are those of compute capability 9.0."""
    properties: dict[str, object] = {
        "deviceVer": capability * 10,
        "multiProcessorCount": SM_COUNTS[capability],
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 48 << 10,
        "maxSharedMemoryPerBlockOptin": (163 << 10) if capability == 80 else (227 << 10),
        "reservedSharedMemoryPerBlock": 1 << 10,
        "maxRegistersPerSM": 65_536,
        "maxCtasPerSM": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048,
        "regsPerBlock": 65_536,
        "totalGlobalMem": 80 << 30,
        "smClockRateKHz": 1_500_000,
        "memClockRateKHz": 2_500_000,
        "l2CacheSize": 50 << 20,
        "maxBlockSize": [1024, 1024, 64],
        "maxGridSize": [2**31 - 1, 65_535, 65_535],
        "supportCoopLaunch": 1,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "cudaDeviceId": 0,
        "driverVer": 13_000,
        "deviceName": "described",
    }
    return library.create_device_properties(json.dumps(properties))


def verdict(library: ModuleType, geometry: Geometry, rung: Rung, capability: int) -> str:
    """What cuDNN says of a graph: empty where it takes it."""
    target = {"device_property": described(library, capability), "sm_version": capability}
    graph = declared(library, geometry, rung, target)
    try:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([library.heur_mode.A])  # FALLBACK hides why A ended
        graph.check_support()
    except library.cudnnGraphNotSupportedError as error:
        return str(error)
    return ""


def is_taken(said: str) -> bool:
    """Engines were proposed for it; where there is no driver, loading it is what ended them."""
    return not said or ('"engineId"' in said and NO_DRIVER in said)


@pytest.mark.parametrize("capability", SM_COUNTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_every_graph_of_the_ladder_is_taken(
    library: ModuleType, capability: int, dtype: torch.dtype, head_size: int
) -> None:
    """Validated, lowered, and given engines: grouped heads, our strides, our page sizes."""
    for block_size in (16, 32):
        for heads in ((32, 8), (8, 8)):
            geometry = Geometry(*heads, head_size, block_size, dtype, head_size**-0.5)
            for rung in LADDER:
                said = verdict(library, geometry, rung, capability)
                assert is_taken(said), said


def test_a_graph_that_breaks_a_rule_is_not_taken(library: ModuleType) -> None:
    """Else the test above would say nothing: heads that do not divide, blocks of 24 tokens."""
    for geometry in (
        Geometry(32, 7, 128, 16, torch.bfloat16, 1.0),
        Geometry(32, 8, 128, 24, torch.bfloat16, 1.0),
        Geometry(32, 8, 100, 16, torch.bfloat16, 1.0),
    ):
        assert not is_taken(verdict(library, geometry, LADDER[0], 90))
