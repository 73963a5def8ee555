"""Entries of pretrained weights: the first digits of the checksum are in the file's name."""

from __future__ import annotations

from fedbridge.data.catalogue.entry import Content, DataSet, Download, Files


def _imagenet(name: str, title: str, digits: str, size: int, note: str = "") -> DataSet:
    file = f"{name}-{digits}.pth"
    return DataSet(
        name=name,
        title=f"{title} trained on ImageNet by torchvision (IMAGENET1K_V1)",
        tasks=(),
        domains=(),
        sites=None,
        samples=None,
        licence="BSD 3-Clause; trained on ImageNet, which has terms of its own",
        citation="He, Zhang, Ren, Sun: Deep residual learning for image recognition, CVPR 2016",
        home="https://docs.pytorch.org/vision/stable/models.html",
        layout=Files((Content(file, digits),)),
        routes=((Download(file, (f"https://download.pytorch.org/models/{file}",), size),),),
        note=note,
    )


RESNET18 = _imagenet("resnet18", "ResNet-18", "f37072fd", 46_830_571)
RESNET50 = _imagenet(
    "resnet50",
    "ResNet-50",
    "0676ba61",
    102_530_333,
    note="The later recipe (IMAGENET1K_V2, resnet50-11ad3fa6.pth) can be given as a file.",
)
