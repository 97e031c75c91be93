// Collectives one after another, a lane for each kind and its axes.
function timeline() {
  const all = data.collectives, hasTimes = all.seconds !== null;
  let sent = 0;
  const moves = all.moves.map(move => {  // without times, as long as the bytes that are sent
    const begin = hasTimes ? move.begin : sent;
    sent += move.wire_bytes;
    return {...move, begin, length: hasTimes ? move.seconds : move.wire_bytes};
  });
  const whole = (hasTimes ? all.seconds : sent) || 1, text = hasTimes ? timeText : bytesText;
  const note = at("time-note");
  if (moves.length === 0) {
    note.textContent = "The devices send each other nothing.";
    at("time-told").remove();
    return;
  }
  note.textContent = (hasTimes
    ? `Modelled times on ${plan.modelled.machine}, one operation after another: ${timeText(plan.modelled.compute_seconds)} computing, `
      + `${timeText(plan.modelled.collective_seconds)} collectives. Nothing here was measured.`
    : "In their order, each as wide as the bytes that one device sends. With a device, times are modelled.")
    + (all.left_out ? ` ${countText(all.left_out, "small one")} left out, ${bytesText(all.left_out_bytes)} together.` : "");
  const lanes = new Map();
  moves.forEach((move, number) => {
    const name = `${move.collective} over ${move.axes.join("+") || "no axis"}`;
    if (!lanes.has(name)) lanes.set(name, {name, collective: move.collective, numbers: []});
    lanes.get(name).numbers.push(number);
  });
  const rows = [...lanes.values()];
  rows.forEach(row => { row.bytes = sum(row.numbers, number => moves[number].wire_bytes); });
  rows.sort((a, b) => b.bytes - a.bytes);
  const rowHeight = 46, top = 4, height = top + rows.length * rowHeight + 24;
  let zoom = 1, chosen = 0, show = () => {}, width = 0;

  function draw() {
    const scroll = at("time-chart"), wide = width * zoom - 2;
    const x = value => value / whole * wide;
    const picture = svg("svg", {width: wide, height, class: "touch", tabindex: 0, role: "slider", "aria-label": "Collective of the timeline",
                                "aria-valuemin": 1, "aria-valuemax": moves.length});
    picture.append(svg("defs", {}, svg("pattern", {id: "not-asked", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"},
      svg("rect", {width: 3, height: 6, fill: "var(--card)", opacity: 0.55}))));
    for (const value of ticks(whole, Math.max(3, Math.min(wide / 130, 60)), hasTimes ? 10 : 2)) {
      picture.append(svg("line", {class: "grid", x1: x(value), x2: x(value), y1: top, y2: height - 20}),
                     svg("text", {x: Math.min(x(value), wide), y: height - 6, "text-anchor": value === 0 ? "start" : x(value) > wide - 40 ? "end" : "middle"},
                         !hasTimes ? tickBytes(value) : whole < 1 ? `${+(value * 1e3).toPrecision(4)} ms` : `${+value.toPrecision(4)} s`));
    }
    const shapes = [];
    rows.forEach((row, lane) => {
      const y = top + lane * rowHeight;
      picture.append(svg("rect", {x: 0, y: y + 20, width: wide, height: 20, fill: "var(--soft)", rx: 3}));
      for (const number of row.numbers) {
        const move = moves[number], box = {x: x(move.begin).toFixed(2), y: y + 20, width: Math.max(x(move.length), 0.8).toFixed(2), height: 20};
        shapes[number] = svg("rect", {...box, class: "move", fill: `var(--${row.collective})`});
        picture.append(shapes[number]);
        if (!move.is_asked_for) picture.append(svg("rect", {...box, fill: "url(#not-asked)", "pointer-events": "none"}));
      }
    });
    // The names stay where they can be read.
    const names = svg("g", {});
    rows.forEach((row, lane) => names.append(svg("text", {x: 0, y: top + lane * rowHeight + 14},
      svg("tspan", {style: "fill: var(--text); font-weight: 600"}, row.name), `\u00a0\u00a0\u00a0${row.numbers.length.toLocaleString("en")} \u00d7, ${bytesText(row.bytes)}`)));
    picture.append(names);
    scroll.onscroll = () => names.setAttribute("transform", `translate(${scroll.scrollLeft} 0)`);
    show = () => {
      picture.querySelector(".chosen")?.classList.remove("chosen");
      shapes[chosen].classList.add("chosen");
      picture.append(shapes[chosen]);
      picture.setAttribute("aria-valuenow", chosen + 1);
      picture.setAttribute("aria-valuetext", `${moves[chosen].collective} of ${moves[chosen].tensor}`);
    };
    const point = event => {
      const box = picture.getBoundingClientRect(), row = rows[Math.floor((event.clientY - box.top - top) / rowHeight)];
      if (!row) return;
      const value = (event.clientX - box.left) / wide * whole, far = number => {
        const move = moves[number];
        return Math.max(move.begin - value, value - move.begin - move.length, 0);
      };
      const nearest = row.numbers.reduce((best, number) => far(number) < far(best) ? number : best);
      if (x(far(nearest)) < 12) choose(nearest);
    };
    picture.addEventListener("pointermove", point);
    picture.addEventListener("pointerdown", point);
    picture.addEventListener("keydown", event => {
      const to = {ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: moves.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(Math.min(Math.max(to, 0), moves.length - 1));
      scroll.scrollLeft = x(moves[chosen].begin) - width / 2;
    });
    const had = scroll.contains(document.activeElement);
    scroll.replaceChildren(picture);
    if (had) picture.focus({preventScroll: true});
    scroll.onscroll();
    show();
  }

  function choose(number) {
    chosen = number;
    const move = moves[number];
    const often = move.times > 1 ? ` ${move.times.toLocaleString("en")} times` : "";
    at("time-told").replaceChildren(
      html("div", {}, swatch(move.collective), html("b", {}, move.collective), ` over ${move.axes.join("+")}${often}, `,
           html("b", {}, size(move.wire_bytes, {"data-move": number})), " sent by each device",
           hasTimes ? `, ${timeText(move.seconds)} at ${timeText(move.begin)} (modelled)` : ""),
      html("div", {class: "mono"}, move.tensor),
      html("div", {class: "quiet"}, [move.is_asked_for ? "asked for" : "not asked for: two operations cut a tensor differently",
                                    move.scope, move.line].filter(one => one).join(" \u00b7 ")));
    show();
  }

  const buttons = [["\u2212", "Zoom out", 0.25], ["+", "Zoom in", 4]].map(([sign, label, factor]) =>
    html("button", {type: "button", "aria-label": label, onclick: () => zoomBy(factor)}, sign));
  function zoomBy(factor) {
    const scroll = at("time-chart"), middle = (scroll.scrollLeft + width / 2) / zoom;
    zoom = Math.min(Math.max(zoom * factor, 1), 64);
    buttons[0].disabled = zoom === 1;
    buttons[1].disabled = zoom === 64;
    draw();
    scroll.scrollLeft = middle * zoom - width / 2;
  }
  buttons[0].disabled = true;
  at("time-zoom").append(buttons[0], " ", buttons[1]);
  drawn(at("time-chart"), now => {
    width = now;
    draw();
  });
  choose(moves.reduce((best, move, number) => move.length > moves[best].length ? number : best, 0));
}
