// The batch of a step, as a loader gives it: records, or sequences with the documents in them.

import { div, make, problem, span, table } from "./dom.js";
import { count, percent, rough } from "./format.js";
import { cards, hasPicture, lines } from "./cells.js";
import { button, input, orderControls, pager } from "./controls.js";
import { packs } from "./packs.js";
import { ask, chosen, drawn, go, here, link } from "./state.js";

const PAGE = 64;

export async function batch(about) {
  const step = Number(here().query.get("step") || 0);
  const to = (place) => go("batch", { step: place, start: null });
  return div("",
    div("controls",
      div("pager", button("‹", () => to(step - 1), { disabled: !(step > 0), title: "the step before", key: "ArrowLeft" }),
        input("Step", "step", { initial: "0", change: to }), button("›", () => to(step + 1), { title: "the next step", key: "ArrowRight" })),
      about.loader ? null : orderControls({ epoch: false, documents: about.data.documents.map((number) => [String(number), about.data.fields[number].name]) })),
    await drawn("api/batch", { ...chosen("step", "start"), count: PAGE }, (found) => samples(found, about)));
}

async function samples(found, about) {
  const steps = found.steps === null ? "" : ` · ${count(found.steps)} steps an epoch`, noun = found.rows.some((row) => row.pieces) ? "sequences" : "records";
  const where = `${found.text ? " · " : ""}epoch ${count(found.epoch)}, from position ${count(found.position)} · ${count(found.samples)} ${noun}${steps}`;
  const turn = { at: found.start, step: PAGE, total: found.samples, noun, place: "below", move: (start) => go("batch", { start }) };
  const blamed = found.has_losses ? await suspects(found.step, about) : null;
  const unlogged = about.loader && about.loader.has_losses && !found.has_losses;
  return div("", make("p", { className: "soft small" }, found.text ? make("code", {}, found.text) : null, where),
    unlogged ? make("p", { className: "soft" }, "The losses of this step were not logged.") : null, blamed,
    noun === "sequences" ? packs(found.rows, about) : recordsOf(found, about),
    found.samples > PAGE ? pager(turn) : null);
}

function recordsOf(found, about) {
  if (!about.loader) return hasPicture(found.rows) ? cards(found.rows, about.data.fields) : lines(found.rows, about.data.fields);
  return div("", about.loader.parts.map((part, number) => {
    const rows = found.rows.filter((row) => row.part === number), fields = part.fields.map((name) => ({ name }));
    if (!rows.length) return null;
    const badge = (place) => (rows[place].loss === null ? "" : `loss ${rough(rows[place].loss)}`);
    return make("section", {}, part.name ? make("h2", {}, part.name, " ", span("soft small", `${count(rows.length)} of ${count(found.rows.length)} shown`)) : null,
      hasPicture(rows) ? cards(rows, fields, badge) : lines(rows, fields, badge));
  }));
}

// The records with the largest part in what is above the level of the loss

async function suspects(step, about) {
  let found;
  try { found = await ask("api/blame", { step }); } catch (error) { return problem(error.message); }
  const names = about.loader.parts.map((part) => part.name), mixed = names.length > 1;
  const rows = found.records.map((one) => [
    one.is_record ? make("a", { href: link(`record/${one.id}`, { part: one.part }) }, count(one.id)) : count(one.id), ...(mixed ? [names[one.part]] : []),
    count(one.sample), rough(one.loss), rough(one.z), typeof one.share === "number" ? percent(one.share) : one.share, `${count(one.times)} of ${count(one.visits)}`]);
  const head = ["record", ...(mixed ? ["stream"] : []), "sample", "loss", "z", "of the excess", "high in"];
  return make("section", {}, make("h2", {}, "Largest part in the loss ", span("soft small", `mean ${rough(found.mean)}, the level around it ${rough(found.level)}, z ${rough(found.z)}`)),
    table(head, rows, head.filter((name) => name !== "stream")));
}
