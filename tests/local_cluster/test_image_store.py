"""Images of older trees give their room back, and a build starts only where there is enough."""

import pytest

from local_cluster.errors import UnavailableError
from local_cluster.image_store import COLD_BUILD_GB, WARM_BUILD_GB, make_room, nameless


class FullDisk:
    """A store on a disk of 50 GB that older builds have filled."""

    def __init__(self, *, kept_gb: int, others_gb: int) -> None:
        self.kept_gb = kept_gb
        self.others_gb = others_gb

    def free_gb(self) -> float:
        return 50 - self.kept_gb - self.others_gb

    def room_needed_gb(self) -> int:
        return WARM_BUILD_GB if self.kept_gb else COLD_BUILD_GB

    def drop_all(self) -> None:
        self.kept_gb = 0


def test_layers_of_older_builds_give_way_to_a_build_without_room() -> None:
    disk = FullDisk(kept_gb=46, others_gb=0)

    make_room(disk, disk.free_gb)

    assert disk.free_gb() == 50


def test_layers_stay_while_there_is_room() -> None:
    disk = FullDisk(kept_gb=40, others_gb=0)

    make_room(disk, disk.free_gb)

    assert disk.kept_gb == 40


def test_a_disk_that_others_fill_is_said_with_both_figures() -> None:
    disk = FullDisk(kept_gb=20, others_gb=28)

    with pytest.raises(UnavailableError, match=r"needs 24 GB free under .*, found 22 GB"):
        make_room(disk, disk.free_gb)


LISTING = """\
REF                    TYPE                                       DIGEST     SIZE    PLATFORMS
docker.io/paceline/e:1 application/vnd.oci.image.manifest.v1+json sha256:aaa 5.7 GiB linux/amd64
sha256:of-the-new      application/vnd.oci.image.manifest.v1+json sha256:aaa 5.7 GiB linux/amd64
sha256:of-the-old      application/vnd.oci.image.manifest.v1+json sha256:bbb 5.7 GiB linux/amd64
"""


def test_an_image_whose_name_was_dropped_is_found_by_what_is_left_of_it() -> None:
    """It held 11 GB of an older tree's torch, unpacked and as a blob, in each dropped build."""
    assert nameless(LISTING) == ["sha256:of-the-old"]


def test_an_empty_store_has_nothing_without_a_name() -> None:
    assert nameless(LISTING.splitlines()[0]) == []
