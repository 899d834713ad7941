// Small charts for the Status panel.
//
// sparkline(measured, most, label) a line over time; `most` is the top of the chart, `label` says it in words
// bar(parts, total, label)         parts [{value, kind}] of a total beside each other; `kind` becomes the class of the part

import { shape } from "./dom.js";

const [WIDTH, HEIGHT] = [240, 48];

export function sparkline(measured, most, label) {
  const values = measured.length > 1 ? measured : [measured[0], measured[0]];
  const step = WIDTH / (values.length - 1);
  const y = (value) => HEIGHT - 2 - (HEIGHT - 4) * Math.min(1, value / most);
  const points = values.map((value, i) => `${(i * step).toFixed(1)},${y(value).toFixed(1)}`);
  const area = shape("polygon", { class: "area", points: [`0,${HEIGHT}`, ...points, `${WIDTH},${HEIGHT}`].join(" ") });
  return chart("sparkline", label, HEIGHT, [area, shape("polyline", { class: "line", points: points.join(" ") })]);
}

export function bar(parts, total, label) {
  const ground = shape("rect", { class: "ground", x: 0, y: 0, width: WIDTH, height: 10 });
  let x = 0;
  const shapes = parts.map(({ value, kind }) => {
    // What is there can be seen, however small.
    const width = value && total ? Math.min(WIDTH - x, Math.max(2, (WIDTH * value) / total)) : 0;
    const part = shape("rect", { class: kind, x: x.toFixed(1), y: 0, height: 10, width: width.toFixed(1) });
    x += width;
    return part;
  });
  return chart("bar", label, 10, [ground, ...shapes]);
}

function chart(name, label, height, shapes) {
  const attributes = { class: name, viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label };
  return shape("svg", attributes, ...shapes);
}
