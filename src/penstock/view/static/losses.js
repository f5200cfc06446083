// The loss of a run over its steps. Spikes are points: a click, or the table, opens the batch.

import { div, facts, make, table } from "./dom.js";
import { count, figure, rough } from "./format.js";
import { canvas, colour, frame } from "./canvas.js";
import { button, input } from "./controls.js";
import { drawing } from "./order.js";
import { drawn, go, here, link } from "./state.js";

const NEAR = 14; // pixels

export async function losses() {
  const query = here().query, range = Object.fromEntries(["from", "to"].filter((name) => query.get(name)).map((name) => [name, query.get(name)]));
  return div("", div("controls", input("From step", "from", { hint: "first" }), input("to step", "to", { hint: "last" }),
    Object.keys(range).length ? button("All steps", () => go("losses", { from: null, to: null })) : null), await drawn("api/losses", range, curve));
}

function curve(found) {
  const known = found.pieces.filter((piece) => piece[2] !== null);
  const words = found.num_spikes > found.spikes.length ? `the ${count(found.spikes.length)} largest of ${count(found.num_spikes)}` : "";
  return div("",
    facts([["Steps", count(found.steps), `${count(found.first)} to ${count(found.last)}`], ["Losses", count(found.losses)], ["Spikes", count(found.num_spikes), words],
      found.damaged ? ["Damaged", count(found.damaged), "blocks without their checksum, left out"] : null]),
    known.length ? drawing("Loss", "The line is the mean of a stretch of steps, the band its least and largest step, the amber line the level (a running median). A click on a spike opens its batch.", chart(known, found.spikes)) : make("p", { className: "soft" }, "There is no loss in these steps."),
    make("section", {}, make("h2", {}, "Spikes"), found.spikes.length ? list(found.spikes) : make("p", { className: "soft" }, "No step is far above the level around it.")));
}

function list(spikes) {
  const names = ["step", "loss", "level", "z", "not finite"];
  return table(names, spikes.map((one) => [make("a", { className: "id", href: link("batch", { step: one.step }) }, count(one.step)), rough(one.mean), rough(one.level), rough(one.z), one.lost ? count(one.lost) : "–"]), names);
}

function chart(pieces, spikes) {
  const first = pieces[0][0], last = pieces[pieces.length - 1][0], wide = last - first || 1;
  const heights = [...pieces.flatMap((piece) => [piece[1], piece[3], piece[4]]), ...spikes.map((one) => one.mean)].filter(Number.isFinite);
  const low = Math.min(...heights), high = Math.max(...heights), tall = high - low || 1;
  const shown = spikes.filter((one) => one.step >= first - wide && one.step <= last + wide);
  const axes = { x: "step", y: "loss", xs: [first, ...(wide % 2 && wide < 9 ? [] : [Math.round((first + last) / 2)]), last].map((step, i, all) => [i / (all.length - 1), count(step)]), ys: [0, 0.5, 1].map((share) => [share, figure(Number((low + share * tall).toPrecision(3)))]) };
  let box = null;
  const x = (step) => box.left + box.width * Math.min(1, Math.max(0, (step - first) / wide)), y = (value) => box.top + box.height * (1 - ((Number.isFinite(value) ? value : high) - low) / tall);
  const at = (event) => shown.map((one) => [Math.hypot(x(one.step) - event.offsetX, y(one.mean) - event.offsetY), one]).filter(([far]) => far <= NEAR).sort((a, b) => a[0] - b[0])[0];
  const element = canvas("mean loss over steps", 320, (pen, width, height) => {
    box = frame(pen, width, height, axes);
    band(pen, pieces, x, y);
    line(pen, pieces.map((piece) => [x(piece[0]), y(piece[4])]), "amber", 1.4);
    line(pen, pieces.map((piece) => [x(piece[0]), y(piece[2])]), "blue", 1.6);
    pen.fillStyle = colour("bad");
    for (const one of shown) { pen.beginPath(); pen.arc(x(one.step), y(one.mean), 4, 0, 2 * Math.PI); pen.fill(); }
  });
  element.addEventListener("click", (event) => { const found = at(event); if (found) go("batch", { step: found[1].step }); });
  element.addEventListener("mousemove", (event) => {
    const found = at(event);
    element.classList.toggle("over", Boolean(found));
    element.title = found ? `step ${count(found[1].step)}: loss ${figure(found[1].mean)}` : "";
  });
  return element;
}

function band(pen, pieces, x, y) {
  pen.beginPath();
  pieces.forEach((piece, i) => (i ? pen.lineTo(x(piece[0]), y(piece[3])) : pen.moveTo(x(piece[0]), y(piece[3]))));
  [...pieces].reverse().forEach((piece) => pen.lineTo(x(piece[0]), y(piece[1])));
  pen.fillStyle = colour("blue");
  pen.globalAlpha = 0.18;
  pen.fill();
  pen.globalAlpha = 1;
}

function line(pen, points, ink, width) {
  pen.beginPath();
  points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.strokeStyle = colour(ink);
  pen.lineWidth = width;
  pen.lineJoin = "round";
  pen.stroke();
}
