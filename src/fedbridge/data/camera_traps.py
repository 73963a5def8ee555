"""Terra Incognita's folders, made from images in one heap and annotations in JSON.

Which locations and classes there are, and that an image with animals of two classes is in both
folders, is as DomainBed does it.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from typing import TYPE_CHECKING

from fedbridge.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fedbridge.data.catalogue import ImageTree

LOCATION = "location_"


def arrange_camera_traps(layout: ImageTree, unpacked: Path, folder: Path) -> None:
    """Fill ``location_*/class/`` with the images that annotations put there."""
    heap = {file.name: file for file in unpacked.rglob("*.jpg")}
    homes: dict[str, set[str]] = defaultdict(set)
    for file in sorted(unpacked.rglob("*.json")):
        for image, home in _annotated(file, layout):
            homes[image].add(home)
    for image in sorted(homes.keys() & heap.keys()):
        for home in sorted(homes[image]):
            (folder / home).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(heap[image], folder / home / image)
        heap[image].unlink()


def _annotated(file: Path, layout: ImageTree) -> Iterator[tuple[str, str]]:
    """Names of images, and the folders below ``location_*`` that they belong into."""
    try:
        content = json.loads(file.read_bytes())
        classes = {row["id"]: row["name"] for row in content["categories"]}
        images = {row["id"]: row for row in content["images"]}
        found = []
        for row in content["annotations"]:
            image, own = images[row["image_id"]], classes[row["category_id"]]
            found.append((image["file_name"], f"{LOCATION}{image['location']}", own))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"Expected {file.name} to hold annotations of camera traps, but it does not "
            f"({type(error).__name__}: {error})."
        ) from error
    domains = {domain.name for domain in layout.domains}
    for image, domain, own in found:
        if domain in domains and own in layout.classes:
            yield image, f"{domain}/{own}"
