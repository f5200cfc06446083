// The batch of a step, as a loader would give it.

import { div, make } from "./dom.js";
import { count } from "./format.js";
import { cards, hasPicture, lines } from "./cells.js";
import { button, input, orderControls, pager } from "./controls.js";
import { chosen, drawn, go, here } from "./state.js";

const PAGE = 64;

export async function batch(about) {
  const step = Number(here().query.get("step") || 0);
  const to = (place) => go("batch", { step: place, start: null });
  return div("",
    div("controls",
      div("pager", button("‹", () => to(step - 1), { disabled: !(step > 0), title: "the step before", key: "ArrowLeft" }),
        input("Step", "step", { initial: "0", change: to }), button("›", () => to(step + 1), { title: "the next step", key: "ArrowRight" })),
      orderControls({ epoch: false })),
    await drawn("api/batch", { ...chosen("step", "start"), count: PAGE }, (found) => samples(found, about.data.fields)));
}

function samples(found, fields) {
  const where = ` · epoch ${count(found.epoch)}, from position ${count(found.position)} · ${count(found.samples)} records · ${count(found.steps)} steps an epoch`;
  const turn = { at: found.start, step: PAGE, total: found.samples, noun: "records", place: "below", move: (start) => go("batch", { start }) };
  return div("", make("p", { className: "soft small" }, make("code", {}, found.text), where),
    hasPicture(found.rows) ? cards(found.rows, fields) : lines(found.rows, fields),
    found.samples > PAGE ? pager(turn) : null);
}
