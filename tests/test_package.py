"""The package as a stranger gets it: wheel, lazy imports, version, and the README's code."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import innerloop as il

ROOT = Path(__file__).parents[1]


def python(code: str, **options: object) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


@pytest.mark.slow
def test_wheel_builds_and_imports(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("innerloop-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        assert "innerloop/py.typed" in archive.namelist()
        archive.extractall(site)
    code = "import innerloop as il; print(il.__file__); print(il.explain('rls').executor, len(il.names()))"
    where, rest = python(f"import sys; sys.path.insert(0, {str(site)!r}); {code}", cwd=tmp_path).splitlines()
    assert where.startswith(str(site))
    assert rest == f"exact {len(il.names())}"


def test_values_import_no_framework() -> None:
    code = "import sys, innerloop as il; il.get('gated_deltanet').to_json(); print('torch' in sys.modules)"
    assert python(code) == "False"


def test_every_public_name_resolves_and_is_documented() -> None:
    for name in il.__all__:
        member = getattr(il, name)
        assert name.startswith("_") or (member.__doc__ or "").strip(), name
    with pytest.raises(AttributeError):
        il.no_such_name  # noqa: B018


def test_version_of_the_command() -> None:
    assert il.__version__ in python("from innerloop.cli.main import app; app(['--version'])")


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
def test_readme_code_runs(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


def test_readme_lists_every_memory() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == il.names()


def test_docstring_examples() -> None:
    import doctest

    from innerloop.streaming import regressors

    assert doctest.testmod(regressors).failed == 0
