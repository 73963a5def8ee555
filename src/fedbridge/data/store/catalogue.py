"""The catalogue: every data set and pretrained model that fedbridge knows, described as data.

An entry says what a data set is, where it comes from, and what must be in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedbridge.base.errors import UnknownNameError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

Arrangement: TypeAlias = Literal["as-packed", "listed", "camera-traps"]
"""How unpacked files become the layout: as they are, only those in lists, or from annotations."""

IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
IDX_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
CIFAR_BATCH = 30_730_000

GIGABYTE = 10**9
CAMERA_TRAPS = (
    "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps",
    "https://lilawildlife.blob.core.windows.net/lila-wildlife/caltechcameratraps",
    "https://lilablobssc.blob.core.windows.net/caltechcameratraps",
)
DOMAINNET = tuple(
    f"{scheme}://csr.bu.edu/ftp/visda/2019/multi-source" for scheme in ("https", "http")
)


ALL = "all"


@dataclass(frozen=True)
class Download:
    """One file to fetch, from the first address that works.

    Attributes:
        file: Its name on disk.
        addresses: The official place first, then mirrors.
        size: Roughly its bytes; a server that sends many times as much is not believed.
    """

    file: str
    addresses: tuple[str, ...]
    size: int


Route: TypeAlias = tuple[Download, ...]
"""Files that together make a data set."""


@dataclass(frozen=True)
class Content:
    """A file that must be in the data set's folder.

    Attributes:
        path: Where, with ``/``; a ``.gz`` may also lie there without its wrapper.
        sha256: Of the decompressed content, since wrappers differ; or its first digits.
        size: Bytes of the decompressed content, where known.
    """

    path: str
    sha256: str
    size: int | None = None


@dataclass(frozen=True)
class Files:
    """A layout of a few known files."""

    contents: tuple[Content, ...]


@dataclass(frozen=True)
class Domain:
    """A folder with one folder per class.

    Attributes:
        name: As DomainBed names the folder.
        images: How many images are published.
        also: Other counts that publications report of the same domain.
    """

    name: str
    images: int
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class ImageTree:
    """A layout ``domain/class/*.jpg``; ``classes`` may be left out where they are many."""

    domains: tuple[Domain, ...]
    n_classes: int
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """One entry of the catalogue.

    Attributes:
        name: The folder's name, and what a user types.
        title: What it is, in one line.
        tasks: The tasks that read it.
        domains: Names of its domains.
        sites: Sites in those tasks, the target included; None where an option decides.
        samples: Rows or images in all.
        licence: As its publishers state it.
        citation: Whom to cite.
        home: Page of its publishers.
        layout: What must be on disk; None for data that need no files.
        routes: Ways to fetch it, the preferred one first.
        arrangement: How unpacked files become the layout.
        other_names: Names that other software gives the folder.
        note: What else one should know.
    """

    name: str
    title: str
    tasks: tuple[str, ...]
    domains: tuple[str, ...]
    sites: int | None
    samples: int | None
    licence: str
    citation: str
    home: str
    layout: Files | ImageTree | None = None
    routes: tuple[Route, ...] = ()
    arrangement: Arrangement = "as-packed"
    other_names: tuple[str, ...] = ()
    note: str = ""

    @property
    def download_size(self) -> int:
        """Roughly the bytes to fetch."""
        return sum(download.size for download in self.routes[0]) if self.routes else 0


def _idx_layout(*digests: str) -> Files:
    rows = zip(IDX_FILES, digests, IDX_SIZES, strict=True)
    return Files(tuple(Content(file, digest, size) for file, digest, size in rows))


def _each(files: tuple[str, ...], sizes: tuple[int, ...], *places: str) -> tuple[Download, ...]:
    return tuple(
        Download(file, tuple(f"{place}/{file}" for place in places), size)
        for file, size in zip(files, sizes, strict=True)
    )


FASHION_MNIST = DataSet(
    name="fashion-mnist",
    title="Fashion-MNIST: 28x28 grey images of clothes, 10 classes",
    tasks=("fashion-noise", "fashion-labels", "fashion-sources"),
    domains=(),
    sites=10,
    samples=70_000,
    licence="MIT",
    citation="Xiao, Rasul, Vollgraf: Fashion-MNIST, arXiv:1708.07747, 2017",
    home="https://github.com/zalandoresearch/fashion-mnist",
    layout=_idx_layout(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    routes=(
        _each(
            IDX_FILES,
            (26_421_880, 29_515, 4_422_102, 5_148),
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ),
    ),
)

MNIST = DataSet(
    name="mnist",
    title="MNIST: 28x28 grey images of handwritten digits, 10 classes",
    tasks=("colored-mnist", "colored-mnist-14"),
    domains=("+90%", "+80%", "-90%"),
    sites=3,
    samples=70_000,
    licence="CC BY-SA 3.0, as usually stated",
    citation="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document "
    "recognition, Proceedings of the IEEE, 1998",
    home="http://yann.lecun.com/exdb/mnist/",
    layout=_idx_layout(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    routes=(
        _each(
            IDX_FILES,
            (9_912_422, 28_881, 1_648_877, 4_542),
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
            "http://yann.lecun.com/exdb/mnist",
        ),
    ),
    note="The three domains are made from it: colour and label agree for 90%, 80% and 10%.",
)

CIFAR10 = DataSet(
    name="cifar10",
    title="CIFAR-10: 32x32 colour images, 10 classes",
    tasks=("cifar10-noise",),
    domains=(),
    sites=10,
    samples=60_000,
    licence="none stated",
    citation="Krizhevsky: Learning multiple layers of features from tiny images, technical "
    "report, University of Toronto, 2009",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    layout=Files(
        tuple(
            Content(f"cifar-10-batches-bin/{file}.bin", digest, CIFAR_BATCH)
            for file, digest in {
                "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            }.items()
        )
    ),
    routes=(
        (
            Download(
                "cifar-10-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                170_052_171,
            ),
        ),
    ),
)

HEART = DataSet(
    name="heart",
    title="UCI Heart Disease: patients of four hospitals, disease or not",
    tasks=("heart",),
    domains=HOSPITALS,
    sites=4,
    samples=920,
    licence="CC BY 4.0",
    citation="Janosi, Steinbrunn, Pfisterer, Detrano: Heart Disease, UCI Machine Learning "
    "Repository, 1989, doi:10.24432/C52P4X",
    home="https://archive.ics.uci.edu/dataset/45/heart+disease",
    layout=Files(
        (
            Content(
                "processed.cleveland.data",
                "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
                18_461,
            ),
            Content(
                "processed.hungarian.data",
                "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
                10_263,
            ),
            Content(
                "processed.switzerland.data",
                "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
                4_109,
            ),
            Content(
                "processed.va.data",
                "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
                6_737,
            ),
        )
    ),
    routes=(
        (
            Download(
                "heart-disease.zip",
                ("https://archive.ics.uci.edu/static/public/45/heart+disease.zip",),
                128_894,
            ),
        ),
        _each(
            tuple(f"processed.{hospital}.data" for hospital in HOSPITALS),
            (18_461, 10_263, 4_109, 6_737),
            "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease",
        ),
    ),
)

DIGITS = DataSet(
    name="digits",
    title="scikit-learn's handwritten digits, 8x8; they come with it",
    tasks=("digits-noise", "digits-contrast", "digits-rotation", "digits-none"),
    domains=(),
    sites=5,
    samples=1_797,
    licence="CC BY 4.0",
    citation="Alpaydin, Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning "
    "Repository, 1998, doi:10.24432/C50P49",
    home="https://archive.ics.uci.edu/dataset/80",
)

RBF = DataSet(
    name="rbf",
    title="A regression made from the seed: sums of radial basis functions",
    tasks=("rbf",),
    domains=(),
    sites=None,
    samples=None,
    licence="none needed",
    citation="none needed",
    home="",
)


def _tree(
    images: dict[str, tuple[int, ...]], n_classes: int, classes: tuple[str, ...] = ()
) -> ImageTree:
    """Folders by domain: how many images are published, then other counts that are reported."""
    domains = tuple(Domain(name, count, tuple(also)) for name, (count, *also) in images.items())
    return ImageTree(domains, n_classes, classes)


def _suite(*, name: str, layout: ImageTree, **more: Any) -> DataSet:
    """An image suite: a task of its name, whose sites are its domains."""
    return DataSet(
        name=name,
        tasks=(name,),
        domains=tuple(domain.name for domain in layout.domains),
        sites=len(layout.domains),
        samples=sum(domain.images for domain in layout.domains),
        layout=layout,
        **more,
    )


def _drive(file: str, identity: str, size: int) -> Route:
    """DomainBed's copies lie on Google Drive, which shows a page instead when asked too often."""
    addresses = (
        f"https://drive.usercontent.google.com/download?id={identity}&export=download&confirm=t",
        f"https://drive.google.com/uc?export=download&confirm=t&id={identity}",
    )
    return (Download(file, addresses, size),)


def _domainnet(domain: str, archive: str, gigabytes: float) -> Route:
    """The images of a domain, and the two lists that name those without duplicates."""
    files = (
        (f"{domain}.zip", archive, int(gigabytes * GIGABYTE)),
        (f"{domain}_train.txt", f"domainnet/txt/{domain}_train.txt", 6_000_000),
        (f"{domain}_test.txt", f"domainnet/txt/{domain}_test.txt", 3_000_000),
    )
    return tuple(
        Download(file, tuple(f"{place}/{path}" for place in DOMAINNET), size)
        for file, path, size in files
    )


VLCS = _suite(
    name="vlcs",
    title="VLCS: photos of 5 classes from four collections",
    licence="that of each of the four collections",
    citation="Fang, Xu, Rockmore: Unbiased metric learning, ICCV 2013",
    home="https://github.com/facebookresearch/DomainBed",
    layout=_tree(
        {"Caltech101": (1415,), "LabelMe": (2656,), "SUN09": (3282,), "VOC2007": (3376,)},
        5,
        ("bird", "car", "chair", "dog", "person"),
    ),
    routes=(_drive("VLCS.tar.gz", "1skwblH1_okBwxWxmRsp9_qi15hyPpxg8", 3_600_000_000),),
    other_names=("VLCS",),
)

PACS = _suite(
    name="pacs",
    title="PACS: 7 classes as art paintings, cartoons, photos and sketches",
    licence="none stated; research use",
    citation="Li, Yang, Song, Hospedales: Deeper, broader and artier domain generalization, "
    "ICCV 2017",
    home="https://dali-dl.github.io/project_iccv2017.html",
    layout=_tree(
        {"art_painting": (2048,), "cartoon": (2344,), "photo": (1670,), "sketch": (3929,)},
        7,
        ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    ),
    routes=(_drive("PACS.zip", "1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd", 180_000_000),),
    other_names=("PACS",),
)

OFFICE_HOME = _suite(
    name="office-home",
    title="Office-Home: 65 classes of everyday objects in four styles",
    licence="non-commercial research",
    citation="Venkateswara, Eusebio, Chakraborty, Panchanathan: Deep hashing network for "
    "unsupervised domain adaptation, CVPR 2017",
    home="https://www.hemanthdv.org/officeHomeDataset.html",
    layout=_tree(
        {"Art": (2427,), "Clipart": (4365,), "Product": (4439,), "Real World": (4357,)}, 65
    ),
    routes=(_drive("OfficeHome.zip", "1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC", 1_130_000_000),),
    other_names=("office_home", "OfficeHome"),
)

TERRA = _suite(
    name="terra",
    title="Terra Incognita: 10 classes of animals before four camera traps",
    licence="CDLA-Permissive 1.0",
    citation="Beery, Van Horn, Perona: Recognition in Terra Incognita, ECCV 2018",
    home="https://lila.science/datasets/caltech-camera-traps",
    layout=_tree(
        {
            "location_100": (4741, 4879),
            "location_38": (9736, 9767),
            "location_43": (3970, 4020),
            "location_46": (5883, 6122),
        },
        10,
        (
            *("bird", "bobcat", "cat", "coyote", "dog"),
            *("empty", "opossum", "rabbit", "raccoon", "squirrel"),
        ),
    ),
    routes=(
        tuple(
            Download(file, tuple(f"{place}/{folder}{file}" for place in CAMERA_TRAPS), size)
            for folder, file, size in (
                ("", "eccv_18_all_images_sm.tar.gz", 6_492_615_601),
                ("labels/", "caltech_camera_traps.json.zip", 10_000_000),
            )
        ),
    ),
    arrangement="camera-traps",
    other_names=("terra_incognita",),
    note="Annotations were revised: older publications count 24,788 images, those of 2021 24,330.",
)

DOMAIN_NET = _suite(
    name="domainnet",
    title="DomainNet: 345 classes in six styles",
    licence="fair use, non-commercial research",
    citation="Peng, Bai, Xia, Huang, Saenko, Wang: Moment matching for multi-source domain "
    "adaptation, ICCV 2019",
    home="http://ai.bu.edu/M3SDA/",
    layout=_tree(
        {
            "clipart": (48129,),
            "infograph": (51605,),
            "painting": (72266,),
            "quickdraw": (172500,),
            "real": (172947,),
            "sketch": (69128,),
        },
        345,
    ),
    routes=(
        (
            *_domainnet("clipart", "groundtruth/clipart.zip", 1.3),
            *_domainnet("infograph", "infograph.zip", 4.0),
            *_domainnet("painting", "groundtruth/painting.zip", 3.7),
            *_domainnet("quickdraw", "quickdraw.zip", 0.46),
            *_domainnet("real", "real.zip", 6.0),
            *_domainnet("sketch", "sketch.zip", 2.7),
        ),
    ),
    arrangement="listed",
    other_names=("domain_net", "DomainNet"),
    note="Only images in the official train and test lists are kept: the archives hold duplicates.",
)


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


CATALOGUE: dict[str, DataSet] = {
    entry.name: entry
    for entry in (
        DIGITS,
        RBF,
        FASHION_MNIST,
        MNIST,
        CIFAR10,
        HEART,
        VLCS,
        TERRA,
        PACS,
        OFFICE_HOME,
        DOMAIN_NET,
        RESNET18,
        RESNET50,
    )
}


def dataset(name: str) -> DataSet:
    """The entry of this name, or an error that suggests the nearest one."""
    if name not in CATALOGUE:
        raise UnknownNameError(
            f"Expected the name of a data set, but got {name!r}.{nearest(name, CATALOGUE)} "
            f"Known: {', '.join(CATALOGUE)}."
        )
    return CATALOGUE[name]


def chosen(names: Sequence[str]) -> list[DataSet]:
    """The entries of these names, each once; ``all`` stands for those that have files."""
    found = [dataset(name) for name in names if name != ALL]
    if ALL in names:
        found += [entry for entry in CATALOGUE.values() if entry.layout is not None]
    return list(dict.fromkeys(found))
