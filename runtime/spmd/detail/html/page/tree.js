// The inputs as a tree by their names; the chosen one with the reason of its cut and its tiles.
function tree() {
  const rows = data.inputs.rows;
  at("model-note").textContent = `${countText(rows.length + data.inputs.left_out, "input")}; bytes on the device that needs most.`
    + (data.inputs.left_out ? ` ${countText(data.inputs.left_out, "small one")} left out, ${bytesText(data.inputs.left_out_bytes)} together.` : "");
  const largest = rows.reduce((best, row, number) => row.whole_bytes > rows[best].whole_bytes ? number : best, 0);
  let rank = 0, chosen = null;

  const folder = () => ({folders: new Map(), leaves: [], bytes: 0, count: 0, hasLargest: false});
  const kinds = new Map();
  rows.forEach((row, number) => {
    if (!kinds.has(row.kind)) kinds.set(row.kind, folder());
    const parts = row.tensor.match(/[^./]+[./]?|[./]/g) ?? [row.tensor];
    let where = kinds.get(row.kind);
    const add = one => {
      one.bytes += row.bytes;
      ++one.count;
      one.hasLargest ||= number === largest;
    };
    add(where);
    for (const part of parts.slice(0, -1)) {
      if (!where.folders.has(part)) where.folders.set(part, folder());
      where = where.folders.get(part);
      add(where);
    }
    where.leaves.push({name: parts.at(-1), number});
  });

  function leaf({name, number}) {
    const row = rows[number];
    return html("button", {class: "leaf", type: "button", "aria-pressed": "false", "data-input": number, onclick: event => choose(number, event.currentTarget)},
      html("span", {class: "name mono"}, name), html("span", {class: "cut mono"}, cutText(row.cut)), size(row.bytes, {class: "size"}));
  }

  // Made when it is opened: there may be thousands.
  function branch(name, one, isOpen, kind) {
    while (!kind && one.leaves.length === 0 && one.folders.size === 1) {
      const [[more, only]] = one.folders;
      name += more;
      one = only;
    }
    if (!kind && one.folders.size === 0 && one.leaves.length === 1) return leaf({...one.leaves[0], name: name + one.leaves[0].name});
    const inside = html("div", {});
    const details = html("details", {"data-folder": name}, html("summary", {},
      html("span", {class: "name"}, kind ? swatch(kind) : null, html("span", {class: kind ? "" : "mono"}, name.replace(/(.)[./]$/, "$1"))),
      html("span", {class: "many"}, one.count.toLocaleString("en")), size(one.bytes, {class: "size", "data-kind": kind})), inside);
    const fillIn = () => {
      if (inside.childElementCount) return;
      inside.append(...[...one.folders].map(([part, child]) => branch(part, child, child.hasLargest)), ...one.leaves.map(leaf));
    };
    details.addEventListener("toggle", fillIn);
    if (isOpen) {
      fillIn();
      details.open = true;
    }
    return details;
  }

  function choose(number, button) {
    at("tree").querySelector('[aria-pressed="true"]')?.setAttribute("aria-pressed", "false");
    button?.setAttribute("aria-pressed", "true");
    const isFirst = chosen === null;
    chosen = number;
    show();
    const below = at("tensor").getBoundingClientRect().top > window.innerHeight * 0.8;
    if (!isFirst && below) at("tensor").scrollIntoView({block: "start", behavior: "auto"});
  }

  function setRank(position) {
    rank = Math.min(Math.max(position, 0), data.mesh.devices.length - 1);
    show();
  }

  function show() {
    const row = rows[chosen], layout = data.layouts[row.layout], device = data.mesh.devices[rank];
    const where = [];
    let rest = rank;
    for (const axis of [...data.mesh.axes].reverse()) {
      where.unshift(`${axis.name}=${rest % axis.size}`);
      rest = Math.floor(rest / axis.size);
    }
    const input = html("input", {id: "rank", type: "number", min: 0, max: data.mesh.devices.length - 1, value: device, inputmode: "numeric",
                                 onchange: event => {
                                   const position = data.mesh.devices.indexOf(Number(event.target.value));
                                   setRank(position < 0 ? rank : position);
                                   at("rank").focus();
                                 }});
    const step = (by, sign, label) => html("button", {type: "button", "aria-label": label, disabled: rank + by < 0 || rank + by >= data.mesh.devices.length,
                                                      onclick: () => setRank(rank + by)}, sign);
    const same = layout ? layout.tiles.filter(tile => tile === layout.tiles[rank]).length - 1 : 0;
    at("tensor").replaceChildren(html("div", {},
      html("h3", {class: "of mono"}, row.tensor),
      html("dl", {class: "rows"},
        html("dt", {}, "type"), html("dd", {class: "mono"}, row.type),
        html("dt", {}, "cut as"), html("dd", {class: "mono"}, cutText(row.cut)),
        html("dt", {}, "marked"), html("dd", {class: "mono"}, row.mark === null ? "not" : cutText(row.mark)),
        html("dt", {}, "on a device"), html("dd", {}, size(row.bytes)),
        html("dt", {}, "the whole tensor"), html("dd", {}, size(row.whole_bytes)),
        row.line ? [html("dt", {}, "from"), html("dd", {class: "mono"}, row.line)] : []),
      html("pre", {class: "why", "aria-label": "Why it is cut so"}, row.why.replace(/^ {2}/gm, "").trimEnd() || "a scalar"),
      layout ? [
        html("div", {class: "rank"}, html("label", {for: "rank"}, "Device"), step(-1, "\u2039", "The device before"), input, step(1, "\u203a", "The next device"),
             html("span", {class: "quiet mono"}, where.join(", "))),
        tilesPicture(layout, rank, setRank),
        html("p", {class: "quiet", id: "tile"}, `It has ${boxText(layout, layout.tiles[rank])}`
             + (same ? `, as ${countText(same, "other device")} ${same === 1 ? "does" : "do"}.` : ".")),
      ] : html("p", {class: "quiet"}, "There are too many tiles for a picture.")));
  }

  const first = ["parameter", "optimizer", "loader"], place = kind => first.includes(kind) ? first.indexOf(kind) : first.length;
  for (const [kind, one] of [...kinds].sort(([a], [b]) => place(a) - place(b))) {
    const isOpen = one.count <= 40 || one.hasLargest;
    at("tree").append(branch(kind, one, isOpen, kind));
  }
  if (rows.length === 0) {
    at("tree").remove();
    at("tensor").textContent = "The program has no inputs.";
    return;
  }
  choose(largest, at("tree").querySelector(`[data-input="${largest}"]`));
}

function cutText(cut) {
  return /^[-,]*$/.test(cut) ? "whole" : cut;
}
