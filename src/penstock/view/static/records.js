// Records, page by page; or those in which a text was found.

import { div, make, problem } from "./dom.js";
import { count } from "./format.js";
import { cards, hasPicture, lines } from "./cells.js";
import { button, input, pager } from "./controls.js";
import { results, searchBar } from "./search.js";
import { ask, generation, go, here } from "./state.js";

const PAGE = 48;

export async function records(about) {
  const bar = searchBar(about);
  const jump = input("Go to id", "id", { hint: `0 to ${Math.max(0, about.data.records - 1)}`, change: (value) => go(value === "" ? "records" : `record/${value}`) });
  if (bar && here().query.get("find")) {
    const found = results(about);
    return { element: div("", div("controls", bar, button("×", () => go("records", { find: null, in: null, start: null }), { title: "all records" })), found.element), leave: found.leave };
  }
  return pages(about, div("controls", bar, jump));
}

async function pages(about, controls) {
  const data = about.data, query = here().query;
  const wanted = Number(query.get("start") || 0), start = Number.isFinite(wanted) && wanted >= 0 ? Math.floor(wanted) : 0;
  const found = await ask("api/records", { ...generation(), start, count: PAGE });
  const layout = query.get("layout") || (hasPicture(found.rows) ? "cards" : "table"), other = layout === "cards" ? "table" : "cards";
  const turn = (place) => pager({ at: start, step: PAGE, total: found.total, noun: "records", place, move: (to) => go("records", { start: to }) });
  controls.append(button(`as ${other}`, () => go("records", { layout: other })), turn("far"));
  return div("", controls,
    data.fields.length > data.shown_fields ? make("p", { className: "soft" }, `The first ${data.shown_fields} of ${count(data.fields.length)} fields.`) : null,
    found.rows.length ? (layout === "cards" ? cards : lines)(found.rows, data.fields) : problem(found.total ? "There are no records here: go back." : "There is no record in this data."),
    turn("below"));
}
