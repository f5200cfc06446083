// Values of records: pictures, texts, numbers, little plots.

import { div, make, span, wide } from "./dom.js";
import { count, figure, shape, size } from "./format.js";
import { generation, link } from "./state.js";

const SMALL = new Set(["number", "missing"]);
const SVG = "http://www.w3.org/2000/svg";

export function cell(found, field, id, edge, part = 0) {
  switch (found.kind) {
    case "missing": return span("soft", "missing");
    case "number": return found.name === undefined ? span("number", figure(found.value)) : span("class", found.name, " ", span("soft small", figure(found.value)));
    case "text": return text(found);
    case "image": return picture(found, field, id, edge, part);
    case "array": return array(found);
    case "plot": return plot(found);
    case "tokens": return tokens(found);
    case "bytes": return make("span", { className: "mono" }, found.hex, found.hex ? " " : "", span("soft", `${count(found.length)} bytes`));
    case "large": return span("soft", `${size(found.bytes)}, not read for this page`);
    default: return span("bad", found.text || "cannot be shown");
  }
}

function text(found) {
  if (!found.length) return span("soft", "empty text");
  const rest = found.length - found.text.length;
  return make("span", { className: "words" }, found.text, rest > 0 ? span("soft", " …", span("rest", ` ${count(found.length)} characters`)) : null);
}

function picture(found, field, id, edge, part) {
  const query = new URLSearchParams({ ...generation(), ...(part ? { part } : {}), ...(edge ? { edge } : {}) }).toString();
  const box = div("picture");
  const failed = () => box.replaceChildren(span("soft", "no picture"));
  const image = make("img", { src: `image/${field}/${id}${query ? `?${query}` : ""}`, alt: `record ${id}`, loading: "lazy", on: { error: failed } });
  image.addEventListener("load", () => image.classList.toggle("coarse", image.naturalWidth < 200));
  box.append(image);
  box.title = found.what ? `${found.what}, ${size(found.bytes)}` : `${shape(found.shape)} ${found.dtype}`;
  return box;
}

function numbers(found) {
  const total = found.shape.reduce((a, b) => a * b, 1);
  return `${found.values.map(figure).join("  ")}${total > found.values.length ? " …" : ""}`;
}

function array(found) {
  return div("array", span("soft", `${shape(found.shape)} ${found.dtype} `), make("span", { className: "mono" }, numbers(found) || "empty"));
}

function tokens(found) {
  return div("array", make("span", { className: "words" }, found.text, found.is_cut ? span("soft", " …") : null),
    div("soft", `${count(found.shape[0])} tokens, ${found.dtype}`), make("div", { className: "mono one" }, numbers(found)));
}

function plot(found) {
  return div("vector", spark(found), div("soft", `${shape(found.shape)} ${found.dtype}, ${figure(found.low)} to ${figure(found.high)}`),
    make("div", { className: "mono one" }, numbers(found)));
}

function spark(found) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", "0 0 100 30");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("class", "spark");
  const high = found.high > found.low ? found.high : found.low + 1;
  const step = 100 / Math.max(1, found.points.length - 1);
  let run = [];
  const close = () => {
    if (run.length > 1) {
      const line = document.createElementNS(SVG, "polyline");
      line.setAttribute("points", run.join(" "));
      drawing.append(line);
    }
    run = [];
  };
  found.points.forEach((value, i) => {
    if (value === null) close();
    else run.push(`${(i * step).toFixed(2)},${(29 - (28 * (value - found.low)) / (high - found.low)).toFixed(2)}`);
  });
  close();
  return drawing;
}

// Many records, as cards or as a table

const to = (row) => link(`record/${row.id}`, row.part === undefined ? {} : { part: row.part || null });

export function hasPicture(rows) {
  return rows.some((row) => row.cells.some((one) => one.kind === "image"));
}

export function cards(rows, fields, badge = null) {
  const pictured = fields.findIndex((_, i) => rows.some((row) => row.cells[i] && row.cells[i].kind === "image"));
  return div("cards", rows.map((row, place) => {
    const rest = row.cells.map((found, i) => [found, i]).filter(([, i]) => i !== pictured);
    return make("article", { className: "card" },
      pictured >= 0 ? make("a", { href: to(row), tabIndex: -1 }, cell(row.cells[pictured], pictured, row.id, 256, row.part)) : null,
      div("body", div("top", make("a", { className: "id", href: to(row) }, count(row.id)), badge ? span("soft", badge(place)) : null),
        make("dl", {}, rest.map(([found, i]) => div(SMALL.has(found.kind) ? "pair short" : "pair", make("dt", {}, fields[i].name), make("dd", {}, cell(found, i, row.id, 128, row.part)))))));
  }));
}

export function lines(rows, fields, badge = null) {
  const extra = badge && rows.some((_, place) => badge(place));
  const names = make("tr", {}, make("th", { className: "right" }, "id"), extra ? make("th", {}, "loss") : null, rows.length ? rows[0].cells.map((_, i) => make("th", {}, fields[i].name)) : null);
  const body = rows.map((row, place) => make("tr", {}, make("td", { className: "right" }, make("a", { className: "id", href: to(row) }, count(row.id))),
    extra ? make("td", {}, span("number", badge(place).replace("loss ", ""))) : null, row.cells.map((found, i) => make("td", {}, cell(found, i, row.id, 96, row.part)))));
  return wide(make("table", { className: "records" }, make("thead", {}, names), make("tbody", {}, body)));
}
