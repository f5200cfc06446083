// The chunks of a store: how full they are, and how much of them is still in use.

import { div, facts, make, table } from "./dom.js";
import { count, percent, size } from "./format.js";
import { ask, generation } from "./state.js";

export async function chunks() {
  const found = await ask("api/chunks", generation());
  const share = (entry) => (entry.stored ? entry.live / entry.stored : 1);
  const used = found.stored ? found.live / found.stored : 1;
  const worst = found.chunks.filter((entry) => entry.live < entry.stored).sort((a, b) => b.stored - b.live - (a.stored - a.live)).slice(0, 20);
  return div("",
    facts([
      ["Generation", count(found.generation)],
      ["Chunks", count(found.total), found.total > found.chunks.length ? `the first ${count(found.chunks.length)} are shown` : `up to ${size(found.chunk_bytes)} each`],
      ["Stored", size(found.stored)],
      ["In use", percent(used), `${size(found.live)}${used < 0.7 ? "; penstock rebalance frees the rest" : ""}`],
      ["Redirect files", count(found.redirects)],
    ]),
    make("section", {}, make("h2", {}, "Map"),
      make("p", { className: "soft small" }, "A box is a chunk. Its height is how full it was written; the blue part is still in use, the amber part is not."),
      div("map", found.chunks.map((entry) => box(entry, share(entry))))),
    worst.length === 0 ? null : make("section", {}, make("h2", {}, "Most to gain"),
      table(["chunk", "records", "stored", "in use", "to gain"], worst.map((entry) => [count(entry.number), count(entry.rows), size(entry.stored), percent(share(entry)), size(entry.stored - entry.live)]), ["chunk", "records", "stored", "in use", "to gain"])));
}

function box(entry, share) {
  const full = div("full"), live = div("live"), outer = make("div", { className: "chunk", title: `chunk ${entry.number}: ${count(entry.rows)} records, ${size(entry.stored)}, ${percent(share)} in use` }, full);
  full.append(live);
  full.style.height = `${Math.max(6, entry.full * 100)}%`;
  live.style.height = `${share * 100}%`;
  return outer;
}
