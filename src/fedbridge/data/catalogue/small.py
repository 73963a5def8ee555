"""Entries whose every file is known by its content."""

from __future__ import annotations

from fedbridge.data.catalogue.entry import Content, DataSet, Download, Files

IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
IDX_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
CIFAR_BATCH = 30_730_000


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
