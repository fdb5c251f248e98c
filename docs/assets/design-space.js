// The design-space table: filters by axis, text search, rows that open. Data is in the page; nothing is fetched.
"use strict";

(() => {
  const root = document.getElementById("design-space");
  const source = document.getElementById("design-space-data");
  if (!root || !source) return;
  const { axes, rows } = JSON.parse(source.textContent);
  const shown = ["architecture", "objective", "retention", "learner", "solver"];
  const title = (key) => axes.find((axis) => axis.key === key).title;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null) made.setAttribute(name, value);
    }
    made.append(...children.flat(Infinity));
    return made;
  }

  // ---- filters
  const search = element("input", { type: "search", id: "ds-search", placeholder: "name, paper, letter", autocomplete: "off" });
  const selects = axes.map((axis) => {
    const select = element("select", { id: `ds-${axis.key}`, "data-axis": axis.key });
    select.addEventListener("change", update);
    return select;
  });
  search.addEventListener("input", update);
  const clear = element("button", { type: "button" }, "Show all");
  clear.addEventListener("click", () => {
    search.value = "";
    selects.forEach((select) => (select.value = ""));
    update();
    search.focus();
  });
  const count = element("p", { role: "status", "aria-live": "polite" });
  const filters = element(
    "div",
    { class: "ds-filters", role: "group", "aria-label": "Filters" },
    element("label", { for: "ds-search" }, "Search", search),
    axes.map((axis, i) => element("label", { for: `ds-${axis.key}` }, axis.title, selects[i])),
  );

  // ---- rows
  const head = element("thead", {}, element("tr", {}, ["Name", ...shown.map(title)].map((text) => element("th", { scope: "col" }, text))));
  const body = element("tbody");
  const entries = rows.map((row) => {
    const button = element("button", { type: "button", "aria-expanded": "false", "aria-controls": `ds-more-${row.name}` }, row.name);
    const line = element(
      "tr",
      { class: "ds-row", id: row.name },
      element("td", {}, button),
      shown.map((key) => element("td", { title: title(key) }, row[key])),
    );
    const more = element("tr", { class: "ds-more", id: `ds-more-${row.name}`, hidden: true }, element("td", { colspan: shown.length + 1 }));
    line.addEventListener("click", (event) => {
      if (getSelection().isCollapsed || event.target === button) toggle(entry);
    });
    body.append(line, more);
    const text = [row.name, row.summary, row.paper, row.departs, row.equation, ...axes.map((axis) => row[axis.key]), ...row.gates.map((g) => g.letter)];
    const entry = { row, button, line, more, text: text.join(" ").toLowerCase() };
    button.addEventListener("keydown", (event) => move(event, entry));
    return entry;
  });

  function details(row) {
    const gates = row.gates.map((g) => `${g.name}${g.letter ? ` (${g.letter})` : ""}: ${g.meaning}`).join("; ");
    const facts = [
      ...axes.map((axis) => [axis.title, row[axis.key]]),
      ["State", `${row.state} floats per head`],
      ["Cost", `${row.cost} FLOPs per token and head`],
      ["Gradient", row.gradient],
      ["In parallel", row.parallel],
      ["Gates", gates || "none"],
      ["Paper", row.paper],
      ["Departs", row.departs],
    ];
    return [
      element("div", {}, row.summary),
      element("pre", { tabindex: "0" }, row.equation),
      element("dl", {}, facts.map(([name, value]) => [element("dt", {}, name), element("dd", {}, marked(value))])),
      element("a", { href: `memories/${row.name}.html` }, `The page of ${row.name}, with its behaviour on the standard stream`),
    ];
  }

  // `code` in the texts
  function marked(text) {
    return text.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
  }

  function toggle(entry, open = entry.more.hidden) {
    const cell = entry.more.firstElementChild;
    if (open && !cell.hasChildNodes()) cell.append(...details(entry.row));
    entry.more.hidden = !open;
    entry.button.setAttribute("aria-expanded", String(open));
    history.replaceState(null, "", open ? `#${entry.row.name}` : location.pathname + location.search);
  }

  function move(event, entry) {
    const visible = entries.filter((other) => !other.line.hidden);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const target = event.key === "Home" ? visible[0] : event.key === "End" ? visible.at(-1) : step && visible[visible.indexOf(entry) + step];
    if (event.key === "Escape" && !entry.more.hidden) toggle(entry, false);
    if (!target) return;
    event.preventDefault();
    target.button.focus();
  }

  // ---- filtering: an option says how many rows it would leave, all other filters as they are
  function matches(entry, except) {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return (
      words.every((word) => entry.text.includes(word)) &&
      selects.every((select) => select === except || !select.value || entry.row[select.dataset.axis] === select.value)
    );
  }

  function update() {
    for (const select of selects) {
      const key = select.dataset.axis;
      const chosen = select.value;
      const left = entries.filter((entry) => matches(entry, select));
      const values = [...new Set(rows.map((row) => row[key]))];
      const options = values.map((value) => {
        const number = left.filter((entry) => entry.row[key] === value).length;
        return element("option", { value, disabled: !number && value !== chosen }, `${value} (${number})`);
      });
      select.replaceChildren(element("option", { value: "" }, "any"), ...options);
      select.value = chosen;
      select.classList.toggle("ds-active", Boolean(chosen));
    }
    let number = 0;
    for (const entry of entries) {
      const keep = matches(entry);
      number += keep;
      entry.line.hidden = !keep;
      entry.more.hidden = !keep || entry.button.getAttribute("aria-expanded") !== "true";
    }
    count.textContent = number === rows.length ? `${number} memories` : `${number} of ${rows.length} memories`;
    clear.disabled = number === rows.length && !search.value && selects.every((select) => !select.value);
  }

  root.replaceChildren(
    filters,
    element("div", { class: "ds-bar" }, count, clear),
    element("table", { class: "ds-table" }, head, body),
  );
  update();
  const linked = entries.find((entry) => `#${entry.row.name}` === location.hash);
  if (linked) {
    toggle(linked, true);
    linked.line.scrollIntoView({ block: "center" });
  }
})();
