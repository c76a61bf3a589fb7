"""The notebook: its cells run in a kernel, in order, and say what the stored outputs say."""

import shutil
from importlib.util import find_spec

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import SAMPLES
from tests.fixtures.slow import SLOW

NOTEBOOK = SAMPLES / "notebook" / "quantize.ipynb"
CODE = [cell for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
VERDICT = CODE[-1]["outputs"]


def needs_torch(cell):
    """Tell whether a cell trains or exports the network."""
    return "torch" in cell["metadata"].get("tags", [])


@pytest.mark.skipif(not find_spec("tensorrt_rtx"), reason="tensorrt_rtx is not installed")
@SLOW
def test_every_cell_runs_and_the_verdict_is_the_stored_one(tmp_path):
    """Without torch the export is the model of the sample, as the notebook says."""
    for name in ("notebook", "digits"):
        shutil.copytree(SAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("work"))
    notebook = nbformat.read(tmp_path / "notebook" / "quantize.ipynb", 4)
    if not find_spec("torch"):
        work = tmp_path / "notebook" / "work"
        work.mkdir()
        shutil.copy(SAMPLES / "digits" / "digits.onnx", work)
        notebook.cells = [cell for cell in notebook.cells if not needs_torch(cell)]
    folder = {"metadata": {"path": str(tmp_path / "notebook")}}
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources=folder).execute()
    assert notebook.cells[-2]["outputs"] == VERDICT
    assert (tmp_path / "notebook" / "work" / "report.html").is_file()


def test_outputs_are_stored_without_a_path_or_an_error():
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert len(outputs) == len(CODE)
    assert {output["output_type"] for output in outputs} == {"execute_result", "stream"}
    assert [cell["execution_count"] for cell in CODE] == [*range(1, len(CODE) + 1)]
    text = NOTEBOOK.read_text()
    assert not any(f"/{place}/" in text for place in ("home", "root", "tmp", "Users"))
    assert VERDICT[0]["text"] == "SHIP\n"
