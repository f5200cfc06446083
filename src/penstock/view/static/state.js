// Where the visitor is: the part of the address behind #, such as #batch?step=3&seed=7. And asking the server.

import { problem } from "./dom.js";

const ORDER = ["order", "seed", "batch", "block", "window", "lanes", "samples", "length", "tokens"];
const KEPT = [...ORDER, "epoch", "generation", "part"];

export function here() {
  const [page, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { page: page || "overview", query: new URLSearchParams(query) };
}

export function link(page, changes = {}) {
  const old = here(), query = new URLSearchParams();
  const names = page === old.page ? [...old.query.keys()] : KEPT;
  for (const name of names) if (old.query.get(name)) query.set(name, old.query.get(name));
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  return `#${page}${text ? `?${text}` : ""}`;
}

export function go(page, changes = {}) {
  location.hash = link(page, changes);
}

export function chosen(...others) {
  const { query } = here();
  return Object.fromEntries([...ORDER, "generation", "part", ...others].filter((name) => query.get(name)).map((name) => [name, query.get(name)]));
}

// Which data is meant: a generation of it, or a stream of a mixture.
export function generation() {
  const { query } = here(), names = ["generation", "part"].filter((name) => /^[0-9]+$/.test(query.get(name) || ""));
  return Object.fromEntries(names.map((name) => [name, query.get(name)]));
}

// What an answer is drawn as; if there is none, why. The inputs around it stay.
export async function drawn(path, parameters, draw) {
  try {
    return await draw(await ask(path, parameters));
  } catch (error) {
    return problem(error.message);
  }
}

export async function ask(path, parameters = {}, signal = null) {
  const query = new URLSearchParams(parameters).toString();
  let answer;
  try {
    answer = await fetch(query ? `${path}?${query}` : path, { credentials: "same-origin", signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("penstock view has ended, or cannot be reached; start it again and open the address it prints");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || `the server answered ${answer.status}`);
  return found;
}
