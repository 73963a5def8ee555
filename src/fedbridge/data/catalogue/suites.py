"""Entries of the image suites: folders ``domain/class/*.jpg`` as DomainBed names them."""

from __future__ import annotations

from fedbridge.data.catalogue.entry import DataSet, Domain, Download, ImageTree, Route

GIGABYTE = 10**9
CAMERA_TRAPS = (
    "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps",
    "https://lilawildlife.blob.core.windows.net/lila-wildlife/caltechcameratraps",
    "https://lilablobssc.blob.core.windows.net/caltechcameratraps",
)
DOMAINNET = tuple(
    f"{scheme}://csr.bu.edu/ftp/visda/2019/multi-source" for scheme in ("https", "http")
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


VLCS = DataSet(
    name="vlcs",
    title="VLCS: photos of 5 classes from four collections",
    tasks=("vlcs",),
    domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    sites=4,
    samples=10_729,
    licence="that of each of the four collections",
    citation="Fang, Xu, Rockmore: Unbiased metric learning, ICCV 2013",
    home="https://github.com/facebookresearch/DomainBed",
    layout=ImageTree(
        (
            Domain("Caltech101", 1415),
            Domain("LabelMe", 2656),
            Domain("SUN09", 3282),
            Domain("VOC2007", 3376),
        ),
        n_classes=5,
        classes=("bird", "car", "chair", "dog", "person"),
    ),
    routes=(_drive("VLCS.tar.gz", "1skwblH1_okBwxWxmRsp9_qi15hyPpxg8", 3_600_000_000),),
    other_names=("VLCS",),
)

PACS = DataSet(
    name="pacs",
    title="PACS: 7 classes as art paintings, cartoons, photos and sketches",
    tasks=("pacs",),
    domains=("art_painting", "cartoon", "photo", "sketch"),
    sites=4,
    samples=9_991,
    licence="none stated; research use",
    citation="Li, Yang, Song, Hospedales: Deeper, broader and artier domain generalization, "
    "ICCV 2017",
    home="https://dali-dl.github.io/project_iccv2017.html",
    layout=ImageTree(
        (
            Domain("art_painting", 2048),
            Domain("cartoon", 2344),
            Domain("photo", 1670),
            Domain("sketch", 3929),
        ),
        n_classes=7,
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    ),
    routes=(_drive("PACS.zip", "1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd", 180_000_000),),
    other_names=("PACS",),
)

OFFICE_HOME = DataSet(
    name="office-home",
    title="Office-Home: 65 classes of everyday objects in four styles",
    tasks=("office-home",),
    domains=("Art", "Clipart", "Product", "Real World"),
    sites=4,
    samples=15_588,
    licence="non-commercial research",
    citation="Venkateswara, Eusebio, Chakraborty, Panchanathan: Deep hashing network for "
    "unsupervised domain adaptation, CVPR 2017",
    home="https://www.hemanthdv.org/officeHomeDataset.html",
    layout=ImageTree(
        (
            Domain("Art", 2427),
            Domain("Clipart", 4365),
            Domain("Product", 4439),
            Domain("Real World", 4357),
        ),
        n_classes=65,
    ),
    routes=(_drive("OfficeHome.zip", "1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC", 1_130_000_000),),
    other_names=("office_home", "OfficeHome"),
)

TERRA = DataSet(
    name="terra",
    title="Terra Incognita: 10 classes of animals before four camera traps",
    tasks=("terra",),
    domains=("location_100", "location_38", "location_43", "location_46"),
    sites=4,
    samples=24_330,
    licence="CDLA-Permissive 1.0",
    citation="Beery, Van Horn, Perona: Recognition in Terra Incognita, ECCV 2018",
    home="https://lila.science/datasets/caltech-camera-traps",
    layout=ImageTree(
        (
            Domain("location_100", 4741, also=(4879,)),
            Domain("location_38", 9736, also=(9767,)),
            Domain("location_43", 3970, also=(4020,)),
            Domain("location_46", 5883, also=(6122,)),
        ),
        n_classes=10,
        classes=(
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

DOMAIN_NET = DataSet(
    name="domainnet",
    title="DomainNet: 345 classes in six styles",
    tasks=("domainnet",),
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    sites=6,
    samples=586_575,
    licence="fair use, non-commercial research",
    citation="Peng, Bai, Xia, Huang, Saenko, Wang: Moment matching for multi-source domain "
    "adaptation, ICCV 2019",
    home="http://ai.bu.edu/M3SDA/",
    layout=ImageTree(
        (
            Domain("clipart", 48129),
            Domain("infograph", 51605),
            Domain("painting", 72266),
            Domain("quickdraw", 172500),
            Domain("real", 172947),
            Domain("sketch", 69128),
        ),
        n_classes=345,
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
