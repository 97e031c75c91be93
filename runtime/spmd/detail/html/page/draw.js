// Elements, made of text only: no name of a tensor is ever read as HTML.
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
}

function html(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function at(id) {
  return document.getElementById(id);
}

// Bytes to read, and exactly.
function size(bytes, attributes = {}) {
  return html("span", {title: `${bytes.toLocaleString("en")} bytes`, "data-bytes": bytes, ...attributes}, bytesText(bytes));
}

function swatch(name) {
  return html("span", {class: "swatch", style: `background: var(--${name})`, "aria-hidden": "true"});
}

// Calls draw(width) now and whenever the element gets another width.
function drawn(element, draw) {
  let width = 0;
  const redraw = () => {
    const now = Math.floor(element.clientWidth);
    if (now === width || now === 0) return;
    width = now;
    draw(width);
  };
  redraw();
  new ResizeObserver(redraw).observe(element);
}

// Round numbers from 0 to `most`, about `count` of them.
function ticks(most, count, base) {
  if (most <= 0) return [0];
  const rough = most / count, power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const steps = base === 2 ? [1, 2] : [1, 2, 5, 10];
  const step = power * (steps.find(one => one * power >= rough) ?? base);
  const list = [];
  for (let i = 0; i * step <= most * (1 + 1e-9); ++i) list.push(i * step);
  return list;
}

// "1.5 GiB" of a tick.
function tickBytes(bytes) {
  return bytesText(bytes).replace(/\.?0+ (?=.iB)/, " ");
}
