"""Sites with folders of images, or with arrays: described, agreed on and read as tables are."""

import json

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from pictures import noise_image, write_images

from fedbridge.base.errors import NotAgreedError
from fedbridge.cli.main import main
from fedbridge.data.images.preprocessing import ImagePreprocessing
from fedbridge.data.load import load_task
from fedbridge.deploy import folder_checks
from fedbridge.deploy.checking import check
from fedbridge.deploy.description import read_description
from fedbridge.deploy.folders import Deployment, DeploymentError
from fedbridge.deploy.loading import as_agreed, own_rows

SITES = ("A", "B", "T")
FLAGS = {"images": "--form images --image-size 8", "npz": "--form npz"}


@pytest.fixture(autouse=True)
def _no_link(monkeypatch):
    monkeypatch.setattr(folder_checks, "reach_link", lambda *_: None)


def init(folder, words=""):
    command = f"deploy init --sites A,B --target T --rounds 2 {words}"
    assert main([*command.split(), "--out", str(folder)]) == 0
    return Deployment(folder)


def write_data(root, form):
    """``root/SITE`` as folders of images, or ``root/SITE.npz``; class 2 is not at B."""
    if form == "images":
        write_images(root, ("A", "T"), ("cat", "cow", "dog"), 10)
        return write_images(root, ("B",), ("cat", "dog"), 10)
    root.mkdir()
    for number, site in enumerate(SITES):
        rng = np.random.default_rng(number)
        y = np.arange(30) % (2 if site == "B" else 3) + 3
        np.savez(root / f"{site}.npz", X=rng.normal(size=(30, 5)) + y[:, None], y=y)
    return root


def give(made, root, form):
    for name in SITES:
        data = root / name if form == "images" else root / f"{name}.npz"
        file = made.site(name).settings_file
        file.write_text(file.read_text().replace('data = ""', f'data = "{data}"'))


def context(made, site, **run):
    settings = made.site(site).settings()
    node = {"site": site, "role": settings.role, "data": settings.data}
    node |= made.plan().read_as()
    config = {"target": "T", "seed": 0, "n-target": 6, "test-fraction": 0.3, **run}
    return Context(1, 1, node, RecordDict(), config)


@pytest.fixture(params=["images", "npz"])
def form(request):
    return request.param


@pytest.fixture
def agreed(form, tmp_path):
    made = init(tmp_path / "dep", FLAGS[form])
    give(made, write_data(tmp_path / "data", form), form)
    for name in SITES:
        assert main(["deploy", "check", str(made.site(name).folder)]) == 0
    check(made.folder)
    return made


def finding(report, what):
    return [found for found in report.findings if found.what == what]


def test_rows_are_those_of_the_task_on_one_machine(agreed, tmp_path, form):
    options = {"image_size": 8} if form == "images" else {}
    task = load_task(tmp_path / "data", "T", 0, n_target=6, **options)
    load = own_rows(agreed.schema)
    for expected in (*task.sources, task.target):
        site = load(context(agreed, expected.name))
        assert site.train.x.equal(expected.x)
        assert site.train.x.dtype == expected.x.dtype
        assert site.train.y.equal(expected.y)
        assert site.train.prepare == expected.prepare
        assert site.class_names == task.class_names
    target = load(context(agreed, "T"))
    assert target.test.x.equal(task.test.x)
    assert target.test.y.equal(task.test.y)
    assert target.preprocessing == task.preprocessing


def test_a_description_has_shape_labels_and_counts_and_no_row(agreed, form):
    file = agreed.site("B").description
    told = json.loads(file.read_text())
    assert told["arrays"]["shape"] == ([3, 8, 8] if form == "images" else [5])
    assert told["arrays"]["labels"] == (["cat", "dog"] if form == "images" else [3, 4])
    assert (told["rows"], told["columns"]) == (20 if form == "images" else 30, [])
    assert read_description(file).arrays.record() == {
        **told["arrays"],
        "shape": tuple(told["arrays"]["shape"]),
        "labels": tuple(told["arrays"]["labels"]),
    }


def test_the_coordinator_agrees_and_names_labels_that_a_site_lacks(agreed, form):
    ok, note = finding(check(agreed.folder), "agreement")
    assert "3 classes; written into the app" in ok.said
    lacking = "'cow'" if form == "images" else "5"
    assert note.said == f"site 'B' has no rows with the label {lacking}"


def test_the_coordinator_knows_how_new_data_are_treated(agreed, form):
    expected = ImagePreprocessing(8) if form == "images" else None
    assert as_agreed(agreed.schema)() == expected


def test_pages_name_the_data_and_what_to_predict_for(agreed, form):
    page = agreed.site("T").start_here.read_text()
    new = "NEW-IMAGES" if form == "images" else "NEW.npz"
    assert f"fedbridge predict run {new} --out" in page
    assert f"predict {agreed.site('T').run} {new}" in agreed.runbook.read_text()
    what = "a folder with a folder of images per class" if form == "images" else "an .npz"
    assert what in " ".join(page.split())
    assert what in agreed.site("A").settings_file.read_text()
    assert "label-column" not in agreed.site("A").settings_file.read_text()


def test_a_label_that_came_later_is_refused_by_the_sites_own_node(agreed, tmp_path, form):
    if form == "images":
        place = tmp_path / "data" / "B" / "fox"
        place.mkdir()
        noise_image(place / "1.png")
    else:
        np.savez(tmp_path / "data" / "B.npz", X=np.ones((30, 5)), y=np.arange(30))
    with pytest.raises(NotAgreedError, match="as the sites agreed"):
        own_rows(agreed.schema)(context(agreed, "B"))


def test_sites_whose_samples_differ_are_listed(tmp_path):
    made = init(tmp_path / "dep", FLAGS["npz"])
    root = write_data(tmp_path / "data", "npz")
    np.savez(root / "B.npz", X=np.ones((30, 4)), y=np.arange(30) % 2)
    give(made, root, "npz")
    for name in SITES:
        check(made.site(name).folder)
    (found,) = finding(check(made.folder), "agreement")
    assert found.state == "problem"
    assert "A has numbers of shape (5,); B has numbers of shape (4,)" in found.said


def test_labels_of_another_kind_at_one_site_are_a_problem(tmp_path):
    made = init(tmp_path / "dep", FLAGS["npz"])
    root = write_data(tmp_path / "data", "npz")
    np.savez(root / "B.npz", X=np.ones((30, 5)), y=np.array(["x", "y"] * 15))
    give(made, root, "npz")
    for name in SITES:
        check(made.site(name).folder)
    (found,) = finding(check(made.folder), "agreement")
    assert "Expected labels coded in one way" in found.said


def test_numbers_to_predict_need_no_list_of_labels(tmp_path):
    made = init(tmp_path / "dep", FLAGS["npz"])
    root = tmp_path / "data"
    root.mkdir()
    for number, name in enumerate(SITES):
        x = np.random.default_rng(number).normal(size=(30, 5))
        np.savez(root / f"{name}.npz", X=x, y=x.sum(1))
    give(made, root, "npz")
    for name in SITES:
        check(made.site(name).folder)
    (found,) = finding(check(made.folder), "agreement")
    assert "numbers to predict" in found.said
    site = own_rows(made.schema)(context(made, "T"))
    assert site.n_classes is None
    assert site.train.y.dtype.is_floating_point


@pytest.mark.parametrize("data", ["file.txt", "nowhere"])
def test_data_of_another_form_are_a_problem(form, tmp_path, data):
    made = init(tmp_path / "dep", FLAGS[form])
    (tmp_path / "file.txt").write_text("x")
    file = made.site("A").settings_file
    file.write_text(file.read_text().replace('data = ""', f'data = "{tmp_path / data}"'))
    (found,) = finding(check(made.site("A").folder), "data")
    assert found.state == "problem"
    assert found.said.startswith("Expected")


def test_a_class_of_few_images_is_a_note(tmp_path):
    made = init(tmp_path / "dep", FLAGS["images"])
    root = write_data(tmp_path / "data", "images")
    (root / "A" / "rare").mkdir()
    noise_image(root / "A" / "rare" / "1.png")
    give(made, root, "images")
    notes = [f.said for f in finding(check(made.site("A").folder), "data") if f.state == "note"]
    assert notes == ["fewer than 5 rows each have the label 'rare': may a stranger know?"]


def test_another_size_of_images_is_agreed_to_by_every_site(tmp_path, capsys):
    made = init(tmp_path / "dep", FLAGS["images"])
    root = write_data(tmp_path / "data", "images")
    give(made, root, "images")
    for name in SITES:
        check(made.site(name).folder)
    before = made.site("A").settings_file.read_text()
    assert main(["deploy", "change", str(made.folder), "--image-size", "16"]) == 0
    assert "fedbridge deploy change . --image-size 16" in capsys.readouterr().out
    made.site("A").settings_file.write_text(before)  # what the site itself still has
    check(made.site("A").folder)
    (found,) = finding(check(made.folder), "A: data")
    assert "another image-size" in found.said
    assert main(["deploy", "change", str(made.site("A").folder), "--image-size", "16"]) == 0
    assert made.site("A").settings().arrays.image_size == 16


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--form npz --image-size 8", "but got --image-size"),
        ("--grayscale", "but got --grayscale"),
        ("--form images --label-column y", "but got --label-column"),
        ("--form images --image-size 2", "--image-size"),
    ],
)
def test_options_of_another_form_are_refused(tmp_path, words, message, capsys):
    command = f"deploy init --sites A,B --target T --out {tmp_path / 'dep'} {words}"
    assert main(command.split()) == 2
    assert message in capsys.readouterr().err


def test_the_form_of_a_deployment_stays(agreed, capsys):
    assert main(["deploy", "change", str(agreed.folder), "--form", "table"]) == 2
    assert "make a new deployment" in " ".join(capsys.readouterr().err.split())


def test_images_get_a_network_for_images(agreed, form):
    assert agreed.plan().model == ("cnn" if form == "images" else "mlp")


def test_a_damaged_agreement_is_one_sentence(agreed):
    agreed.schema.write_text('{"arrays": {"format": 1}}')
    with pytest.raises(DeploymentError, match="let the coordinator write it again"):
        own_rows(agreed.schema)(context(agreed, "A"))


@pytest.mark.parametrize(
    "change",
    [
        {"labels": ["a", 1]},
        {"labels": [["a"]]},
        {"labels": ["a\u001b[1m", "b"]},
        {"shape": [0]},
        {"shape": "x"},
        {"format": 9},
        {"reading": {"form": "video", "image_size": 8, "grayscale": False}},
    ],
)
def test_a_description_from_elsewhere_is_not_believed(agreed, change):
    file = agreed.site("A").description
    told = json.loads(file.read_text())
    told["arrays"] |= change
    file.write_text(json.dumps(told))
    with pytest.raises(DeploymentError, match="let the site write it again"):
        read_description(file)
