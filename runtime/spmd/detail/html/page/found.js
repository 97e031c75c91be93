// Findings next to the plan: marks that a search chose, and changes that would make the program fit.
const costColumns = [
  {name: "needs", value: row => row.cost.peak_bytes, cell: row => size(row.cost.peak_bytes), isNumber: true},
  {name: "sends", value: row => row.cost.wire_bytes, cell: row => size(row.cost.wire_bytes), isNumber: true},
];
const timeColumns = plan.modelled ? [
  {name: "modelled", value: row => row.cost.modelled_seconds, cell: row => time(row.cost.modelled_seconds), isNumber: true},
] : [];
const fitColumn = {name: "fits", value: row => Number(row.fits), cell: row => row.fits ? "yes" : html("span", {class: "not"}, "no"), isTight: true};

// Seconds to read, and exactly.
function time(seconds, sign = "") {
  return html("span", {title: `${seconds} s`, "data-seconds": seconds}, sign + timeText(seconds));
}

function marksList(marks) {
  return html("ul", {class: "marks mono"}, marks.map(mark => html("li", {}, `--mark '${mark}'`)));
}

function search() {
  const search = plan.search;
  if (!search) return;
  at("search-part").hidden = false;
  at("search-note").textContent = `${search.exact ? "The best" : "The best found"} of ${countText(search.plans, "plan")}, by modelled times on ${plan.modelled.machine}. This page has the plan with them.`;
  at("search-marks").append(search.marks.length ? marksList(search.marks) : html("p", {class: "quiet"}, "None: every tensor is whole."));
  const own = {plan: "these marks", fits: search.fits, cost: search.cost};
  const hand = search.hand_made.map(one => ({plan: one.plan, fits: one.fits, cost: one}));
  const more = row => row.cost.modelled_seconds - search.cost.modelled_seconds;
  table(at("search"), [
    {name: "plan", value: row => row.plan, cell: row => row === own ? html("b", {}, row.plan) : row.plan},
    ...(plan.memory.capacity_bytes ? [fitColumn] : []), ...costColumns, ...timeColumns,
    {name: "takes longer by", value: more, isNumber: true,
     cell: row => row === own ? "" : more(row) < 0 ? time(-more(row), "-") : time(more(row))},
    {name: "bound by", value: row => row.cost.bound_by, isTight: true},
  ], [own, ...hand], 1 + hand.length);
}

function changes() {
  const changes = plan.changes;
  if (!changes) return;
  at("changes-part").hidden = false;
  at("changes-note").textContent = `The cheapest change of each kind that fits ${bytesText(plan.memory.capacity_bytes)} a device, or what comes nearest.`;
  const what = row => row.marks.length < 2 ? html("span", {class: "mono"}, row.change)
    : html("details", {}, html("summary", {}, countText(row.marks.length, "mark")), marksList(row.marks));
  table(at("changes"), [
    {name: "change", value: row => row.change, cell: what},
    {name: "kind", value: row => row.kind, isTight: true},
    fitColumn, ...costColumns, ...timeColumns,
    ...(plan.modelled ? [{name: "for a whole batch", value: row => row.whole_batch_seconds, cell: row => time(row.whole_batch_seconds), isNumber: true}] : []),
  ], changes, changes.length);
  if (plan.batch_refused) at("changes").append(html("p", {class: "quiet"}, `No smaller batch: ${plan.batch_refused}`));
}
