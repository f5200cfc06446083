// The mixture over time: the share of every stream in the steps of a run, computed from the order.

import { div, facts, make, span, table } from "./dom.js";
import { count, percent } from "./format.js";
import { CLASSES, canvas, frame, stacks } from "./canvas.js";
import { input } from "./controls.js";
import { drawing } from "./order.js";
import { drawn, here } from "./state.js";

export async function mixture() {
  const steps = here().query.get("steps");
  return div("", div("controls", input("Steps", "steps", { hint: "all" })), await drawn("api/shares", steps ? { steps } : {}, shares));
}

function shares(found) {
  const axes = { x: "step", y: "share", xs: [[0, "0"], [0.5, count(Math.round(found.steps / 2))], [1, count(found.steps)]], ys: [[0, "0 %"], [0.5, "50 %"], [1, "100 %"]] };
  const bars = canvas("share of each stream over steps", 300, (pen, width, height) => stacks(pen, frame(pen, width, height, axes), found.shares));
  const keys = found.streams.map((stream, place) => {
    const patch = span("patch");
    patch.style.backgroundColor = CLASSES[place] || "var(--pale)";
    return span("key", patch, stream.name);
  });
  const has = (name) => found.streams.some((stream) => stream[name] !== null);
  const columns = [["stream", (one) => one.name], ["samples", (one) => count(one.samples)], ["share", (one) => percent(one.share)], ["epochs", (one) => one.epochs.toFixed(2)],
    ["first epoch ends at step", (one) => (one.exhausted_at === null ? "–" : count(one.exhausted_at))],
    ...(has("tokens") ? [["tokens", (one) => (one.tokens === null ? "" : count(Math.round(one.tokens)))]] : []),
    ...(has("padding") ? [["padding", (one) => (one.padding === null ? "" : percent(one.padding))]] : [])];
  const names = columns.map(([name]) => name);
  return div("",
    facts([["Steps", count(found.steps)], ["Samples", count(found.streams.reduce((sum, one) => sum + one.samples, 0))], ["Streams", count(found.streams.length)]]),
    drawing("Share of each stream", `in ${count(found.shares.length)} stretches of steps; counted by the order, no record is read`, bars, div("controls", div("keys", keys))),
    make("section", {}, make("h2", {}, "Streams"), table(names, found.streams.map((one) => columns.map(([, cell]) => cell(one))), names.slice(1))));
}
