// The live page: follows one run through its event stream, and lets an operator command it.

import { html, line, map, named, norms, outside, place_of, progress, progressLegend, show } from "/charts.js";

const $ = (id) => document.getElementById(id);
const QUIET = 12000; // milliseconds without a sign of life after which the connection counts as lost
const EVENTS = 500; // of the record, that the page keeps
const page = { token: sessionStorage.getItem("safebo-token"), name: null, run: null, role: "", samples: [], voided: [], told: 0, aborted: [], events: [], slice: null, norms: null, heard: 0, lostSince: null, view: {}, generation: 0 };

// -- talking to the server -----------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, body) { super(body.detail || `The server answered ${status}.`); this.status = status; this.body = body; }
}

function headers(more = {}) { return { ...(page.token ? { authorization: `Bearer ${page.token}` } : {}), ...more }; }

async function get(path, query = []) {
  const text = new URLSearchParams(query).toString();
  const answer = await fetch(`/api/v1${path}${text ? `?${text}` : ""}`, { headers: headers(), cache: "no-store" });
  return read(answer);
}

async function post(path, body, key = null) {
  const more = { ...(body === undefined ? {} : { "content-type": "application/json" }), ...(key ? { "idempotency-key": key } : {}) };
  return read(await fetch(`/api/v1${path}`, { method: "POST", headers: headers(more), body: body === undefined ? undefined : JSON.stringify(body) }));
}

async function read(answer) {
  const body = await answer.json().catch(() => ({}));
  if (answer.status === 401) login(page.token ? body.detail : "");
  if (!answer.ok) throw new Refused(answer.status, body);
  return body;
}

const at = () => `/runs/${encodeURIComponent(page.name)}`;
const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
const RIG = ["ask", "tell", "abort", "pause", "stop"]; // what a rig may do, see Caller in auth.py
const may = (verb) => page.role === "operator" || (page.role === "rig" && RIG.includes(verb));
const two = (n) => String(n).padStart(2, "0");

// A time to the second in the zone of this computer, with the day if it is not today.
function clock(when) {
  const t = new Date(when), time = [t.getHours(), t.getMinutes(), t.getSeconds()].map(two).join(":");
  return t.toDateString() === new Date().toDateString() ? time : `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${time}`;
}

const seconds = (text) => text.replace(/\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)?/g, clock); // times inside a text

function complain(error) {
  $("error").textContent = error instanceof Refused ? error.message : `Not done: ${error.message}. Is the server reachable?`;
  $("error").hidden = false;
  clearTimeout(complain.timer);
  complain.timer = setTimeout(() => ($("error").hidden = true), 12000);
}

async function act(verb, body, key) {
  if (act.busy.has(verb) && verb !== "stop") return null; // a double click
  act.busy.add(verb);
  try {
    const done = await post(`${at()}/${verb}`, body, key);
    $("error").hidden = true;
    await refresh();
    return done;
  } catch (error) { complain(error); await refresh().catch(broken); return null; } finally { act.busy.delete(verb); }
}
act.busy = new Set();

// -- following a run -----------------------------------------------------------------------------------------------------

async function follow(generation) {
  let wait = 500;
  while (generation === page.generation) {
    try {
      const abort = new AbortController();
      page.cut = () => abort.abort();
      const watchdog = setInterval(() => { if (generation !== page.generation || Date.now() - page.heard > QUIET) abort.abort(); }, 1000);
      try {
        heard();
        if (!page.run) await refresh();
        const last = page.events.length ? page.events[0].seq : Math.max(0, page.run.seq - EVENTS);
        const answer = await fetch(`/api/v1${at()}/events/stream?after=${last}`, { headers: headers(), signal: abort.signal, cache: "no-store" });
        if (!answer.ok) await read(answer);
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        await refresh();
        wait = 500;
        for (let rest = ""; ;) {
          const { done, value } = await reader.read();
          if (done) break;
          heard();
          const parts = (rest + value).split("\n\n");
          rest = parts.pop();
          const fresh = parts.flatMap((part) => part.split("\n").filter((l) => l.startsWith("data: ")).map((l) => JSON.parse(l.slice(6))));
          if (fresh.length && generation === page.generation) { note(fresh); soon(); }
        }
      } finally { clearInterval(watchdog); abort.abort(); }
    } catch (error) {
      if (error instanceof Refused && [401, 404].includes(error.status)) { if (error.status === 404) complain(error); return; }
    }
    if (generation !== page.generation) return;
    lost();
    await new Promise((go) => setTimeout(go, wait));
    wait = Math.min(4000, 2 * wait);
  }
}

function heard() { page.heard = Date.now(); }
function lost() { page.lostSince ??= Math.max(page.updated || 0, 0) || Date.now(); freshness(); }

function broken() { lost(); page.cut?.(); } // connect anew: only that shows that everything is up to date again

function freshness() {
  if (page.lostSince === null && page.name && page.heard && Date.now() - page.heard > QUIET) page.lostSince = page.heard;
  const stale = page.lostSince !== null;
  if (document.body.classList.toggle("stale", stale) !== freshness.before) { freshness.before = stale; if (page.run) drawNext(); }
  $("lost").hidden = !stale;
  $("stop").disabled = page.run?.status === "stopped" && !stale; // what was stopped when the connection was lost may run again
  $("resume").disabled = stale;
  const known = page.run ? page.run.standing.word : "no run", shown = stale && page.run ? `was ${known}` : known;
  if ($("status").textContent !== shown) { $("status").textContent = shown; $("status").className = `pill ${stale ? "unknown" : known}`; }
  if (stale) $("lost").textContent = `No connection since ${clock(page.lostSince)}. What you see is old: do not act on it. Trying again …`;
  $("link").textContent = stale ? `lost ${clock(page.lostSince)}` : page.updated ? `live, ${clock(Math.max(page.heard, page.updated))}` : "connecting";
}

function note(fresh) {
  const known = page.events.length ? page.events[0].seq : 0;
  page.events = [...fresh.filter((e) => e.seq > known).reverse(), ...page.events].slice(0, EVENTS);
  drawLog();
}

function soon() { clearTimeout(soon.timer); soon.timer = setTimeout(() => refresh().catch(broken), 60); }

async function refresh() {
  const generation = page.generation, name = page.name;
  const [run, fresh] = await Promise.all([get(at()), get(`${at()}/samples`, [["after", page.told]])]);
  if (generation !== page.generation || name !== page.name) return;
  if (page.run && run.seq < page.run.seq) return; // an answer that was overtaken
  const changed = !page.run || fresh.measurements.length || fresh.voided.length !== page.voided.length || fresh.aborted.length !== page.aborted.length || run.pending?.id !== page.run.pending?.id;
  const gone = new Set(fresh.voided.map((v) => v.number)), doubtful = new Set(run.doubtful);
  page.samples = [...page.samples, ...fresh.measurements.filter((m) => m.number > page.told)].filter((m) => !gone.has(m.number));
  for (const m of page.samples) m.doubtful = doubtful.has(m.trial);
  page.told = Math.max(page.told, ...page.samples.map((m) => m.number), ...gone);
  page.voided = fresh.voided;
  page.aborted = fresh.aborted;
  const first = !page.run;
  page.run = run;
  page.updated = Date.now();
  page.lostSince = null;
  heard();
  role(run.role, run.you);
  if (first) chooseAxes();
  drawAll();
  drawLog();
  if (changed) look();
}

// What takes the server longer: one request at a time, the newest wish wins, and nothing while nobody looks.
async function look() {
  if (document.hidden) { look.missed = true; return; }
  if (look.busy) { look.again = true; return; }
  look.busy = true;
  do {
    look.again = false;
    const generation = page.generation, state = known();
    try {
      if (!page.samples.length) for (const id of ["best", "slice", "norms"]) $(id).replaceChildren(html("p", { class: "note" }, "Nothing is known before the first safe measurement."));
      else {
        if (page.bestOf !== state) {
          const best = await get(`${at()}/best`);
          if (generation === page.generation) { Object.assign(page, { best, bestOf: state }); drawBest(); }
        }
        await reslice();
        if (generation === page.generation) {
          const bounds = await get(`${at()}/norms`);
          if (generation === page.generation) { page.norms = bounds; drawNorms(); }
        }
      }
    } catch (error) {
      if (!(error instanceof Refused)) { look.missed = true; continue; }
      if (error.status === 429) setTimeout(look, 5000); else complain(error);
    }
  } while (look.again);
  look.busy = false;
}

// What the best parameters depend on, and a slice as well, which also shows the surroundings of the trial.
const known = () => JSON.stringify([page.name, page.run?.measurements, page.run?.aborted, page.run?.voided]);

const wished = () => JSON.stringify([known(), page.run?.pending?.id, page.view.x, page.view.y, page.view.output, page.view.fixed]);

async function reslice() {
  if (document.hidden) { look.missed = true; return; }
  if (reslice.busy) { reslice.again = true; return; }
  reslice.busy = true;
  do {
    reslice.again = false;
    const wish = wished(), state = known();
    if (page.sliceOf === wish || !page.samples.length) continue;
    try {
      const slice = await fetchSlice();
      if (wish === wished()) { Object.assign(page, { slice, sliceOf: wish, sliceKnown: state }); drawSlice(); } else reslice.again = true;
    } catch (error) { if (error instanceof Refused && error.status === 429) setTimeout(reslice, 5000); else complain(error); }
  } while (reslice.again);
  reslice.busy = false;
}

// A slider that is being moved asks where it rests.
function resliceSoon() { clearTimeout(resliceSoon.timer); resliceSoon.timer = setTimeout(reslice, 120); }

function fetchSlice() {
  const { x, y, output, fixed } = page.view;
  const others = Object.entries(fixed).filter(([name]) => name !== x && name !== y).map(([name, value]) => ["at", `${name}:${value}`]);
  return get(`${at()}/slice`, [["x", x], ...(y ? [["y", y]] : []), ["output", output], ...others]);
}

// -- runs and roles ------------------------------------------------------------------------------------------------------

// A run in the list of runs.
const entry = (run, waiting) => `${run.title || run.name} – ${waiting ? "waits for approval" : run.standing.word}`;

// The shown run is known better than the list, which is asked for from time to time.
function relist() {
  const option = [...$("runs").options].find((o) => o.value === page.run.name), text = entry(page.run, (page.run.pending ?? page.run.start)?.waiting);
  if (option && option.textContent !== text) option.textContent = text;
}

async function list() {
  if (document.hidden && page.name !== null) return;
  try {
    const { runs, you, role: mine } = await get("/runs");
    role(mine, you);
    const options = runs.map((r) => html("option", { value: r.name }, entry(r, r.waiting)));
    const mineNow = runs.find((r) => r.name === page.name);
    if (mineNow && page.run && mineNow.status === page.run.status) { Object.assign(page.run, { driver: mineNow.driver, standing: mineNow.standing }); drawCounts(); freshness(); }
    $("none").hidden = runs.length > 0;
    const wanted = page.name ?? (decodeURIComponent(location.hash.slice(1)) || runs[0]?.name);
    if (!$("runs").matches(":focus")) { $("runs").replaceChildren(...(options.length ? options : [html("option", {}, "no runs yet")])); if (wanted) $("runs").value = wanted; }
    if (page.name === null && wanted && runs.length) open(wanted);
  } catch (error) { if (!(error instanceof Refused)) broken(); }
}

function open(name) {
  page.generation++;
  Object.assign(page, { name, run: null, samples: [], voided: [], told: 0, aborted: [], events: [], slice: null, sliceOf: "", sliceKnown: "", norms: null, best: null, bestOf: "", updated: 0, view: {}, lostSince: null });
  for (const id of ["log", "progress", "next"]) $(id).replaceChildren();
  for (const id of ["best", "slice", "norms"]) $(id).replaceChildren(html("p", { class: "note" }, "Computing …"));
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  $("runs").value = name;
  follow(page.generation);
}

function role(kind, you) {
  page.role = kind;
  document.body.classList.toggle("viewer", !may("stop"));
  document.body.classList.toggle("rig", kind === "rig");
  document.body.classList.toggle("acting", may("stop"));
  $("who").textContent = may("stop") ? `${kind} ${you}` : `${you}, looking only`;
}

// -- drawing -------------------------------------------------------------------------------------------------------------

function drawAll() {
  const run = page.run;
  document.body.classList.remove("idle");
  document.title = `${run.status === "running" ? "" : `${run.status}: `}${run.title || run.name} – safebo`;
  $("pause").hidden = halted();
  $("resume").hidden = !halted() || !may("resume");
  $("stop").textContent = run.status === "stopped" ? "STOPPED" : "STOP";
  $("halt").hidden = run.status === "running" && !run.reason;
  $("halt").classList.toggle("bad", run.status === "stopped");
  $("halt").textContent = run.status === "running" ? run.reason : `${run.status[0].toUpperCase()}${run.status.slice(1)}${run.reason ? `: ${run.reason.replace(/\.$/, "")}.` : "."} ${run.reason === run.advice ? "" : run.advice}`;
  drawNext();
  drawCounts();
  drawProgress();
  drawAge();
  freshness();
  relist();
}

function drawNext() {
  const { pending: trial, confirm } = page.run, stale = page.lostSince !== null, card = $("next").closest(".card");
  shown(trial?.id ?? page.run.start?.id ?? null);
  card.classList.toggle("waiting", Boolean(trial?.waiting));
  card.classList.toggle("out", Boolean(trial?.out));
  if (!trial && page.run.start) return drawStart(page.run.start, stale, card);
  if (!trial) {
    const done = page.run.status !== "running", last = page.events.find((e) => ["asked", "withdrawn"].includes(e.kind));
    const gone = last?.kind === "withdrawn" ? `Trial ${last.body.trial} was withdrawn: ${last.body.reason}. Nobody may run it. ` : "";
    $("next").replaceChildren(html("p", { class: "state" }, gone, done ? "Nothing is handed out." : page.samples.length ? "None is pending. The plant's program, or N, asks for the next one." : "There is no measurement yet: enter one that is known to be safe (M)."));
    buttons(!done && page.samples.length ? [["next", "n", "Take the next trial", take]] : [], stale);
    return;
  }
  const unit = Object.fromEntries(page.run.parameters.map((p) => [p.name, p.unit]));
  const state = trial.waiting ? "Waits for your approval. It has not been sent to the plant." : trial.out ? `Out since ${clock(trial.started_at)}: waiting for its measurement.` : trial.approved_by ? `Approved by ${trial.approved_by} at ${clock(trial.approved_at)}. Not sent to the plant yet.` : "Certified. Not sent to the plant yet.";
  $("next").replaceChildren(
    html("p", { class: "state" }, !may("approve") && trial.waiting ? "Waits for an operator's approval." : state),
    html("dl", { class: "params" }, Object.entries(trial.params).map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, show(value, 5), " ", html("small", {}, unit[name] || ""))))),
    ...page.run.outputs.map((o) => certificate(o, trial)),
    page.run.doubtful.includes(trial.id) ? html("p", { class: "state bad" }, "It was certified with a measurement that was taken back later.") : "",
    html("p", { class: "note" }, `Each certificate holds with probability ${show(trial.probability, 3)} (confidence ${show(trial.confidence, 3)}). Sub-domain ${Object.entries(trial.cube).map(([n, [a, b]]) => `${n} ${show(a)}…${show(b)}`).join(", ")}. Trial ${trial.id}, asked for by ${trial.asked_by} at ${clock(trial.asked_at)}${trial.approved_by ? `, approved by ${trial.approved_by} at ${clock(trial.approved_at)}` : confirm ? "" : "; this run needs no approval"}${trial.refutations ? `; ${trial.refutations} norm bounds were refuted at this step` : ""}.`));
  buttons(trial.waiting
    ? [["approve go", "a", "Approve", () => approve(trial.id)], ["reject no", "r", "Reject", askReject]]
    : trial.out
      ? [["measure go", "m", "Enter its measurement", askMeasurement], ["abort no", null, "Abort …", askAbort], ["retry", null, "It was not executed …", askRetry]]
      : [["next", "n", "Take it", take], ["reject no", "r", "Reject", askReject]], stale, page.run.status !== "running");
}

function drawStart(start, stale, card) {
  const unit = Object.fromEntries(page.run.parameters.map((p) => [p.name, p.unit]));
  card.classList.toggle("waiting", start.waiting);
  card.classList.toggle("out", start.out);
  const state = start.waiting ? (may("approve") ? "The start waits for your approval. It has not been sent to the plant." : "The start waits for an operator's approval.") : start.out ? `The start is out since ${clock(start.started_at)}: waiting for its measurement.` : start.approved_by ? `The start was approved by ${start.approved_by} at ${clock(start.approved_at)}. Not sent to the plant yet.` : "The start. Not sent to the plant yet.";
  $("next").replaceChildren(
    html("p", { class: "state" }, state),
    html("dl", { class: "params" }, Object.entries(start.params).map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, show(value, 5), " ", html("small", {}, unit[name] || ""))))),
    html("p", { class: "note" }, `Nothing certifies it: whoever set up the run calls these parameters safe. Measurement ${start.number} of ${start.repeats}.`));
  buttons(start.waiting ? [["approve go", "a", "Approve", () => approve(start.id)]] : [], stale);
}

const VERBS = { approve: "approve", reject: "reject", measure: "tell", abort: "abort", retry: "retry", next: "ask" }; // by class

function buttons(all, stale, halted = false) {
  const entries = all.filter(([kind]) => may(VERBS[kind.split(" ")[0]]));
  const had = document.activeElement?.closest("#actions") ? document.activeElement.className : null;
  $("actions").replaceChildren(...entries.map(([kind, key, name, run]) =>
    html("button", { type: "button", class: kind, "data-key": key, "aria-keyshortcuts": key, disabled: stale || (halted && kind === "next"), onclick: run }, key ? html("kbd", {}, key.toUpperCase()) : "", key ? " " : "", name)));
  if (!entries.some(([, key]) => key === "m") && page.run) $("actions").append(html("button", { type: "button", class: "measure", "data-key": "m", "aria-keyshortcuts": "m", disabled: stale, onclick: askMeasurement }, html("kbd", {}, "M"), " Enter a measurement"));
  if (had) $("actions").querySelector(`[class="${had}"]`)?.focus();
}

function certificate(output, trial) {
  const { lower, upper } = trial.bounds[output.name], norm = trial.norms[output.name], unit = output.unit ? ` ${output.unit}` : "";
  const limit = [output.lower === null ? null : `above ${show(output.lower)}`, output.upper === null ? null : `below ${show(output.upper)}`].filter(Boolean).join(" and ");
  return html("p", { class: "certificate" }, html("strong", {}, output.name), " between ", html("strong", {}, show(lower)), " and ", html("strong", {}, show(upper) + unit), limit ? ` (must stay ${limit})` : " (no limit)", `, norm bound ${show(norm, 3)}`);
}

function drawCounts() {
  const run = page.run, wanted = run.experiments_wanted === null ? "" : ` of ${run.experiments_wanted}`;
  const by = seconds(run.standing.text);
  const rows = [...(by ? [["stands", `${run.standing.word}, ${by}`]] : []), ["experiments", `${run.experiments}${wanted}`], ["measurements", run.measurements], ["aborted", page.aborted.filter((a) => !a.rejected).length], ["rejected", page.aborted.filter((a) => a.rejected).length], ...(page.voided.length ? [["taken back", page.voided.length]] : []), ["violations", run.violations.length], ["approval", run.confirm ? "required" : "not required"], ["guarantee", `${show(run.probability, 3)} per certificate`]];
  $("counts").replaceChildren(...rows.map(([name, value]) => html("div", { class: name }, html("dt", {}, name), html("dd", { class: name === "violations" && value ? "bad" : "" }, String(value)))));
}

function drawBest() {
  const best = page.best;
  if (!best) return;
  const unit = Object.fromEntries(page.run.parameters.map((p) => [p.name, p.unit]));
  $("best").replaceChildren(html("dl", { class: "params" }, Object.entries(best.params).map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, show(value, 5), " ", html("small", {}, unit[name] || ""))))),
    html("p", { class: "note" }, "objective certified between ", html("strong", {}, show(best.lower)), " and ", html("strong", {}, show(best.upper)), `, estimated ${show(best.mean)}`));
}

function drawProgress() {
  const place = $("progress");
  place.replaceChildren(...page.run.outputs.map((o) => progress(place, o, page.samples, page.aborted, page.run.pending, page.voided)), progressLegend(page.samples, page.aborted, page.voided));
}

function chooseAxes() {
  const names = page.run.parameters.map((p) => p.name), two = names.length > 1;
  page.view = { x: names[0], y: two ? names[1] : "", output: page.run.outputs[0].name, shown: "mean", fixed: {}, norm: page.run.outputs[0].name };
  const select = (name, key, options, then) => html("label", {}, name, html("select", { "data-axis": key, "aria-label": name, onchange: (e) => { page.view[key] = e.target.value; then(key); } }, options.map(([value, text]) => html("option", { value, selected: page.view[key] === value }, text))));
  const moved = (key) => {
    if (page.view.x === page.view.y) page.view[key === "x" ? "y" : "x"] = key === "x" ? "" : names.find((n) => n !== page.view.y);
    for (const s of $("axes").querySelectorAll("select")) s.value = page.view[s.dataset.axis];
    drawSliders();
    reslice();
  };
  const outputs = page.run.outputs.map((o) => [o.name, named(o)]);
  $("axes").replaceChildren(select("across", "x", names.map((n) => [n, n]), moved), two ? select("up", "y", [["", "(value)"], ...names.map((n) => [n, n])], moved) : "", outputs.length > 1 ? select("output", "output", outputs, moved) : "", two ? select("colour", "shown", [["mean", "mean"], ["lower", "lower bound"], ["upper", "upper bound"], ["margin", "distance to the limits"]], drawSlice) : "");
  $("norm-axes").replaceChildren(outputs.length > 1 ? select("output", "norm", outputs, drawNorms) : "");
  drawSliders();
}

function drawSliders() {
  const { x, y, fixed } = page.view, trial = page.run.pending;
  $("sliders").replaceChildren(...page.run.parameters.filter((p) => p.name !== x && p.name !== y).map((p) => {
    const value = (fixed[p.name] ??= trial?.params[p.name] ?? page.best?.params[p.name] ?? page.samples.at(-1)?.params[p.name] ?? (p.low + p.high) / 2);
    const output = html("output", {}, show(value)), move = (e) => { fixed[p.name] = Number(e.target.value); output.textContent = show(fixed[p.name]); resliceSoon(); };
    return html("label", {}, html("span", {}, `${named(p)} = `, output), html("input", { type: "range", min: p.low, max: p.high, step: (p.high - p.low) / 200, value, "aria-label": named(p), oninput: move }));
  }));
}

function drawSlice() {
  const place = $("slice"), data = page.slice;
  if (!data || !page.run) return;
  place.replaceChildren(data.y ? map(place, data, page.run, page.samples, page.run.pending, page.view.shown, page.aborted) : line(place, data, page.run, page.samples, page.run.pending, page.aborted));
  drawAge();
}

const count = (n) => `${n} measurement${n === 1 ? "" : "s"}`;

// A picture that newer measurements are not in says so, and fades.
function drawAge() {
  const data = page.slice, old = Boolean(data && page.run && page.sliceKnown !== known());
  for (const id of ["slice", "best", "norms"]) $(id).classList.toggle("old", old);
  $("age").hidden = !old;
  if (old) $("age").textContent = `Computed from ${count(data.measurements)}; ${page.run.measurements} are in. Being computed anew …`;
}

function drawNorms() { if (page.norms) $("norms").replaceChildren(norms($("norms"), page.norms, page.view.norm)); }

const BAD = ["stopped", "rejected", "aborted", "withdrawn", "voided"];

function drawLog() {
  const gone = new Map(page.voided.map((v) => [v.number, v])), doubtful = new Set(page.run?.doubtful ?? []);
  $("log").replaceChildren(...page.events.slice(0, 200).map((e) => {
    const back = gone.get(e.number), number = e.number ? html("strong", {}, `${e.number} `) : "";
    const notes = [back && `taken back by ${back.who}${back.reason ? `: ${back.reason}` : ""}`, e.kind === "asked" && doubtful.has(e.body.trial.id) && "certified with a measurement that was taken back later"].filter(Boolean);
    const text = html("span", { class: back ? "gone" : "" }, `${e.text || e.kind}${e.who ? ` (by ${e.who})` : ""}`);
    const bad = BAD.includes(e.kind) || Object.keys(e.body.violated ?? {}).length;
    return html("li", {}, html("span", { class: "seq" }, String(e.seq)), html("time", { class: "at", datetime: e.at, title: `${e.at} (UTC)` }, clock(e.at)), html("span", { class: `kind${bad ? " bad" : ""}` }, e.kind),
      html("span", { class: "text" }, number, text, notes.length ? html("em", { class: "bad" }, ` (${notes.join("; ")})`) : "", fold(e)));
  }));
}

// The entry as it is, behind a fold; what is open stays open when the next entry comes.
function fold(e) {
  const body = html("pre", {}), details = html("details", { open: fold.open.has(e.seq) }, html("summary", {}, "details"), body);
  const fill = () => { body.textContent = details.open ? JSON.stringify(e.body, null, 1) : ""; };
  details.addEventListener("toggle", () => { fold.open[details.open ? "add" : "delete"](e.seq); fill(); });
  fill();
  return details;
}
fold.open = new Set();

// -- dialogs -------------------------------------------------------------------------------------------------------------

function ask(title, content, confirm, then, kind = "go") {
  const dialog = $("dialog"), form = $("form"), yes = html("button", { type: "submit", class: kind, value: "yes" }, confirm);
  form.replaceChildren(html("h2", { id: "dialog-title" }, title), ...content, html("div", { class: "row" }, yes, html("button", { type: "button", class: "cancel", onclick: () => dialog.close() }, "Cancel")));
  form.onsubmit = async (e) => { e.preventDefault(); if ((await then(new FormData(form))) !== false) dialog.close(); };
  if (dialog.open) dialog.close();
  dialog.showModal();
  (form.querySelector("input:not([readonly]), textarea") ?? yes).focus();
}

function field(name, label, more = {}) { return html("label", {}, label, html("input", { name, ...more })); }
const decimal = (text) => { const value = Number(String(text).trim().replace(",", ".")); return String(text).trim() === "" || !Number.isFinite(value) ? NaN : value; };

function login(complaint) {
  if ($("dialog").open) return;
  page.generation++;
  ask("Sign in", [html("p", { class: "note" }, complaint || "This server asks for a token. It stays in this tab only."), field("token", "Token", { type: "password", required: true, autocomplete: "off" })], "Sign in", (data) => {
    page.token = data.get("token").trim();
    sessionStorage.setItem("safebo-token", page.token);
    page.name = null;
    setTimeout(list);
  });
  $("form").querySelector(".cancel").hidden = true;
}

const halted = () => ["paused", "stopped"].includes(page.run?.status);

const SETTLING = 1000; // milliseconds in which nobody can have read a trial that took the place of another

// A trial may be withdrawn and replaced in the moment in which somebody presses A for the one before.
function shown(id) {
  if (shown.id === id && shown.run === page.name) return;
  Object.assign(shown, { settled: shown.run === page.name && shown.id ? Date.now() + SETTLING : 0, id, run: page.name });
}

async function approve(id) {
  if (Date.now() < shown.settled) return complain(new Refused(0, { detail: "Not approved: this trial has just taken the place of another one. Look at it, then approve it." }));
  await act("approve", { trial: id });
}

async function take() { await act("ask", undefined, newKey()); }

function askReject() {
  const trial = page.run.pending;
  if (!trial || trial.out) return;
  ask("Reject the trial", [html("p", {}, place_of(trial.params)), html("p", { class: "note" }, "Experiments keep away from it from now on."), field("reason", "Why (for the record)", { maxlength: 500 })], "Reject", (data) => void act("reject", { trial: trial.id, reason: data.get("reason") }), "no");
}

function askAbort() {
  const trial = page.run.pending;
  ask("Abort the trial", [html("p", {}, place_of(trial.params)), html("p", { class: "note" }, "It failed, or nobody knows what became of it. Nothing is learned from it, and experiments keep away from it."), field("reason", "What happened", { required: true, maxlength: 500 })], "Abort", (data) => void act("abort", { trial: trial.id, reason: data.get("reason") }), "no");
}

function askRetry() {
  const trial = page.run.pending;
  ask("It was certainly not executed?", [html("p", {}, place_of(trial.params)), html("p", { class: "note" }, "Then it may be handed out once more. If you are not certain, abort it.")], "It was not executed", () => void act("retry", { trial: trial.id }), "no");
}

const NOISES = 3; // as in doubts.py: a value further outside its certified interval than this many deviations of the noise is a surprise

function surprising(output, trial, value) {
  const { lower, upper } = trial.bounds[output.name], room = NOISES * output.noise;
  return (lower !== null && value < lower - room) || (upper !== null && value > upper + room);
}

function askMeasurement() {
  const run = page.run, trial = run.pending?.out ? run.pending : null, key = newKey();
  const params = run.parameters.map((p) => field(`p:${p.name}`, named(p), { value: trial ? show(trial.params[p.name], 6) : "", readonly: Boolean(trial), required: true, inputmode: "decimal" }));
  const values = run.outputs.map((o) => field(`o:${o.name}`, `${named(o)}${o.lower !== null ? `, at least ${show(o.lower)}` : ""}${o.upper !== null ? `, at most ${show(o.upper)}` : ""}`, { required: true, inputmode: "decimal" }));
  const warning = html("p", { class: "wrong", role: "alert" });
  ask(trial ? "Measurement of the trial" : "Measurement without asking", [...params, ...values, field("note", "Note", { maxlength: 500 }), warning], "Store", async (data) => {
    warning.textContent = "";
    const numbers = (prefix, things) => Object.fromEntries(things.map((t) => [t.name, decimal(data.get(`${prefix}:${t.name}`))]));
    const [place, found] = [numbers("p", run.parameters), numbers("o", run.outputs)], bad = Object.entries({ ...(trial ? {} : place), ...found }).find(([, v]) => Number.isNaN(v));
    if (bad) { warning.textContent = `${bad[0]} is not a number.`; return false; }
    const beyond = run.outputs.filter((o) => outside(o, found[o.name])), strange = trial ? run.outputs.filter((o) => surprising(o, trial, found[o.name])) : [];
    if ((beyond.length || strange.length) && warning.dataset.seen !== JSON.stringify(found)) {
      warning.dataset.seen = JSON.stringify(found);
      const said = [...strange.map((o) => `${o.name}: ${show(found[o.name], 6)} was measured, ${show(trial.bounds[o.name].lower)} to ${show(trial.bounds[o.name].upper)} is certified.`), ...(beyond.length ? [`${beyond.map((o) => o.name).join(", ")} is outside its limit${run.on_violation === "stop" ? "; this stops the run" : ""}.`] : [])];
      warning.textContent = `${said.join(" ")} Press Store again if it is right.`;
      return false;
    }
    const { objective, ...constraints } = found, context = { entered: "by hand", ...(data.get("note") ? { note: data.get("note") } : {}) };
    try { await post(`${at()}/tell`, { ...(trial ? { trial: trial.id } : { params: place }), objective, constraints, context }, key); await refresh(); } catch (error) { warning.textContent = error.message; return false; }
    return true;
  });
}

function askStop() {
  if ($("stop").disabled) return;
  ask(`Stop ${page.run.title || page.run.name}?`, [html("p", {}, "Nothing more is handed out. Press S again, or Enter.")], "Stop now", () => void stop(), "stop now");
  $("form").querySelector("[value=yes]").focus();
}

async function stop() {
  $("stop").textContent = "STOPPING";
  if (!(await act("stop", { reason: "stopped on the page" })) && page.lostSince !== null) complain(new Refused(0, { detail: "NOT STOPPED: the server does not answer. Use the rig's own switch." }));
  if (page.run) drawAll();
}

// Pausing never resumes: whoever presses P in the moment in which a violation stops the run must not set it going again.
async function pause() {
  if (!halted()) return void await act("pause", { reason: "", seen: page.run.seq });
  await refresh().catch(broken);
  if (page.lostSince !== null) return;
  const what = halted() ? `The run is ${page.run.status} already: P does nothing. Resume is a button.` : "The run goes on by now: press P again to pause it.";
  complain(new Refused(0, { detail: what }));
}

function askResume() {
  const run = page.run, violated = run.cause === "violation", seen = run.seq;
  if (!halted()) return;
  const accept = html("label", { class: "check" }, html("input", { type: "checkbox", name: "accept", required: true }), " I accept that a measurement was outside its limit.");
  ask(`Resume ${run.title || run.name}?`, [html("p", {}, $("halt").textContent), field("reason", "Why it may go on (for the record)", { required: true, maxlength: 500 }), violated ? accept : ""], "Resume", (data) =>
    void act("resume", { reason: data.get("reason"), seen, accept_violation: violated && data.get("accept") !== null }));
}

// -- beginning -----------------------------------------------------------------------------------------------------------

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.repeat || !page.run) return;
  const key = e.key.toLowerCase(), dialog = $("dialog");
  if (dialog.open) {
    if (key === "s" && $("form").querySelector("button.now")) { e.preventDefault(); $("form").requestSubmit(); }
    return;
  }
  if (e.target.matches("input:not([type=range]), textarea, select")) return;
  const cards = [...document.querySelectorAll("main .card")];
  const button = $("actions").querySelector(`[data-key="${CSS.escape(key)}"]:not(:disabled)`);
  if (button) { e.preventDefault(); button.click(); }
  else if (key === "p" && may("pause")) { e.preventDefault(); pause(); }
  else if (key === "s" && may("stop")) { e.preventDefault(); askStop(); }
  else if (key === "?") cards.at(-1).scrollIntoView();
  else if (/^[1-5]$/.test(key)) { const card = cards[[0, 2, 3, 4, 5][key - 1]]; card.scrollIntoView(); card.tabIndex = -1; card.focus({ preventScroll: true }); }
});
$("stop").addEventListener("click", stop);
$("pause").addEventListener("click", pause);
$("resume").addEventListener("click", askResume);
$("runs").addEventListener("change", (e) => open(e.target.value));
window.addEventListener("hashchange", () => { const name = decodeURIComponent(location.hash.slice(1)); if (name && name !== page.name) open(name); });
let width = innerWidth;
window.addEventListener("resize", () => { clearTimeout(open.timer); open.timer = setTimeout(() => { if (width !== innerWidth && page.run) { width = innerWidth; drawProgress(); drawSlice(); drawNorms(); } }, 150); });
$("zone").textContent = `times in ${Intl.DateTimeFormat().resolvedOptions().timeZone || "the zone of this computer"}`;
document.addEventListener("visibilitychange", () => { if (!document.hidden) { list(); if (look.missed) { look.missed = false; look(); } } });
setInterval(freshness, 500);
setInterval(list, 5000);
list();
