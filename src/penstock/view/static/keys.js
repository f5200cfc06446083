// The keyboard. Buttons say which key presses them (aria-keyshortcuts); the rest is here, and in the help that "?" shows.

import { button } from "./controls.js";
import { make } from "./dom.js";
import { go } from "./state.js";

const HELP = [
  ["← →", "the page, record or step before, and the next one"],
  ["↑ ↓", "the record above or below, once one is marked; j and k mark the first"],
  ["Enter", "open the record that is marked"],
  ["/", "search for a text in a field"],
  ["1 … 9", "a page, as in the row at the top"],
  ["Esc", "stop a search, leave an input, close this help"],
  ["?", "this help"],
];
const MOVES = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 };
let help = null;

export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (help && help.open) return; // the dialog closes itself on Esc
    const active = document.activeElement;
    if (active && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName)) {
      if (event.key === "Escape") active.blur();
      return;
    }
    if (press(event.key, active)) event.preventDefault();
  });
}

function press(key, active) {
  if (key === "?") return showHelp();
  if (key === "/") return startSearch();
  if (key in MOVES) return move(MOVES[key], key.length === 1, active);
  if (/^[1-9]$/.test(key)) return open(Number(key) - 1);
  if (key.startsWith("Arrow") && active && active.closest(".scroll") === active) return false; // it scrolls
  const found = /^[A-Z][A-Za-z]+$/.test(key) ? document.querySelector(`button[aria-keyshortcuts="${key}"]:enabled`) : null;
  if (found) found.click();
  return Boolean(found);
}

function open(place) {
  const tab = document.querySelectorAll("nav a")[place];
  if (tab) tab.click();
  return Boolean(tab);
}

function startSearch() {
  const field = document.getElementById("find");
  if (field) { field.focus(); field.select(); } else go("records", { start: null, focus: "find" });
  return true;
}

function move(by, begins, active) {
  const links = [...document.querySelectorAll("main a.id")], at = links.indexOf(active);
  if (!links.length || (at < 0 && !begins)) return false;
  const next = links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  return true;
}

export function showHelp() {
  if (!help) {
    const rows = HELP.map(([keys, words]) => make("tr", {}, make("th", {}, make("kbd", {}, keys)), make("td", {}, words)));
    help = make("dialog", { aria: { label: "keyboard" } }, make("h2", {}, "Keyboard"), make("table", {}, make("tbody", {}, rows)), button("Close", () => help.close()));
    document.body.append(help);
  }
  help.showModal();
  return true;
}
