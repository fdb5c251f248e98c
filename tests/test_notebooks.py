"""The notebooks run from top to bottom, assertions and all, and are stored without what they print."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

nbformat: Any = pytest.importorskip("nbformat")
FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = ("deep-memories", "delta-rule-integrator", "regression-view")


def notebook(name: str) -> Any:
    """As it is stored."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)


def code(name: str) -> list[Any]:
    """Its code cells."""
    return [cell for cell in notebook(name).cells if cell.cell_type == "code"]


def executed(it: Any, folder: Path, timeout: int) -> Any:
    """Run in a kernel of its own, away from the checkout: nothing but the installed package is needed."""
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    resources = {"metadata": {"path": str(folder)}}
    return client.NotebookClient(it, timeout=timeout, kernel_name="python3", resources=resources).execute()


def test_every_notebook_is_tested() -> None:
    assert tuple(sorted(path.stem for path in FOLDER.glob("*.ipynb"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_stored_plainly(name: str) -> None:
    """Format 4 with cell ids, the plain Python kernel, no outputs, no counts, nothing of the machine it was made on."""
    it = notebook(name)
    nbformat.validate(it)
    assert (it.nbformat, it.nbformat_minor >= 5) == (4, True)
    assert it.metadata.kernelspec.name == "python3"
    assert set(it.metadata) <= {"kernelspec", "language_info"}
    assert len({cell.id for cell in it.cells}) == len(it.cells)
    for cell in it.cells:
        assert not cell.metadata, cell.id
    for cell in code(name):
        assert cell.outputs == [], cell.id
        assert cell.execution_count is None, cell.id


@pytest.mark.parametrize("name", NAMES)
def test_it_explains_asserts_and_asks(name: str) -> None:
    """Text before code, claims as assertions, exercises with hints at the end."""
    cells = notebook(name).cells
    assert cells[0].cell_type == cells[-1].cell_type == "markdown"
    asserted = sum(isinstance(node, ast.Assert) for cell in code(name) for node in ast.walk(ast.parse(cell.source)))
    assert asserted >= 20
    _, exercises = cells[-1].source.split("## Exercises")
    asked = [line for line in exercises.splitlines() if line[:1].isdigit()]
    assert len(asked) >= 5
    assert exercises.count("*Hint:") == len(asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell whose assertion fails, or that raises anything else, fails here with its source and traceback."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    it = executed(notebook(name), tmp_path, 120)
    cells = [cell for cell in it.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    drawn = sum("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert drawn >= 7


def test_an_assertion_that_fails_is_not_passed_over(tmp_path: Path) -> None:
    """What `test_it_runs` rests on."""
    client = pytest.importorskip("nbclient")
    it = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2, 'claimed'")])
    with pytest.raises(client.exceptions.CellExecutionError, match="claimed"):
        executed(it, tmp_path, 60)
