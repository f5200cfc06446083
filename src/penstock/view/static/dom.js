// Elements. Whatever comes out of data gets here as text, and only as text.

const LINKS = /^#[a-z]/;
const IMAGES = /^image\/[0-9]+\/[0-9]+(\?[a-z0-9=&]*)?$/;
const PROPERTIES = new Set(["className", "title", "type", "value", "min", "max", "inputMode", "placeholder", "disabled", "selected", "alt", "loading", "id", "htmlFor", "autocomplete", "width", "height", "tabIndex", "maxLength", "hidden"]);

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
  return wide(make("table", {}, make("thead", {}, head), make("tbody", {}, body)));
}

// What may be wider than the page scrolls in its own box, which shows on which sides there is more.
const watched = new ResizeObserver((entries) => entries.forEach((entry) => edges(entry.target.closest(".scroll") || entry.target)));

function edges(box) {
  box.classList.toggle("more-before", box.scrollLeft > 2);
  box.classList.toggle("more-behind", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
  box.tabIndex = box.scrollWidth > box.clientWidth + 2 ? 0 : -1; // the keyboard can scroll it
}

export function wide(child) {
  const box = make("div", { className: "scroll", aria: { label: "table" }, on: { scroll: (event) => edges(event.target) } }, child);
  box.setAttribute("role", "region");
  watched.observe(box);
  watched.observe(child);
  return div("wide", box);
}

export function problem(text) {
  return make("p", { className: "problem", aria: { label: "problem" } }, text);
}
