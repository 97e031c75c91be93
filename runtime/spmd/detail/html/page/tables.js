// A table that is sorted by any of its columns. columns: {name, value(row), cell(row), isNumber, isTight}
function table(element, columns, rows, mostShown) {
  let order = [...rows], by = null, isUp = false, shown = mostShown;
  const body = html("tbody", {});
  const heads = columns.map((column, number) => html("th", {scope: "col", class: column.isNumber ? "number" : ""},
    html("button", {type: "button", onclick: () => sort(number)}, column.name)));
  const more = html("button", {class: "more", type: "button", onclick: () => {
    shown = rows.length;
    draw();
  }}, `Show all ${rows.length.toLocaleString("en")}`);

  function sort(number) {
    isUp = by === number ? !isUp : !columns[number].isNumber;  // numbers: the largest first
    by = number;
    const value = columns[number].value, sign = isUp ? 1 : -1;
    order = [...rows].sort((a, b) => {
      const x = value(a), y = value(b);
      return sign * (typeof x === "string" ? x.localeCompare(y, "en", {numeric: true}) : x - y);
    });
    heads.forEach((head, i) => i === by ? head.setAttribute("aria-sort", isUp ? "ascending" : "descending") : head.removeAttribute("aria-sort"));
    draw();
  }

  function draw() {
    body.replaceChildren(...order.slice(0, shown).map(row => html("tr", {}, columns.map(column =>
      html("td", {class: [column.isNumber ? "number" : "", column.isTight ? "tight" : ""].join(" ").trim() || null, "data-name": column.name},
           html("span", {}, column.cell ? column.cell(row) : String(column.value(row))))))));
    more.hidden = shown >= rows.length;
  }

  draw();
  element.append(html("table", {}, html("thead", {}, html("tr", {}, heads)), body), more);
}

function tables() {
  const traffic = plan.traffic;
  at("traffic-note").textContent = traffic.length
    ? `${bytesText(sum(traffic, one => one.wire_bytes))} by each device in a step, by collective, axes and scope.`
    : "Nothing.";
  if (traffic.length) {
    table(at("traffic"), [
      {name: "sent", value: row => row.wire_bytes, cell: row => size(row.wire_bytes), isNumber: true},
      {name: "collective", value: row => row.collective, cell: row => [swatch(row.collective), row.collective], isTight: true},
      {name: "over", value: row => row.axes.join("+"), isTight: true},
      {name: "tensors", value: row => row.tensors, cell: row => row.tensors.toLocaleString("en"), isNumber: true},
      {name: "asked for", value: row => Number(row.is_asked_for), isTight: true,
       cell: row => row.is_asked_for ? "yes" : html("span", {class: "not", title: row.needed_by}, "no")},
      {name: "scope", value: row => row.scope, cell: row => html("span", {class: "mono"}, row.scope)},
      {name: "the largest", value: row => row.largest, cell: row => html("span", {class: "mono"}, row.largest)},
    ], traffic, 12);
  }
  table(at("largest"), [
    {name: "bytes", value: row => row.bytes, cell: row => size(row.bytes), isNumber: true},
    {name: "kind", value: row => row.kind, cell: row => [swatch(row.kind), row.kind], isTight: true},
    {name: "type", value: row => row.type, cell: row => html("span", {class: "mono"}, row.type)},
    {name: "cut", value: row => row.cut, cell: row => html("span", {class: "mono"}, cutText(row.cut))},
    {name: "tensor", value: row => row.tensor, cell: row => html("span", {class: "mono"}, row.tensor)},
  ], plan.memory.largest, plan.memory.largest.length);
}
