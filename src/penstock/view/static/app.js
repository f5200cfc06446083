// The page: its head, its tabs, and which of them is shown.

import { div, make, problem, span } from "./dom.js";
import { button } from "./controls.js";
import { batch } from "./batch.js";
import { chunks } from "./chunks.js";
import { live } from "./live.js";
import { losses } from "./losses.js";
import { mixture } from "./mixture.js";
import { listen, showHelp } from "./keys.js";
import { order } from "./order.js";
import { overview } from "./overview.js";
import { record } from "./record.js";
import { records } from "./records.js";
import { ask, generation, go, here, link } from "./state.js";
import { count } from "./format.js";

const PAGES = { overview, records, record, batch, mixture, losses, order, chunks, live };
const TITLES = { overview: "Overview", records: "Records", batch: "Batch", mixture: "Mixture", losses: "Losses", order: "Order", chunks: "Chunks", live: "Live" };
let about = null, turn = 0, leave = null;

history.replaceState(null, "", `${location.pathname}${location.hash}`); // the secret need not stay in the address
window.addEventListener("hashchange", show);
listen();
show();

function tabs() {
  if (!about.data) return ["live"];
  const loader = about.loader, own = !loader ? ["order"] : [...(loader.is_mixture ? ["mixture"] : []), ...(loader.has_losses ? ["losses"] : [])];
  return ["overview", "records", "batch", ...own, ...(about.data.generations ? ["chunks"] : []), ...(about.watched ? ["live"] : [])];
}

function head(page) {
  const name = about.names.join(", ") || about.watched || "penstock";
  document.title = `${name} · penstock`;
  const links = tabs().map((tab) => make("a", { href: link(tab), aria: tab === page || (tab === "records" && page === "record") ? { current: "page" } : {} }, TITLES[tab]));
  document.getElementById("head").replaceChildren(
    div("title", make("h1", {}, name), about.data ? span("soft", `${count(about.data.records)} records`) : null, choice(), part(), button("?", showHelp, { title: "keyboard" })),
    make("nav", { aria: { label: "pages" } }, links));
}

function choice() {
  const known = about.data && about.data.generations;
  if (!known || known.length < 2) return known ? span("soft", `generation ${about.data.generation}`) : null;
  const options = [...known].reverse().map((number) => make("option", { value: String(number), selected: number === about.data.generation }, `generation ${number}`));
  return make("select", { aria: { label: "generation" }, on: { change: (event) => go(here().page, { generation: event.target.value, start: null }) } }, options);
}

// A mixture has several sources: one of them is shown.
function part() {
  const parts = about.loader ? about.loader.parts : [];
  if (parts.length < 2) return null;
  const now = here().query.get("part") || "0";
  const options = parts.map((one, number) => make("option", { value: String(number), selected: String(number) === now }, one.name));
  return make("select", { aria: { label: "stream" }, on: { change: (event) => go(here().page.split("/")[0] === "record" ? "records" : here().page, { part: event.target.value, start: null, in: null }) } }, options);
}

async function show() {
  const mine = (turn += 1);
  if (leave) leave();
  leave = null;
  const [page, argument] = here().page.split("/");
  const main = document.getElementById("main");
  document.body.classList.add("busy");
  try {
    about = await ask("api/about", generation());
    const chosen = PAGES[page] && (about.data || page === "live") ? page : tabs()[0];
    if (mine !== turn) return;
    head(chosen);
    const drawn = await PAGES[chosen](about, argument);
    if (mine !== turn) { if (drawn.leave) drawn.leave(); return; }
    leave = drawn.leave || null;
    main.replaceChildren(drawn.element || drawn);
    if (here().query.get("focus") === "find") document.getElementById("find")?.focus();
  } catch (error) {
    if (mine === turn) main.replaceChildren(problem(error.message));
  } finally {
    if (mine === turn) document.body.classList.remove("busy");
  }
}
