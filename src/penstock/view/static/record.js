// One record, with everything that is known about it.

import { div, make, span } from "./dom.js";
import { count } from "./format.js";
import { cell } from "./cells.js";
import { button, input, orderControls } from "./controls.js";
import { ask, chosen, drawn, generation, go, link } from "./state.js";

export async function record(about, argument) {
  const id = encodeURIComponent(argument || "0");
  const found = await ask(`api/record/${id}`, generation());
  const fields = about.data.fields;
  return div("",
    div("controls",
      div("pager", button("‹", () => go(`record/${found.id - 1}`), { disabled: found.id <= 0, title: "the record before", key: "ArrowLeft" }),
        input("Record", "id", { initial: String(found.id), change: (value) => go(`record/${value || 0}`) }),
        button("›", () => go(`record/${found.id + 1}`), { disabled: found.id + 1 >= found.total, title: "the next record", key: "ArrowRight" }),
        span("soft", `of ${count(found.total)}`))),
    div("whole", found.cells.map((one, i) => make("section", {}, make("h2", {}, fields[i].name, " ", span("soft small", fields[i].dtype || fields[i].kind)), cell(one, i, found.id, 0)))),
    make("section", {}, make("h2", {}, "When it comes"), about.loader ? null : orderControls({ epoch: true, documents: about.data.documents.map((number) => [String(number), fields[number].name]) }), await drawn(`api/where/${id}`, chosen("epoch"), places)));
}

function places(found) {
  const lines = found.where.map((place) => make("li", {}, "epoch ", count(place.epoch), ", position ", count(place.position), ", ",
    make("a", { href: link("batch", { step: place.step }) }, `step ${count(place.step)}`)));
  return div("", found.text ? make("p", { className: "soft small" }, make("code", {}, found.text)) : null, lines.length ? make("ul", {}, lines) : make("p", { className: "soft" }, "Not in this epoch."));
}
