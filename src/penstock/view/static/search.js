// Search for a text in a field. The server looks at a part of the data for each request; this asks on until a page is full.

import { div, make, span, wide } from "./dom.js";
import { count } from "./format.js";
import { cell } from "./cells.js";
import { button, select } from "./controls.js";
import { ask, generation, go, here, link } from "./state.js";

const PAGE = 24;

export function searchBar(about) {
  const data = about.data, fields = data.searchable;
  if (!fields.length) return null;
  const field = make("input", { id: "find", type: "search", autocomplete: "off", maxLength: 100, value: here().query.get("find") || "", placeholder: "press / to search", on: {
    change: (event) => go("records", { find: event.target.value, start: null }),
  } });
  return div("find", div("field wide", make("label", { htmlFor: "find" }, "Search"), field),
    fields.length > 1 ? select("in the field", "in", fields.map((number) => [String(number), data.fields[number].name]), String(fields[0])) : null);
}

export function results(about) {
  const query = here().query, text = query.get("find"), field = Number(query.get("in") || about.data.searchable[0]);
  const body = make("tbody"), status = make("p", { className: "soft", aria: { live: "polite" } }), buttons = div("controls");
  const head = make("tr", {}, make("th", { className: "right" }, "id"), make("th", {}, about.data.fields[field] ? about.data.fields[field].name : "field"));
  const list = wide(make("table", { className: "records hits" }, make("thead", {}, head), body));
  let next = Number(query.get("start") || 0), looked = 0, hits = 0, left = 0, request = null;

  function say(words) {
    const unread = left ? `; ${count(left)} could not be read` : "";
    status.replaceChildren(span("strong", `${count(hits)} found`), ` in ${count(looked)} of ${count(about.data.records)} records${unread}. ${words}`);
    list.hidden = hits === 0;
  }

  function stop() { if (request) request.abort(); }

  async function look() {
    const wanted = hits + PAGE;
    request = new AbortController();
    buttons.replaceChildren(button("Stop", stop, { title: "stop the search", key: "Escape" }));
    try {
      while (next !== null && hits < wanted) {
        say("Searching …");
        const found = await ask("api/search", { ...generation(), field, text, start: next, count: wanted - hits }, request.signal);
        body.append(...found.rows.map((row) => hit(row, field)));
        hits += found.rows.length; looked += found.looked; left += found.left_out; next = found.next;
      }
      say(next === null ? "That is all." : "");
    } catch (error) {
      say(error.name === "AbortError" ? "Stopped." : error.message);
    }
    request = null;
    buttons.replaceChildren(next === null ? "" : button("Search on", look, { title: "search the rest" }));
  }

  look();
  return { element: div("", status, list, buttons), leave: stop };
}

function hit(row, field) {
  const [before, place, behind] = row.found;
  const words = make("span", { className: "words" }, before, make("mark", {}, place), behind);
  return make("tr", {}, make("td", { className: "right" }, make("a", { className: "id", href: link(`record/${row.id}`) }, count(row.id))),
    make("td", {}, words, row.cells[field] && row.cells[field].kind === "number" ? div("soft small", cell(row.cells[field], field, row.id, 0)) : null));
}
