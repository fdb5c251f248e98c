"""The design-space page: a table to filter, its data in the page."""

from __future__ import annotations

import json

from . import design

PAGE = """---
hide:
  - navigation
  - toc
---

# The design space

Every memory is a choice in one equation. Filter by Miras' four axes (memory, attentional bias, retention, learner) or
by the three of test-time regression (weights, function class, solver); a row opens to its equation, cost and paper.

<div id="design-space" class="ds">
<noscript><p>This table is drawn by a script. Without one: <a href="memories/index.html">the list of memories</a>,
each with its page, or <code>innerloop list</code> in a terminal.</p></noscript>
</div>
<script type="application/json" id="design-space-data">{data}</script>
<script src="assets/design-space.js" defer></script>

K, V: channels of keys and values; F: of features; n: pairs kept; c: tokens of a tile; T: tokens read. State in floats,
cost in FLOPs per token, both per head.
"""


def data() -> dict[str, object]:
    """What the page's script reads: the axes with their titles, and the rows."""
    axes = [{"key": key, "title": title, "of": "Miras"} for key, title in design.MIRAS.items()]
    axes += [{"key": key, "title": title, "of": "Regression"} for key, title in design.REGRESSION.items()]
    axes.append({"key": "executor", "title": "Executor", "of": "innerloop"})
    return {"axes": axes, "rows": [place.to_dict() for place in design.places()]}


def page() -> str:
    """The page. `<` is escaped, so that no text can close the script element."""
    return PAGE.format(data=json.dumps(data(), ensure_ascii=False).replace("<", "\\u003c"))
