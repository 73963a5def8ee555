"""The notebooks of the examples: each runs as it is, and what is committed is small and whole."""

import json
import re
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 150_000
SECONDS = 600
"""A notebook takes some seconds; a busy machine many more."""


def test_there_are_three_and_all_are_listed():
    listed = re.findall(r"\]\((\w+\.ipynb)\)", (FOLDER / "README.md").read_text())
    assert sorted(listed) == [file.name for file in NOTEBOOKS]
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_what_is_committed_is_small_whole_and_without_errors(file):
    text = file.read_text("utf-8")
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(text) < MOST_BYTES
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    kinds = {(out["output_type"], out.get("name")) for cell in code for out in cell["outputs"]}
    assert kinds <= {("execute_result", None), ("display_data", None), ("stream", "stdout")}
    assert "/root/" not in text
    assert "/home/" not in text
    for cell in cells:
        for link in re.findall(r"\]\(([^)#:]+)\)", "".join(cell["source"])):
            if cell["cell_type"] == "markdown":
                assert (FOLDER / link).exists(), link


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:ResourceWarning")
def test_a_notebook_runs(file, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="the extra `dev` is not installed")
    nbformat = pytest.importorskip("nbformat", reason="the extra `dev` is not installed")
    folder = tmp_path / "notebooks"
    shutil.copytree(FOLDER, folder)
    shutil.copytree(FOLDER.parent / "hospitals", tmp_path / "hospitals")
    book = nbformat.read(folder / file.name, as_version=4)
    for cell in book.cells:
        cell.pop("outputs", None)
    client = nbclient.NotebookClient(
        book, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
