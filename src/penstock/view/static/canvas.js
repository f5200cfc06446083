// Drawings on canvases: they fit their width, the pixels of the screen, and light or dark.

import { make } from "./dom.js";

export const CLASSES = ["#2c6aa0", "#dd9c3a", "#3f8f70", "#b9573f", "#7d66ad", "#5aa9c9", "#9fb347", "#c87fa8", "#6f7c8b", "#94714e"];
const MARGIN = { left: 58, right: 10, top: 10, bottom: 34 };

const watching = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach((entry) => entry.target.redraw())));
const shown = new Set();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown.forEach((one) => (one.isConnected ? one.redraw() : shown.delete(one))));

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function canvas(label, height, draw) {
  const element = make("canvas", { aria: { label } });
  element.setAttribute("role", "img");
  element.redraw = () => {
    const width = element.clientWidth, tall = typeof height === "function" ? height(width) : height;
    if (!width) return;
    const scale = window.devicePixelRatio || 1;
    element.width = Math.round(width * scale);
    element.height = Math.round(tall * scale);
    element.style.height = `${tall}px`;
    const pen = element.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    draw(pen, width, tall);
  };
  watching.observe(element);
  shown.add(element);
  return element;
}

export function frame(pen, width, height, { x, y, xs, ys }) {
  const box = { left: MARGIN.left, top: MARGIN.top, width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - (x ? MARGIN.bottom : MARGIN.bottom - 12) };
  pen.fillStyle = colour("muted");
  pen.strokeStyle = colour("grid");
  pen.lineWidth = 1;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const [share, text] of ys) {
    const at = box.top + box.height * (1 - share);
    pen.beginPath();
    pen.moveTo(box.left, Math.round(at) + 0.5);
    pen.lineTo(box.left + box.width, Math.round(at) + 0.5);
    pen.stroke();
    pen.fillText(text, box.left - 7, at);
  }
  pen.textBaseline = "top";
  xs.forEach(([share, text], i) => {
    pen.textAlign = i === 0 ? "left" : i === xs.length - 1 ? "right" : "center";
    pen.fillText(text, box.left + box.width * share, box.top + box.height + 6);
  });
  pen.textAlign = "center";
  pen.fillText(x, box.left + box.width / 2, box.top + box.height + 20);
  if (y) {
    pen.save();
    pen.translate(8, box.top + box.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.textBaseline = "middle";
    pen.fillText(y, 0, 0);
    pen.restore();
  }
  return box;
}

export function scatter(pen, box, xs, ys, scale) {
  pen.fillStyle = colour("blue");
  pen.globalAlpha = xs.length > 6000 ? 0.55 : 0.8;
  const dot = xs.length > 3000 ? 1.5 : 2.4;
  xs.forEach((x, i) => pen.fillRect(box.left + (box.width * x) / scale - dot / 2, box.top + box.height * (1 - ys[i] / scale) - dot / 2, dot, dot));
  pen.globalAlpha = 1;
}

export function heat(pen, box, bins, counts) {
  const mean = counts.reduce((a, b) => a + b, 0) / counts.length || 1;
  const wide = box.width / bins, tall = box.height / bins;
  pen.fillStyle = colour("blue");
  counts.forEach((value, i) => {
    pen.globalAlpha = Math.min(1, 0.42 * Math.sqrt(value / mean));
    const row = Math.floor(i / bins), column = i % bins;
    pen.fillRect(box.left + column * wide, box.top + box.height - (row + 1) * tall, wide + 0.4, tall + 0.4);
  });
  pen.globalAlpha = 1;
}

export function stacks(pen, box, shares) {
  const wide = box.width / Math.max(1, shares.length), gap = wide > 5 ? 1 : 0;
  shares.forEach((row, i) => {
    let from = 0;
    row.forEach((share, k) => {
      pen.fillStyle = CLASSES[k] || colour("pale");
      pen.fillRect(box.left + i * wide, box.top + box.height * (1 - from - share), wide - gap, box.height * share);
      from += share;
    });
  });
}

export function course(pen, box, values, times, most, ink) {
  const first = times[0], span = times[times.length - 1] - first || 1;
  const x = (i) => box.left + (box.width * (times[i] - first)) / span, y = (value) => box.top + box.height * (1 - value / most);
  pen.beginPath();
  values.forEach((value, i) => (i ? pen.lineTo(x(i), y(value)) : pen.moveTo(x(i), y(value))));
  pen.strokeStyle = colour(ink);
  pen.lineWidth = 1.8;
  pen.lineJoin = "round";
  pen.stroke();
  if (values.length === 1) { pen.fillStyle = colour(ink); pen.fillRect(x(0) - 2, y(values[0]) - 2, 4, 4); return; }
  pen.lineTo(box.left + box.width, box.top + box.height);
  pen.lineTo(box.left, box.top + box.height);
  pen.fillStyle = colour(ink);
  pen.globalAlpha = 0.12;
  pen.fill();
  pen.globalAlpha = 1;
}

export function round(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999) || 10 * power;
}
