// Sequences and the documents in them: a bar with their boundaries, and what each of them says.

import { div, make, span } from "./dom.js";
import { count, rough } from "./format.js";
import { CLASSES } from "./canvas.js";
import { link } from "./state.js";

export function packs(rows, about) {
  const parts = about.loader ? about.loader.parts : [];
  const tokens = rows.some((row) => row.pieces && row.pieces.some((piece) => piece.values));
  return div("", tokens ? make("p", { className: "soft" }, "Tokens are shown as numbers: start with --tokenizer tokenizer.json to read them.") : null,
    rows.map((row) => pack(row, parts[row.part] ? parts[row.part].name : "")));
}

function pack(row, stream) {
  const pieces = row.pieces || [], used = pieces.reduce((sum, piece) => sum + piece.high - piece.low, 0);
  const rest = row.more || row.length === null ? 0 : Math.max(0, row.length - used), total = used + rest;
  const facts = [stream, `${count(pieces.length + (row.more || 0))} ${pieces.length === 1 ? "document" : "documents"}`, row.length === null ? "" : `${count(row.length)} tokens`, rest ? `${count(rest)} of them padding or added` : ""];
  return make("section", { className: "pack" },
    make("h2", {}, `Sequence ${count(row.sample)} `, span("soft small", facts.filter(Boolean).join(" · "))),
    bar(pieces, rest, total),
    make("ul", { className: "pieces" }, pieces.map((piece, place) => make("li", {}, patch(place), div("piece", title(piece, row.part), said(piece))))),
    row.more ? make("p", { className: "soft small" }, `and ${count(row.more)} documents more`) : null);
}

function bar(pieces, rest, total) {
  const segments = pieces.map((piece, place) => {
    const one = make("span", { className: "segment", title: `document ${piece.id}: ${count(piece.high - piece.low)} tokens` });
    one.style.flexGrow = String(Math.max(1e-6, (piece.high - piece.low) / Math.max(1, total)));
    one.style.backgroundColor = CLASSES[place % CLASSES.length];
    return one;
  });
  const empty = make("span", { className: "segment empty", title: `${count(rest)} tokens of padding, or added` });
  empty.style.flexGrow = String(rest / Math.max(1, total));
  const box = make("div", { className: "bar", aria: { label: "documents and padding of the sequence" } }, segments, rest ? empty : null);
  box.setAttribute("role", "img");
  return box;
}

function patch(place) {
  const one = span("patch");
  one.style.backgroundColor = CLASSES[place % CLASSES.length];
  return one;
}

function title(piece, part) {
  const whole = piece.of !== null && piece.low === 0 && piece.high === piece.of;
  const range = piece.of === null ? `${count(piece.high - piece.low)} tokens from ${count(piece.id + piece.low)} on` : whole ? `all ${count(piece.of)} tokens`
    : `tokens ${count(piece.low)} to ${count(piece.high)} of ${count(piece.of)}${piece.low > 0 ? ", begun elsewhere" : ""}${piece.high < piece.of ? ", goes on elsewhere" : ""}`;
  const name = piece.of === null ? "tokens" : piece.name || `document ${count(piece.id)}`;
  return div("top", piece.is_record ? make("a", { className: "id", href: link(`record/${piece.id}`, { part: part || null }) }, name) : span("id", name), span("soft small", range),
    piece.loss === null || piece.loss === undefined ? null : span("loss", `loss ${rough(piece.loss)}`));
}

function said(piece) {
  if (piece.values) return make("div", { className: "mono soft" }, `${piece.values.join("  ")}${piece.is_cut ? " …" : ""}`);
  return make("div", { className: "words" }, piece.text, piece.is_cut ? span("soft", " …") : null);
}
