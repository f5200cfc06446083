// Records, page by page.

import { div, make, problem } from "./dom.js";
import { count } from "./format.js";
import { cards, hasPicture, lines } from "./cells.js";
import { button, input, pager } from "./controls.js";
import { ask, generation, go, here } from "./state.js";

const PAGE = 48;

export async function records(about) {
  const data = about.data, query = here().query;
  const wanted = Number(query.get("start") || 0), start = Number.isFinite(wanted) && wanted >= 0 ? Math.floor(wanted) : 0;
  const found = await ask("api/records", { ...generation(), start, count: PAGE });
  const layout = query.get("layout") || (hasPicture(found.rows) ? "cards" : "table"), other = layout === "cards" ? "table" : "cards";
  const jump = (value) => go(value === "" ? "records" : `record/${value}`);
  const turn = (place) => pager({ at: start, step: PAGE, total: found.total, noun: "records", place, move: (to) => go("records", { start: to }) });
  return div("",
    div("controls", input("Go to id", "id", { hint: `0 to ${Math.max(0, found.total - 1)}`, change: jump }),
      button(`as ${other}`, () => go("records", { layout: other })), turn("far")),
    data.fields.length > data.shown_fields ? make("p", { className: "soft" }, `The first ${data.shown_fields} of ${count(data.fields.length)} fields.`) : null,
    found.rows.length ? (layout === "cards" ? cards : lines)(found.rows, data.fields) : problem(found.total ? "There are no records here: go back." : "There is no record in this data."),
    turn("below"));
}
