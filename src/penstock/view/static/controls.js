// Inputs. A change goes to the address, and the page is drawn anew from there.

import { div, make, span } from "./dom.js";
import { go, here } from "./state.js";

let last = 0;

export function input(label, name, { initial = "", hint = "", wide = false, change = null } = {}) {
  const id = `in${(last += 1)}`;
  const field = make("input", { id, type: "text", inputMode: "numeric", autocomplete: "off", value: here().query.get(name) || initial, placeholder: hint, on: {
    change: (event) => (change || ((value) => go(here().page, { [name]: value })))(event.target.value.replace(/[\s,_]/g, "")),
  } });
  return div(wide ? "field wide" : "field", make("label", { htmlFor: id }, label), field);
}

export function select(label, name, options, initial) {
  const id = `in${(last += 1)}`, now = here().query.get(name) || initial;
  const choices = options.map(([value, text]) => make("option", { value, selected: value === now }, text));
  return div("field", make("label", { htmlFor: id }, label), make("select", { id, on: { change: (event) => go(here().page, { [name]: event.target.value }) } }, choices));
}

// With a key, such as ArrowLeft, the keyboard presses it too (keys.js).
export function button(text, press, { disabled = false, title = "", key = "" } = {}) {
  return make("button", { type: "button", disabled, title, aria: { ...(title ? { label: title } : {}), ...(key ? { keyshortcuts: key } : {}) }, on: { click: press } }, text);
}

export function orderControls({ epoch, documents = [] }) {
  const shuffled = here().query.get("order") !== "in-order";
  const cut = documents.length > 0 && (here().query.get("samples") || "records") !== "records";
  return div("controls",
    select("Order", "order", [["shuffle", "shuffle"], ["in-order", "in order"]], "shuffle"),
    shuffled ? input("Seed", "seed", { initial: "0" }) : null,
    shuffled ? input("Block", "block", { hint: "auto" }) : null,
    shuffled ? input("Window", "window", { hint: "auto" }) : null,
    shuffled ? input("Lanes", "lanes", { hint: "1" }) : null,
    input("Batch size", "batch", { initial: "64" }),
    documents.length ? select("Samples", "samples", [["records", "records"], ["packs", "packs of documents"], ["sequences", "sequences of tokens"]], "records") : null,
    cut ? input("Tokens in each", "length", { initial: "2048" }) : null,
    cut && documents.length > 1 ? select("of", "tokens", documents, documents[0][0]) : null,
    epoch ? input("Epoch", "epoch", { initial: "0" }) : null);
}

export function pager({ at, step, total, move, noun, place = "" }) {
  return div(`pager ${place}`,
    button("‹", () => move(Math.max(0, at - step)), { disabled: at <= 0, title: `earlier ${noun}`, key: "ArrowLeft" }),
    span("soft", `${Math.min(at + 1, total).toLocaleString("en")} to ${Math.min(at + step, total).toLocaleString("en")} of ${total.toLocaleString("en")}`),
    button("›", () => move(at + step), { disabled: at + step >= total, title: `later ${noun}`, key: "ArrowRight" }));
}
