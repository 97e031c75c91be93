// The content of the page, and numbers as text. All numbers are those of the plan.
const data = JSON.parse(document.getElementById("data").textContent);
const plan = data.plan;

// As human_bytes() in C++ has it.
function bytesText(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let value = bytes / 1024, unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return `${value.toFixed(2)} ${units[unit]}`;
}

function timeText(seconds) {
  return seconds < 1 ? `${(seconds * 1e3).toFixed(3)} ms` : `${seconds.toFixed(3)} s`;
}

function flopText(flops) {
  const units = ["", "k", "M", "G", "T", "P", "E"];
  let unit = 0;
  while (flops >= 1000 && unit + 1 < units.length) {
    flops /= 1000;
    ++unit;
  }
  return `${unit ? flops.toFixed(2) : flops} ${units[unit]}FLOP`;
}

function countText(number, what) {
  return `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
}

function sum(list, value) {
  return list.reduce((total, one) => total + value(one), 0);
}
