// What there is: figures and fields.

import { div, facts, make, table } from "./dom.js";
import { count, shape, size } from "./format.js";
import { cards, hasPicture, lines } from "./cells.js";
import { ask, generation, link } from "./state.js";

export async function overview(about) {
  const data = about.data;
  const first = await ask("api/records", { ...generation(), start: 0, count: 12 });
  const fixed = data.fields.every((field) => field.bytes !== null);
  const each = data.fields.reduce((sum, field) => sum + (field.bytes || 0), 0);
  const rows = data.fields.map((field) => [make("strong", {}, field.name), field.kind, field.dtype || "", field.shape ? shape(field.shape) : "varies", field.bytes === null ? "varies" : size(field.bytes), field.codec]);
  return div("",
    facts([
      ["Records", count(data.records)],
      ["Fields", count(data.fields.length)],
      fixed ? ["Size", size(each * data.records), `${size(each)} a record`] : null,
      ["Blocks", count(data.blocks.count), `up to ${count(data.blocks.records)} records${data.blocks.read_whole ? ", read as a whole" : ""}`],
      data.generations ? ["Generation", count(data.generation), `${count(data.generations.length)} kept`] : ["Kind", data.kind],
    ]),
    make("section", {}, make("h2", {}, "Fields"), table(["field", "kind", "type", "shape", "a record", "codec"], rows, ["a record"])),
    make("section", {}, make("h2", {}, "The first records"), hasPicture(first.rows) ? cards(first.rows, data.fields) : lines(first.rows, data.fields),
      make("p", {}, make("a", { href: link("records") }, "All records"))),
    make("p", { className: "soft small" }, "fingerprint ", make("code", {}, data.fingerprint)));
}
