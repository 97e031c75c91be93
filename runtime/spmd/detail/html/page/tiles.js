// The tiles of a tensor, with the one that a device has: the last two dims that are cut run down and to the right, and there
// is a plane for each combination of tiles of the other dims.
function tilesPicture(layout, rank, choose) {
  const mostTiles = 1024, cuts = layout.cuts, counts = cuts.map(cut => cut.length - 1), own = layout.tiles[rank];
  const product = list => list.reduce((all, one) => all * one, 1);
  if (product(counts) > mostTiles) return html("p", {class: "quiet"}, `${countText(product(counts), "tile")}: too many to draw.`);
  const strides = counts.map((_, dim) => product(counts.slice(dim + 1)));
  const dims = counts.map((_, dim) => dim), seen = dims.filter(dim => counts[dim] > 1).slice(-2);
  for (const dim of [...dims].reverse()) if (seen.length < 2 && !seen.includes(dim)) seen.push(dim);
  seen.sort((a, b) => a - b);
  const whole = {cut: [0, 1], stride: 0}, shownDim = dim => dim === undefined ? whole : {cut: cuts[dim], stride: strides[dim]};
  const across = shownDim(seen.at(-1)), down = shownDim(seen.length > 1 ? seen[0] : undefined);
  const others = dims.filter(dim => !seen.includes(dim)), leading = {cuts: others.map(dim => cuts[dim])};
  const planes = [...Array(product(others.map(dim => counts[dim]))).keys()].filter(plane => !isEmpty(leading, plane));

  const holders = new Map();
  layout.tiles.forEach((tile, position) => holders.set(tile, [...holders.get(tile) ?? [], position]));
  const wide = across.cut.at(-1), high = down.cut.at(-1);
  if (wide === 0 || high === 0) return null;
  // As the tensor is, as far as that can be seen.
  const many = planes.length > 1, width = many ? 200 : 400, shape = Math.min(Math.max(high / wide, seen.length > 1 ? 0.3 : 0.12), 0.8);
  const height = Math.round(width * shape), gap = 18, caption = many ? 18 : 0, perRow = many ? 2 : 1;
  const pageWidth = perRow * (width + gap) - gap, pageHeight = Math.ceil(planes.length / perRow) * (height + gap + caption) - gap;
  const picture = svg("svg", {viewBox: `0 0 ${pageWidth} ${pageHeight}`, width: "100%", style: `max-width: ${pageWidth}px`, role: "img",
                              "aria-label": `This device has ${boxText(layout, own)}`});
  for (const [place, plane] of planes.entries()) {
    const left = place % perRow * (width + gap), top = Math.floor(place / perRow) * (height + gap + caption);
    const index = tileIndex(leading, plane);
    if (many) {
      const text = others.map((dim, i) => `dim ${dim}: ${cuts[dim][index[i]]}:${cuts[dim][index[i] + 1]}`).join(", ");
      picture.append(svg("text", {x: left, y: top + 12}, text));
    }
    const before = others.reduce((all, dim, i) => all + index[i] * strides[dim], 0);
    for (let row = 0; row + 1 < down.cut.length; ++row) {
      for (let column = 0; column + 1 < across.cut.length; ++column) {
        const tile = before + row * down.stride + column * across.stride, who = holders.get(tile) ?? [];
        const x = left + across.cut[column] / wide * width, w = (across.cut[column + 1] - across.cut[column]) / wide * width;
        const y = top + caption + down.cut[row] / high * height, h = (down.cut[row + 1] - down.cut[row]) / high * height;
        if (w <= 0 || h <= 0) continue;  // an empty tile
        const devices = who.map(position => data.mesh.devices[position]), isOwn = tile === own;
        picture.append(svg("rect", {class: isOwn ? "tile own" : "tile", x, y, width: w, height: h, "data-tile": tile,
                                    style: Math.min(w, h) < 5 ? "stroke-width: 0.4" : null, onclick: () => who.length && choose(who[0])},
                           svg("title", {}, `${boxText(layout, tile)} on ${devicesText(devices, 400)}`)));
        const text = devicesText(devices, Math.floor((w - 10) / 7));
        if (h > 18 && text) picture.append(svg("text", {class: isOwn ? "tile-text on" : "tile-text", x: x + 6, y: y + 15}, text));
      }
    }
  }
  const axis = dims.length > 2 ? html("p", {class: "quiet"}, `Dim ${seen[0]} runs down, dim ${seen[1]} to the right.`) : null;
  return html("div", {}, picture, axis);
}

// The numbers of the tile in each dim.
function tileIndex(layout, number) {
  const index = [];
  for (let dim = layout.cuts.length - 1; dim >= 0; --dim) {
    const count = layout.cuts[dim].length - 1;
    index[dim] = number % count;
    number = Math.floor(number / count);
  }
  return index;
}

function boxText(layout, number) {
  const index = tileIndex(layout, number);
  const box = layout.cuts.map((cut, dim) => `${cut[index[dim]]}:${cut[index[dim] + 1]}`).join(", ");
  return `[${box}]${isEmpty(layout, number) ? ", no elements" : ""}`;
}

function isEmpty(layout, number) {
  const index = tileIndex(layout, number);
  return layout.cuts.some((cut, dim) => cut[index[dim]] === cut[index[dim] + 1]);
}

// "0, 4, 8 +5", in at most that number of letters; "" if not even one fits.
function devicesText(devices, letters) {
  let text = "";
  for (let i = 0; i < devices.length; ++i) {
    const more = (i ? ", " : "") + devices[i], rest = devices.length - i - 1;
    if (text.length + more.length > letters - (rest ? ` +${rest}`.length : 0)) return text ? `${text} +${devices.length - i}` : "";
    text += more;
  }
  return text;
}
