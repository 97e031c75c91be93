// Memory by kind over the steps, and what has it at the chosen one.
function memory() {
  const curve = data.curve, points = curve.points, peak = plan.memory.peak_bytes, capacity = plan.memory.capacity_bytes;
  const kinds = curve.kinds.map((kind, number) => ({kind, number})).filter(({number}) => points.some(point => point.bytes[number] > 0));
  const total = point => sum(point.bytes, bytes => bytes);
  const most = Math.max(peak, capacity && capacity < 1.5 * peak ? capacity : 1);
  const thinned = points.length < curve.steps ? ` Of every few steps the lowest and the highest are drawn.` : "";
  at("memory-note").textContent = "The fullest device, step by step: "
    + `${countText(curve.steps, "step")}. Point at the curve, or use the arrow keys.` + thinned;
  const height = 300, left = 70, right = 14, top = 26, bottom = 26;
  let chosen = curve.fullest, move = () => {};

  function draw(width) {
    const end = Math.max(curve.steps, 1);
    const x = step => left + step / end * (width - left - right), y = bytes => height - bottom - bytes / most * (height - top - bottom);
    const next = i => i + 1 < points.length ? points[i + 1].step : end;
    const picture = svg("svg", {width, height, class: "touch", tabindex: 0, role: "slider", "aria-label": "Step of the memory curve",
                                "aria-valuemin": 0, "aria-valuemax": Math.max(curve.steps - 1, 0)});
    for (const bytes of ticks(most, 5, 2)) {
      picture.append(svg("line", {class: "grid", x1: left, x2: width - right, y1: y(bytes), y2: y(bytes)}),
                     svg("text", {x: left - 8, y: y(bytes) + 4, "text-anchor": "end"}, tickBytes(bytes)));
    }
    const marks = ticks(end, width < 500 ? 4 : 8, 10).filter(step => Number.isInteger(step) && x(step) < width - right - 24);
    for (const step of marks) picture.append(svg("text", {x: x(step), y: height - 8, "text-anchor": step ? "middle" : "start"}, step.toLocaleString("en")));
    picture.append(svg("text", {x: width - right, y: height - 8, "text-anchor": "end"}, "step"));
    const below = points.map(() => 0);
    for (const {kind, number} of kinds) {
      const base = [...below];
      let up = "", down = "";
      for (let i = 0; i < points.length; ++i) {
        below[i] += points[i].bytes[number];
        up += `${i ? "V" : `M${x(0)} `}${y(below[i]).toFixed(1)}H${x(next(i)).toFixed(1)}`;
      }
      for (let i = points.length - 1; i >= 0; --i) down += `V${y(base[i]).toFixed(1)}H${x(i ? points[i].step : 0).toFixed(1)}`;
      picture.append(svg("path", {d: up + down + "Z", fill: `var(--${kind})`, "data-kind": kind}));
    }
    const line = (bytes, text, css) => picture.append(
      svg("line", {class: `limit ${css}`, x1: left, x2: width - right, y1: y(bytes), y2: y(bytes)}),
      svg("text", {class: "strong halo", x: width - right, y: y(bytes) - 6, "text-anchor": "end"}, text));
    line(peak, `needs ${bytesText(peak)}`, "");
    if (capacity && most > peak * 1.08) line(capacity, `has ${bytesText(capacity)}`, "has");
    else if (capacity && capacity < peak) line(capacity, capacity < peak * 0.92 ? `has ${bytesText(capacity)}` : "", "has");
    const cursor = svg("line", {class: "cursor", y1: top, y2: height - bottom}), dot = svg("circle", {class: "dot", r: 4.5});
    picture.append(cursor, dot);
    move = () => {
      const point = points[chosen], middle = (x(chosen === 0 ? 0 : point.step) + x(next(chosen))) / 2;
      cursor.setAttribute("x1", middle);
      cursor.setAttribute("x2", middle);
      dot.setAttribute("cx", middle);
      dot.setAttribute("cy", y(total(point)));
      picture.setAttribute("aria-valuenow", point.step);
      picture.setAttribute("aria-valuetext", `step ${point.step}: ${bytesText(total(point))}, ${point.name}`);
    };
    const point = event => {
      const step = (event.clientX - picture.getBoundingClientRect().left - left) / (width - left - right) * end;
      let low = 0, high = points.length;
      while (high - low > 1) {
        const middle = low + high >> 1;
        if (points[middle].step <= step) low = middle;
        else high = middle;
      }
      choose(low);
    };
    picture.addEventListener("pointermove", point);
    picture.addEventListener("pointerdown", point);
    picture.addEventListener("keydown", event => {
      const to = {ArrowLeft: chosen - 1, ArrowRight: chosen + 1, PageUp: chosen - 20, PageDown: chosen + 20, Home: 0, End: points.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(Math.min(Math.max(to, 0), points.length - 1));
    });
    const had = at("memory-chart").contains(document.activeElement);
    at("memory-chart").replaceChildren(picture);
    if (had) picture.focus({preventScroll: true});
    move();
  }

  const held = numbers => html("ul", {class: "held"}, numbers.map(number => curve.tensors[number]).map(tensor => html("li", {},
    size(tensor.bytes, {class: "size"}),
    html("span", {class: "what"}, swatch(tensor.kind), html("span", {class: "mono"}, tensor.tensor), " ",
         html("span", {class: "quiet mono"}, `${tensor.type} ${tensor.cut || "whole"}`)))));

  function choose(number) {
    chosen = number;
    const point = points[number], sumHere = total(point), isPeak = number === curve.fullest;
    const rows = kinds.filter(one => point.bytes[one.number] > 0).map(one => [
      html("dt", {}, swatch(one.kind), one.kind), html("dd", {}, size(point.bytes[one.number], {"data-kind": one.kind}))]);
    if (peak > sumHere) {
      rows.push([html("dt", {}, swatch("gaps"), isPeak ? "gaps" : "not in use"),
                 html("dd", {}, size(peak - sumHere, {"data-kind": "gaps"}))]);
    }
    rows.push([html("dt", {class: "sum"}, "needs"), html("dd", {class: "sum"}, size(peak))]);
    const where = [point.line, point.seconds === null ? "" : `at ${timeText(point.seconds)} (modelled)`].filter(text => text).join(", ");
    at("memory-under").replaceChildren(
      html("div", {class: "at"},
        html("span", {class: "quiet"}, isPeak ? `The peak: step ${point.step}` : `Step ${point.step}`),
        html("b", {class: "mono"}, point.name || "nothing is computed"), html("span", {class: "quiet"}, where),
        isPeak ? null : html("button", {class: "link", type: "button", onclick: () => choose(curve.fullest)}, "to the peak")),
      html("div", {}, html("h3", {}, "By kind"), html("dl", {class: "rows"}, rows.flat())),
      html("div", {},
        point.largest.length ? [html("h3", {}, "Made by the step, the largest there"), held(point.largest)] : [],
        curve.always.length ? [html("h3", {}, "There all the time, the largest"), held(curve.always.slice(0, 3))] : []));
    move();
  }

  drawn(at("memory-chart"), draw);
  choose(curve.fullest);
}
