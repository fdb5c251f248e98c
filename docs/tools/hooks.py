"""mkdocs' side of the generated pages: nothing that is generated is written into the source tree.

Pictures and results cost a minute and more; they are kept in build/docs under a hash of the code they come from (as
pickles: this machine's own, made by the build and read by it alone).
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from mkdocs.exceptions import PluginError
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
log = get_plugin_logger("innerloop")
Made = TypeVar("Made")


def on_config(config: Any) -> Any:
    """Fill the navigation's list of memories."""
    if str(DOCS) not in sys.path:
        sys.path.insert(0, str(DOCS))
    from tools import design

    families: dict[str, list[str]] = {}
    for place in design.places():
        families.setdefault(place.family, []).append(f"memories/{place.name}.md")
    groups = [{"All": "memories/index.md"}, *({family: pages} for family, pages in families.items())]
    for entry in config.nav:
        if isinstance(entry, dict) and "Memories" in entry:
            entry["Memories"] = groups
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and their pictures."""
    import innerloop as il
    from tools import api, gallery, memories, probe, table

    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, path, content=content))

    torch.set_num_threads(1)  # small matrices: more threads would wait for one another
    try:
        add("api.md", api.page())
    except ValueError as error:
        raise PluginError(str(error)) from None
    add("table.md", table.page())
    add("memories/index.md", memories.index())

    names = il.names()
    log.info("the standard stream through %d memories", len(names))
    behaviours = {
        name: kept(f"behaviour-{name}", lambda name=name: probe.behaviour(name), DOCS / "tools" / "probe.py")
        for name in names
    }
    for name in names:
        add(f"memories/{name}.md", memories.page(name, behaviours[name]))
        drawn = kept(f"picture-{name}", lambda name=name: probe.pictures(behaviours, name), DOCS / "tools" / "probe.py")
        for theme, png in drawn.items():
            add(f"assets/memories/{name}-{theme}.png", png)

    outcomes: dict[str, Any] = {}
    if config.extra.get("gallery"):
        from innerloop import look
        from innerloop.gallery import experiments

        for name, it in experiments().items():
            log.info("gallery: %s %s", name, it.title)
            outcomes[name], drawn = kept(f"gallery-{name}", lambda it=it: ran(it, look))
            for file, png in drawn.items():
                add(f"assets/gallery/{file}", png)
    add("gallery.md", gallery.page(outcomes))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Put the gallery's figures where pages name them."""
    from tools import gallery

    return gallery.with_figures(markdown, drawn=bool(config.extra.get("gallery")))


def ran(it: Any, look: Any) -> tuple[Any, dict[str, bytes]]:
    """An experiment's outcome without what draws its figures, and the figures as PNG."""
    outcome = it.run(lambda _: None)
    pictures = {
        f"{it.id}-{name}-{theme}.png": look.png(picture.paint, theme, size=picture.size)
        for name, picture in outcome.figures.items()
        for theme in look.THEMES
    }
    return type(outcome)(outcome.rows, dict.fromkeys(outcome.figures), outcome.notes), pictures


def kept(name: str, make: Callable[[], Made], *sources: Path) -> Made:
    """What `make` gives, from build/docs where the same library, torch and sources made it before."""
    file = ROOT / "build" / "docs" / f"{name}-{source_hash(sources)}.pickle"
    if file.exists():
        return pickle.loads(file.read_bytes())
    made = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    for stale in file.parent.glob(f"{name}-{'?' * 16}.pickle"):
        stale.unlink()
    part = file.with_suffix(".part")
    part.write_bytes(pickle.dumps(made))
    part.replace(file)
    return made


@cache
def source_hash(sources: tuple[Path, ...]) -> str:
    """Of the library, of torch's version and of these files."""
    digest = hashlib.sha256(torch.__version__.encode())
    for file in sorted([*(ROOT / "src").rglob("*.py"), *sources]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
