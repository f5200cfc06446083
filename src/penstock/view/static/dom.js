// Elements. Whatever comes out of data gets here as text, and only as text.

const LINKS = /^#[a-z]/;
const IMAGES = /^image\/[0-9]+\/[0-9]+(\?[a-z0-9=&]*)?$/;
const PROPERTIES = new Set(["className", "title", "type", "value", "min", "max", "inputMode", "placeholder", "disabled", "selected", "alt", "loading", "id", "htmlFor", "autocomplete", "width", "height", "tabIndex"]);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") Object.entries(value).forEach(([event, listen]) => element.addEventListener(event, listen));
    else if (name === "aria") Object.entries(value).forEach(([key, text]) => element.setAttribute(`aria-${key}`, text));
    else if (name === "href" && LINKS.test(value)) element.href = value;
    else if (name === "src" && IMAGES.test(value)) element.src = value;
    else if (PROPERTIES.has(name)) element[name] = value;
    else throw new Error(`no such property here: ${name}`);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

export const div = (className, ...children) => make("div", { className }, ...children);
export const span = (className, ...children) => make("span", { className }, ...children);

export function facts(rows) {
  return make("dl", { className: "tiles" }, rows.filter(Boolean).map(([name, value, note]) =>
    div("tile", make("dt", {}, name), make("dd", { className: "value" }, value), note ? make("dd", { className: "note" }, note) : null)));
}

export function table(columns, rows, right = []) {
  const sides = columns.map((name) => (right.includes(name) ? "right" : ""));
  const head = make("tr", {}, columns.map((name, i) => make("th", { className: sides[i] }, name)));
  const body = rows.map((row) => make("tr", {}, row.map((cell, i) => make("td", { className: sides[i] }, cell))));
  return div("scroll", make("table", {}, make("thead", {}, head), make("tbody", {}, body)));
}

export function problem(text) {
  return make("p", { className: "problem", aria: { label: "problem" } }, text);
}
