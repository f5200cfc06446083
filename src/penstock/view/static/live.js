// A loader that is running: speed, and how long the trainer waits.

import { div, facts, make, problem } from "./dom.js";
import { count, percent, seconds, size } from "./format.js";
import { canvas, course, frame, round } from "./canvas.js";
import { drawing } from "./order.js";
import { ask } from "./state.js";

const EVERY_MS = 2000;

export async function live(about) {
  const place = div("");
  let timer = 0, over = false;
  async function draw() {
    if (!document.hidden) {
      try {
        const found = await ask("api/live");
        if (!over) place.replaceChildren(found.last ? figures(found, about) : waiting(found, about));
      } catch (error) {
        if (!over) place.replaceChildren(problem(error.message));
      }
    }
    if (!over) timer = setTimeout(draw, EVERY_MS);
  }
  await draw();
  return { element: place, leave: () => { over = true; clearTimeout(timer); } };
}

function waiting(found, about) {
  const words = { absent: "is not there yet", empty: "has no line with figures yet" }[found.state] || `is ${found.state}`;
  return make("p", { className: "soft" }, make("code", {}, about.watched), ` ${words}. This page looks again every ${EVERY_MS / 1000} seconds.`);
}

function figures(found, about) {
  const last = found.last, now = found.points[found.points.length - 1], total = last.wait_s + last.busy_s;
  const fetched = last.network.bytes || last.network.requests;
  return div("",
    facts([
      ["Samples a second", now ? count(now.samples_per_s) : "–", now ? `${size(now.bytes_per_s)} a second` : "needs two lines"],
      ["The trainer waits", now ? percent(now.waiting) : "–", total > 0 ? `${percent(last.wait_s / total)} of the whole run` : ""],
      ["Batches", count(last.batches), `${count(last.samples)} samples, ${size(last.bytes)}`],
      ["Running", seconds(total), `waited ${seconds(last.wait_s)}`],
      last.skipped ? ["Skipped", count(last.skipped), "records that could not be read"] : null,
      fetched ? ["Network", size(last.network.bytes), `${count(last.network.requests)} requests`] : null,
    ]),
    last.advice ? make("p", { className: "advice" }, last.advice) : null,
    found.points.length ? charts(found.points) : make("p", { className: "soft" }, "A curve needs two lines."),
    make("p", { className: "soft small" }, "from ", make("code", {}, about.watched), `, last line ${new Date(last.time_s * 1000).toLocaleTimeString()}`));
}

function charts(points) {
  const times = points.map((point) => point.time_s), long = times[times.length - 1] - times[0];
  const xs = [[0, `−${seconds(long)}`], [1, "now"]];
  const most = round(Math.max(...points.map((point) => point.samples_per_s)) || 1);
  const speed = canvas("samples a second over time", 220, (pen, width, height) =>
    course(pen, frame(pen, width, height, { x: "", xs, ys: [[0, "0"], [0.5, count(most / 2)], [1, count(most)]] }), points.map((point) => point.samples_per_s), times, most, "blue"));
  const wait = canvas("share of time the trainer waits", 220, (pen, width, height) =>
    course(pen, frame(pen, width, height, { x: "", xs, ys: [[0, "0 %"], [0.5, "50 %"], [1, "100 %"]] }), points.map((point) => point.waiting), times, 1, "amber"));
  return div("two", drawing("Samples a second", "of running time, between each two lines of the file", speed), drawing("Waiting", "share of the time that the trainer waits for batches; below 5 % the loader is fast enough", wait));
}
