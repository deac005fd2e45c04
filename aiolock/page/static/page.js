// The page: shows what the server streams, and asks for what the reader wants to see.
import { Chart } from "./chart.js";
import { Details } from "./details.js";
import { Server } from "./server.js";
import { Table } from "./table.js";
import { duration, el, number, plain, put } from "./text.js";

const HIDDEN = 60_000; // ms after which a hidden page stops asking
const TYPING = 300; // ms without a key after which a search begins

const $ = (id) => document.getElementById(id);
const server = new Server();
const details = new Details(server);
const table = new Table($("rows"), (kind, name) => details.open(kind, name));
const wanted = { q: $("search"), kind: $("kind"), sort: $("sort"), page: { value: "" } };

let charts = [];
let history = []; // [ms by the browser's clock, held, waiting, longest]
let seen = null; // ms by the browser's clock: the time of what is shown
let every = 1; // seconds between two looks of the server
let error = ""; // why the server could not look
let paused = false;

function showView(view) {
  error = view.error;
  table.show(view.rows);
  $("nothing").hidden = view.matching > 0 || Boolean(view.error);
  put($("nothing"), view.totals.locks ? "Nothing with such a name is held or waited for." : "Nothing is held or waited for.");
  showPlace(view);
  const stuck = view.deadlocks.length ? "⚠ deadlock, " : "";
  document.title = `${stuck}${number(view.totals.held)} held, ${number(view.totals.waiting)} waiting – aiolock`;
  showDeadlocks(view.deadlocks, view.more_deadlocks);
}

let page = 1; // the page of the list that is shown
function showPlace({ rows, matching, before, page: shown, totals }) {
  const last = before + rows.length;
  const all = last - before === matching;
  const many = all ? number(matching) : `${number(before + 1)} to ${number(last)} of ${number(matching)}`;
  const of = matching === totals.locks ? "" : `, of ${number(totals.locks)} in all`;
  page = shown;
  put($("count"), `${many} lock${matching === 1 ? "" : "s"}${of}`);
  put($("place"), many);
  $("pages").hidden = all;
  $("previous").disabled = before === 0;
  $("next").disabled = last >= matching;
}

let deadlocksShown = "";
function showDeadlocks(deadlocks, more) {
  const said = JSON.stringify([deadlocks, more]);
  if (said === deadlocksShown) return;
  deadlocksShown = said;
  const box = $("deadlocks");
  box.hidden = !deadlocks.length;
  const many = deadlocks.length + more;
  box.replaceChildren(el("h2", "", many > 1 ? `${number(many)} deadlocks` : "Deadlock"));
  for (const { text, cycle } of deadlocks) {
    box.append(el("pre", "", text.split("\n").map(plain).join("\n")));
    const links = cycle.map(([kind, name]) => {
      const link = el("button", "", plain(name));
      link.type = "button";
      link.addEventListener("click", () => details.open(kind, name));
      return link;
    });
    box.append(el("p", "buttons", ...links));
  }
  if (more) box.append(el("p", "", `and ${number(more)} more`));
}

function showTimes(times) {
  const now = performance.now();
  seen = now - times.age * 1000;
  every = times.every || 1;
  if (times.all) history = [];
  for (const [ago, ...values] of times.points) history.push([now - ago * 1000, ...values]);
  const oldest = now - server.session.history * 1000;
  history = history.filter(([at]) => at >= oldest);
  charts.forEach((chart, which) => {
    chart.draw(history.map((point) => [(now - point[0]) / 1000, point[1 + which]]), 3 * every + 5);
  });
  showState();
}

/** Show whether the view is current. It runs each second, because a server that hangs sends nothing. */
function showState() {
  const old = seen === null ? Infinity : (performance.now() - seen) / 1000;
  const stale = old > 3 * every + 3 || Boolean(error);
  document.body.classList.toggle("old", stale && seen !== null);
  const trouble = error || (stale && !paused ? server.trouble : "");
  $("trouble").hidden = !trouble;
  put($("trouble"), trouble && (seen === null ? trouble : `${trouble} What is shown here is ${duration(Math.floor(old))} old.`));
  const state = paused ? "paused" : trouble ? "trouble" : stale ? "waiting" : "live";
  $("state").dataset.state = state;
  put($("state"), { paused: "paused", trouble: "old", waiting: "connecting…", live: every > 4 ? `live, the list every ${Math.round(every)} s` : "live" }[state]);
}

function watch() {
  if (paused) return;
  const query = Object.entries(wanted).map(([key, field]) => [key, field.value]);
  server.watch(new URLSearchParams(query.filter(([, value]) => value)), { view: showView, times: showTimes });
}

function restore() {
  const query = new URLSearchParams(location.search);
  for (const [key, field] of Object.entries(wanted)) {
    if (query.has(key)) field.value = query.get(key);
    if (!field.value && key === "sort") field.value = "wait";
  }
}

function turn(to) {
  want(to);
  document.querySelector(".tools").scrollIntoView();
}

function want(to = 1) {
  wanted.page.value = to > 1 ? String(to) : "";
  const query = new URLSearchParams();
  for (const [key, field] of Object.entries(wanted)) if (field.value && field.value !== "wait") query.set(key, field.value);
  window.history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
  watch();
}

function pause() {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  put($("pause"), paused ? "Go on" : "Pause");
  if (paused) server.stop();
  else watch();
  showState();
}

let hiding;
function visibility() {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => server.stop(), HIDDEN);
  else if (!server.watching) watch();
}

let typing;
$("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => want(), TYPING);
});
$("kind").addEventListener("change", () => want());
$("sort").addEventListener("change", () => want());
$("previous").addEventListener("click", () => turn(page - 1));
$("next").addEventListener("click", () => turn(page + 1));
$("pause").addEventListener("click", pause);
document.addEventListener("visibilitychange", visibility);

const session = await server.begin(showState);
for (const kind of session.kinds) $("kind").append(el("option", "", kind));
charts = [
  new Chart("Held", number, session.history),
  new Chart("Waiting", number, session.history),
  new Chart("Longest wait", duration, session.history),
];
$("charts").replaceChildren(...charts.map((chart) => chart.node));
restore();
watch();
setInterval(showState, 1000);
