"""The documentation: its code runs and prints what it says, nothing public is undocumented, the site stands alone."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import innerloop as il

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

from tools import api, design, fences, gallery, memories, probe, table  # noqa: E402

PAGES = sorted(path for path in DOCS.glob("*.md"))
ALONE = {"extend.md"}  # registers a memory, which other tests must not see


@pytest.fixture
def as_usual() -> Iterator[None]:
    """Pages may choose a default dtype and a seed."""
    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    yield
    torch.set_default_dtype(dtype)
    torch.set_rng_state(state)


# ---------------------------------------------------------------------------------------------- code of the pages


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in ALONE], ids=lambda p: p.stem)
@pytest.mark.usefixtures("as_usual")
def test_code_of_the_page_runs_and_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    ran = list(fences.run(text, page.name, tmp_path))
    wanted = [b for b in fences.blocks(text) if b.no_run is None and not fences.missing(b)]
    assert [block for block, _ in ran] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALONE))
def test_code_that_registers_runs_alone(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(DOCS / "tools" / "fences.py"), str(DOCS / name)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    titles = [b.title for b in fences.blocks((DOCS / name).read_text(encoding="utf-8")) if b.title]
    assert sorted(path.name for path in tmp_path.glob("*.py")) == sorted(titles)
    assert len(titles) == 3  # a memory, an objective, a learner


def test_every_page_with_code_says_what_some_of_it_prints() -> None:
    for page in PAGES:
        found = [b for b in fences.blocks(page.read_text(encoding="utf-8")) if b.no_run is None and not b.title]
        assert not found or any(b.prints is not None for b in found), page.name


@pytest.mark.parametrize("name", il.names())
@pytest.mark.usefixtures("as_usual")
def test_code_of_a_memory_page(name: str, tmp_path: Path) -> None:
    text = memories.page(name, None)
    assert len(list(fences.run(text, name, tmp_path))) == 3
    e = il.explain(name)
    assert "".join(e.equation.split()) in "".join(text.split())
    for gate in e.gates:
        assert f"`{gate.name}`" in text
        assert f"`{gate.letter}`" in text or not gate.letter
    assert " ".join(e.departs.split())[:40] in text.replace("\\|", "|")


def test_blocks_are_found_with_their_marks() -> None:
    text = (
        '```python\nx = 1\n```\n\n```text title="prints"\n```\n\n<!-- no-run: wants a GPU -->\n```python\nboom\n```\n'
        '=== "tab"\n\n    ```python title="m.py"\n    y = 2\n    ```\n'
        "<!-- needs: no_such_module -->\n```python\nboom\n```\n"
        "```sh\nls\n```\n"
    )
    first, gpu, module, needy = fences.blocks(text)
    assert (first.code, first.prints, first.line) == ("x = 1\n", "", 2)
    assert (gpu.no_run, module.title, module.code) == ("wants a GPU", "m.py", "y = 2\n")
    assert fences.missing(needy) == ["no_such_module"]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("<!-- no-run: -->\n```python\nx\n```\n", ValueError, "needs a reason"),
        ('word\n```text title="prints"\n1\n```\n', ValueError, "follows no python block"),
        ('```python\nprint(1)\n```\n```text title="prints"\n2\n```\n', AssertionError, "the page says"),
        ("```python\nraise KeyError(3)\n```\n", KeyError, "3"),
    ],
)
def test_pages_that_are_wrong_are_refused(text: str, error: type, words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        list(fences.run(text, "page", tmp_path))


def test_blocks_share_a_namespace_and_import_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (
        '```python title="module_of_the_page.py"\nvalue = 41\n```\n```python\nimport module_of_the_page as m\n'
        "x = m.value\n```\n```python\nprint(x + 1)\n```\n"
    )
    assert [printed for _, printed in fences.run(text, "page", tmp_path)] == ["", "42\n"]


# ------------------------------------------------------------------------------------------------------ the API


def test_nothing_public_is_undocumented() -> None:
    assert api.undocumented() == []


def test_undocumented_symbols_are_named() -> None:
    @dataclass(frozen=True)
    class Bare:
        x: int = 0

    class Partly:
        """Documented."""

        def told(self) -> None:
            """Documented."""

        def untold(self) -> None: ...

        @property
        def value(self) -> int:
            return 0

    class Child(Partly):
        """Documented; inherits."""

        def told(self) -> None: ...

    def function() -> None: ...

    space = SimpleNamespace(Bare=Bare, Partly=Partly, Child=Child, function=function)
    found = api.undocumented(space, ["Bare", "Partly", "Child", "function"])
    assert found == ["Bare", "Partly.untold", "Partly.value", "function"]


def test_page_fails_on_an_undocumented_symbol(monkeypatch: pytest.MonkeyPatch) -> None:
    def get() -> None: ...

    monkeypatch.setattr(il, "get", get)
    with pytest.raises(ValueError, match="undocumented: get"):
        api.page()


def test_page_has_every_public_name_and_command() -> None:
    text = api.page()
    named = set(re.findall(r"^::: innerloop\.(\w+)$", text, re.MULTILINE))
    assert named == {name for name in il.__all__ if not name.startswith("_")}
    for command in ("list", "show", "compare", "forecast", "reproduce", "bench"):
        assert f"### innerloop {command}\n" in text


def test_field_lists_become_lists() -> None:
    griffe = pytest.importorskip("griffe")
    from tools.docstrings import listed

    assert griffe
    assert listed("a: one\n    more\nb, c: two") == "- `a`: one\n  more\n- `b`, `c`: two"
    assert listed("Summary.\n\nArgs:\n    x: one") == "Summary.\n\nArgs:\n    x: one"
    assert listed("Two rules: this\nand that.") == "Two rules: this\nand that."


# ------------------------------------------------------------------------------- the table, the gallery, the stream


def test_table_page_carries_every_memory() -> None:
    text = table.page()
    raw = re.search(r'<script type="application/json" id="design-space-data">(.*?)</script>', text, re.DOTALL)
    assert raw
    data = json.loads(raw[1])
    assert sorted(row["name"] for row in data["rows"]) == il.names()
    for axis in data["axes"]:
        assert all(row[axis["key"]] for row in data["rows"])
    assert {row["family"] for row in data["rows"]} == set(design.FAMILIES)
    assert "<" not in raw[1]


def test_gallery_page_marks_what_differs() -> None:
    from innerloop.gallery.experiment import Outcome, Picture, Row

    outcome = Outcome(
        [Row("a | b", 0.25, "0.250", True), Row("c", "text", None, False)],
        {"fit": Picture(lambda figure, palette: None)},
        ["It is so."],
    )
    text = gallery.page({"D1": outcome})
    assert r"| a \| b | 0.25 | 0.250 | holds |" in text
    assert "| c | text | – | **differs** |" in text
    assert "assets/gallery/D1-fit-dark.png#only-dark" in text
    assert text.count("\n## ") == len(gallery.experiments())


def test_pages_name_figures_of_the_gallery() -> None:
    text = "before ![words](gallery:D1-sweep) after"
    assert gallery.with_figures(text, drawn=False) == "before  after"
    light, dark = gallery.with_figures(text, drawn=True).splitlines()
    assert light == "before ![words](assets/gallery/D1-sweep-light.png#only-light){ loading=lazy }"
    assert dark.startswith("![words](assets/gallery/D1-sweep-dark.png#only-dark)")


def test_standard_stream_is_what_it_says() -> None:
    s = probe.stream(seed=0)
    assert s.k.shape == (probe.STREAMS, probe.TOKENS, 1, probe.CHANNELS)
    assert torch.allclose(s.k.norm(dim=-1), torch.tensor(probe.CHANNELS**0.5))
    assert torch.equal(s.k[:, probe.WRITTEN], s.k[:, probe.OVERWRITTEN])
    assert not torch.equal(s.v[:, probe.WRITTEN], s.v[:, probe.OVERWRITTEN])


def test_behaviour_of_the_delta_rule_against_a_loop() -> None:
    found = probe.behaviour("deltanet")
    s = probe.stream(seed=0)
    query = probe.stream(seed=2).k[:, 0, 0].double().numpy()
    k, v = s.k[:, :, 0].double().numpy(), s.v[:, :, 0].double().numpy()
    struck_v = v.copy()
    struck_v[:, probe.OUTLIER] *= probe.LARGE
    S = struck = np.zeros((probe.STREAMS, probe.CHANNELS, probe.CHANNELS))
    norm, old, new, change = [], [], [], []
    asked = k[:, probe.WRITTEN]
    for t in range(probe.TOKENS):
        S, struck = (
            M + found.lr * np.einsum("bk,bv->bkv", k[:, t], u[:, t] - np.einsum("bkv,bk->bv", M, k[:, t]))
            for M, u in ((S, v), (struck, struck_v))
        )
        norm.append(np.linalg.norm(S, axis=(1, 2)).mean())
        answer = np.einsum("bkv,bk->bv", S, asked)
        old.append(cosine(answer, v[:, probe.WRITTEN]))
        new.append(cosine(answer, v[:, probe.OVERWRITTEN]))
        if t == probe.OUTLIER - 1:
            recall = [cosine(np.einsum("bkv,bk->bv", S, k[:, t - age]), v[:, t - age]) for age in (0, 7, 40)]
        if t >= probe.OUTLIER:
            plain, moved = (np.einsum("bkv,bk->bv", M, query) for M in (S, struck))
            change.append(np.linalg.norm(moved - plain) / np.linalg.norm(plain))
    np.testing.assert_allclose(found.norm, norm, rtol=1e-3)
    np.testing.assert_allclose(found.old, old, atol=2e-3)
    np.testing.assert_allclose(found.new, new, atol=2e-3)
    np.testing.assert_allclose(found.recall[[0, 7, 40]], recall, atol=2e-3)
    np.testing.assert_allclose(found.change, change, rtol=1e-2)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)).mean())


def test_what_keeps_every_pair_recalls_every_pair() -> None:
    found = probe.behaviour("softmax_attention")
    known = np.isfinite(found.recall)
    assert known.sum() == probe.AGES - 2  # the overwritten key has two values
    assert found.recall[known].min() > 0.95
    assert found.lr is None
    assert found.log_decay is None


def test_picture_of_a_memory_in_both_themes() -> None:
    behaviours = {name: probe.behaviour(name) for name in ("softmax_attention", "retnet")}
    light, dark = probe.pictures(behaviours, "retnet").values()
    assert light.startswith(b"\x89PNG")
    assert dark.startswith(b"\x89PNG")
    assert light != dark


# ------------------------------------------------------------------------------------------------------ the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, without the gallery's runs."""
    pytest.importorskip("material", reason="builds the site: pip install mkdocs-material mkdocstrings-python")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    options = {**os.environ, "DOCS_GALLERY": "false", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=options, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_site_has_every_page_and_picture(site: Path) -> None:
    for name in il.names():
        assert (site / "memories" / f"{name}.html").exists()
        for theme in ("light", "dark"):
            assert (site / "assets" / "memories" / f"{name}-{theme}.png").stat().st_size > 20_000
    html = (site / "api.html").read_text(encoding="utf-8")
    for name in il.__all__:
        assert name.startswith("_") or f'id="innerloop.{name}"' in html, name
    assert not list(site.rglob("*.py"))


@pytest.mark.slow
def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc=["']?https?:|<link[^>]*\shref=["']?https?:""")
    for page in site.rglob("*.html"):
        assert not fetched.search(page.read_text(encoding="utf-8")), page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"""(?:url\(|@import )["']?https?:""", sheet.read_text(encoding="utf-8")), sheet.name


@pytest.fixture
def browser(site: Path) -> Iterator[Any]:
    """`open_page(path, **context)` in a headless Chromium; `page.complaints` has what its console says."""
    sync = pytest.importorskip("playwright.sync_api", reason="drives the browser: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"
    with sync.sync_playwright() as play:
        program = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def open_page(path: str, **context: Any) -> Any:
            page = program.new_context(**context).new_page()
            page.complaints = []
            page.on("console", lambda m: page.complaints.append(m.text) if m.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: page.complaints.append(str(error)))
            page.on("request", lambda r: None if r.url.startswith((base, "data:")) else page.complaints.append(r.url))
            page.goto(base + path)
            page.wait_for_load_state("networkidle")
            return page

        yield open_page
        program.close()
    server.shutdown()


def names_shown(page: Any) -> list[str]:
    return page.locator("#design-space .ds-row:visible button").all_inner_texts()


@pytest.mark.slow
def test_table_filters_searches_and_opens(browser: Any) -> None:
    page = browser("table.html")
    assert sorted(names_shown(page)) == il.names()
    page.select_option("#ds-objective", "Huber loss")
    assert names_shown(page) == ["yaad"]
    assert page.inner_text("#design-space [role=status]") == f"1 of {len(il.names())} memories"
    page.click("text=Show all")
    page.fill("#ds-search", "delta kimi")
    assert names_shown(page) == ["kda"]
    page.click("#kda td:nth-child(3)")
    opened = page.inner_text("#ds-more-kda")
    e = il.explain("kda")
    assert " ".join(e.equation.split()) in " ".join(opened.split())
    assert e.flops in opened
    assert page.url.endswith("#kda")
    page.click("#kda button")
    assert not page.is_visible("#ds-more-kda")
    page.fill("#ds-search", "no such thing")
    assert names_shown(page) == []
    assert page.complaints == []


@pytest.mark.slow
def test_table_works_by_keyboard_and_by_link(browser: Any) -> None:
    page = browser("table.html#titans")
    assert page.is_visible("#ds-more-titans")
    page.focus("#ds-search")
    page.keyboard.type("attention")
    for _ in range(9):  # eight selects and the button
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    first, second = names_shown(page)[:2]
    assert page.evaluate("document.activeElement.textContent") == first
    page.keyboard.press("Enter")
    assert page.is_visible(f"#ds-more-{first}")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == second
    page.keyboard.press("Space")
    assert page.is_visible(f"#ds-more-{second}")
    page.keyboard.press("Escape")
    assert not page.is_visible(f"#ds-more-{second}")
    assert page.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_and_follow_the_scheme(browser: Any, scheme: str, width: int) -> None:
    for path in ("table.html#atlas", "memories/atlas.html", "index.html"):
        page = browser(path, color_scheme=scheme, viewport={"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate("document.body.dataset.mdColorScheme") == ("default" if scheme == "light" else "slate")
        for theme in ("light", "dark"):
            for picture in page.locator(f"img[src*='-{theme}.png']").all():
                assert picture.is_visible() == (theme == scheme)
        assert page.complaints == []
