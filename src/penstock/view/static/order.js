// The order as a picture: which records come when, and how well classes are mixed.

import { div, make, span } from "./dom.js";
import { count } from "./format.js";
import { CLASSES, canvas, frame, heat, scatter, stacks } from "./canvas.js";
import { orderControls, select } from "./controls.js";
import { chosen, drawn, here } from "./state.js";

const SCALE = 65535;

export async function order(about) {
  return div("", orderControls({ epoch: true }),
    await drawn("api/order", chosen("epoch"), pictures),
    about.data.labels.length ? await mix(about) : make("p", { className: "soft" }, "The class mix needs a field with one whole number a record."));
}

function pictures(found) {
  const top = count(found.length);
  const axes = { x: "position in the epoch", y: "record", xs: [[0, "0"], [1, top]], ys: [[0, "0"], [1, top]] };
  const square = (width) => Math.min(460, Math.max(260, width * 0.8));
  return div("",
    make("p", { className: "soft small" }, make("code", {}, found.text), ` · ${count(found.steps)} steps an epoch`),
    div("two",
      drawing("Records over time", `${count(found.points)} positions, evenly spread; a good shuffle looks like noise.`,
        canvas("records over positions", square, (pen, width, height) => scatter(pen, frame(pen, width, height, axes), found.x, found.y, SCALE))),
      drawing("How often", `${count(found.samples)} positions in ${found.bins} × ${found.bins} squares; a good shuffle is even.`,
        canvas("heat map of records over positions", square, (pen, width, height) => heat(pen, frame(pen, width, height, axes), found.bins, found.counts)))));
}

export function drawing(title, caption, element, extra = null) {
  return make("figure", {}, make("h2", {}, title), extra, element, make("figcaption", {}, caption));
}

function mix(about) {
  const names = about.data.fields.map((field) => field.name);
  const choices = about.data.labels.map((name) => [String(names.indexOf(name)), name]);
  const field = here().query.get("field") || choices[0][0];
  const control = choices.length > 1 ? select("Label", "field", choices, field) : null;
  return drawn("api/mix", { ...chosen("epoch"), field }, (found) => shares(found, names[Number(field)], control));
}

function shares(found, name, control) {
  const ends = found.steps.length ? [count(found.steps[0]), count(found.steps[found.steps.length - 1])] : ["", ""];
  const axes = { x: "step", y: "share", xs: [[0, ends[0]], [1, ends[1]]], ys: [[0, "0 %"], [0.5, "50 %"], [1, "100 %"]] };
  const bars = canvas("classes of batches", 260, (pen, width, height) => stacks(pen, frame(pen, width, height, axes), found.shares));
  const keys = [...found.classes, ...(found.distinct > found.classes.length ? ["others"] : [])].map((text, i) => key(text, i));
  const caption = `${count(found.in_batch)} of ${count(found.distinct)} classes in a batch on average; ${found.steps.length} batches spread over the epoch, up to ${found.most} samples of each.`;
  return drawing(`Class mix: ${name}`, caption, bars, div("controls", control, div("keys", keys)));
}

function key(name, place) {
  const patch = span("patch");
  patch.style.backgroundColor = CLASSES[place] || "var(--pale)";
  return span("key", patch, name);
}
