// Small SVG charts. Every function draws into an element and gives it a description for those who do not see it.

const NS = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  for (const child of children) node.append(child);
  return node;
}

export function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null) node.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null) node.append(child);
  return node;
}

export function show(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size && (size >= 1e5 || size < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
}

export function named(thing) { return thing.unit ? `${thing.name} [${thing.unit}]` : thing.name; }

function ticks(low, high, count, whole = false) {
  const raw = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// A frame with axes: X and Y turn values into pixels. The strip below the floor is for what has no value.
function frame(place, { x, y, xname, yname, height, label, log = false, whole = false, strip = 0 }) {
  const width = Math.max(280, place.clientWidth || 600), left = 58, right = 14, top = 12, bottom = xname ? 42 : 24, floor = height - bottom - strip;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const scale = log ? Math.log10 : (v) => v, [y0, y1] = y.map(scale);
  const X = (v) => left + ((v - x[0]) / (x[1] - x[0])) * (width - left - right);
  const Y = (v) => floor - ((scale(v) - y0) / (y1 - y0)) * (floor - top);
  const yticks = log ? ticks(y0, y1, 4).map((e) => 10 ** e) : ticks(y[0], y[1], height / 55);
  for (const t of yticks) root.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: Y(t), y2: Y(t) }), text(left - 7, Y(t) + 4, show(t, 3), "end"));
  for (const t of ticks(x[0], x[1], width / 90, whole)) root.append(svg("line", { class: "grid", x1: X(t), x2: X(t), y1: top, y2: height - bottom }), text(X(t), height - bottom + 17, show(t, 4), "middle"));
  if (xname) root.append(text((left + width - right) / 2, height - 6, xname, "middle", "strong"));
  if (yname) root.append(svg("text", { class: "strong", transform: `translate(13 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yname));
  root.append(svg("rect", { class: "frame", x: left, y: top, width: width - left - right, height: height - top - bottom }));
  if (strip) root.append(svg("path", { class: "frame", d: `M${left} ${floor}H${width - right}` }));
  return { root, X, Y, left, top, right: width - right, floor, bottom: height - bottom, width };
}

function text(x, y, content, anchor = "start", kind = "") { return svg("text", { x, y, "text-anchor": anchor, class: kind }, content); }

function tip(node, content) { node.append(svg("title", {}, content)); return node; }

function span(values, room = 0.08) {
  let low = Math.min(...values), high = Math.max(...values);
  if (!Number.isFinite(low)) [low, high] = [0, 1];
  const extra = high > low ? room * (high - low) : Math.max(Math.abs(high), 1) * 0.5;
  return [low - extra, high + extra];
}

function path(points, step = false) {
  return points.map(([x, y], i) => (i ? (step ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `L${x.toFixed(1)} ${y.toFixed(1)}`) : `M${x.toFixed(1)} ${y.toFixed(1)}`)).join("");
}

// What ended without a measurement: a plus if it was aborted, a square if it was rejected.
function givenUp(a, x, y, faint = "") {
  const d = a.rejected ? `M${x - 6} ${y - 6}h12v12h-12z` : `M${x - 7} ${y}h14M${x} ${y - 7}v14`;
  const what = `${a.rejected ? "" : "aborted: "}${a.reason} at ${place_of(a.params)}`;
  return tip(svg("g", { class: a.rejected ? "rejected" : "aborted" }, svg("path", { class: `rim${faint}`, d }), svg("path", { class: faint.trim(), d })), what);
}

function givenUpKeys(aborted) {
  const key = (a) => [givenUp({ ...a, reason: "", params: {} }, 11, 7), a.rejected ? "rejected" : "aborted"];
  return [aborted.find((a) => !a.rejected), aborted.find((a) => a.rejected)].filter(Boolean).map(key);
}

function cross(x, y, r, kind) { return svg("path", { class: kind, d: `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}` }); }

function limits(f, low, high, x) {
  for (const [value, side] of [[low, 1], [high, -1]]) {
    if (value === null) continue;
    const at = f.Y(value);
    if (at < f.top - 1 || at > f.floor + 1) continue;
    f.root.append(svg("rect", { class: "beyond", x: f.left, width: f.right - f.left, y: side > 0 ? at : f.top, height: Math.max(0, side > 0 ? f.floor - at : at - f.top) }));
    f.root.append(svg("path", { class: "limit", d: `M${f.left} ${at}H${f.right}` }), text(x ?? f.right - 6, side > 0 && at + 18 < f.floor ? at + 15 : at - 6, `limit ${show(value)}`, "end", "limit-name"));
  }
}

export function legend(entries) {
  return html("div", { class: "legend" }, entries.map(([node, name]) => html("span", {}, svg("svg", { viewBox: "0 0 22 14", "aria-hidden": "true" }, node), name)));
}
const dot = (kind) => svg("circle", { class: kind, cx: 11, cy: 7, r: 5 });
const bar = (kind) => svg("rect", { class: kind, x: 1, y: 4, width: 20, height: 6 });
const stroke = (kind) => svg("path", { class: kind, d: "M1 7H21" });

const STRIP = 24; // pixels, for the marks of what ended without a measurement

export function progress(place, output, measurements, aborted, trial, voided) {
  const values = measurements.map((m) => m.values[output.name]), bounds = trial ? [trial.bounds[output.name].lower, trial.bounds[output.name].upper] : [];
  const known = [...values, output.lower, output.upper, ...bounds].filter((v) => v !== null && v !== undefined);
  const told = Math.max(0, measurements.at(-1)?.number ?? 0, ...voided.map((v) => v.number)), last = Math.max(told + 1, 6);
  const wrong = measurements.filter((m) => outside(output, m.values[output.name]));
  const label = `${output.name} over ${values.length} measurements, latest ${show(values.at(-1))}, ${wrong.length} outside the limits`;
  const strip = aborted.length ? STRIP : 0, f = frame(place, { x: [0.3, last + 0.7], y: span(known), xname: "measurement", yname: named(output), height: 250 + strip, label, whole: true, strip });
  limits(f, output.lower, output.upper);
  if (output.name === "objective") {
    let best = -Infinity;
    const steps = measurements.map((m) => [f.X(m.number), f.Y((best = Math.max(best, m.outside ? -Infinity : m.values.objective)))]);
    const good = steps.filter(([, y]) => Number.isFinite(y));
    if (good.length) f.root.append(svg("path", { class: "best-line", d: path([...good, [f.X(told + 0.6), good.at(-1)[1]]], true) }));
  }
  f.root.append(svg("path", { class: "path", d: path(measurements.map((m) => [f.X(m.number), f.Y(m.values[output.name])])) }));
  for (const m of measurements) {
    const doubt = m.doubtful ? "; it was certified with a measurement that was taken back later" : "";
    const [x, y, said] = [f.X(m.number), f.Y(m.values[output.name]), `${m.number}: ${output.name} = ${show(m.values[output.name], 6)} at ${place_of(m.params)}${doubt}`];
    if (m.doubtful) f.root.append(svg("circle", { class: "doubtful", cx: x, cy: y, r: 10 }));
    const bad = outside(output, m.values[output.name]);
    f.root.append(tip(bad ? cross(x, y, 8, "violation") : svg("circle", { class: m.trial ? "sample" : "initial", cx: x, cy: y, r: 5 }), bad ? `VIOLATION ${said}` : said));
    if (bad) f.root.append(text(x, y - 12 < f.top + 14 ? y + 24 : y - 12, show(m.values[output.name], 3), "middle", "limit-name"));
  }
  for (const v of voided) {
    const [x, y] = [f.X(v.number), Math.min(f.floor - 8, Math.max(f.top + 8, f.Y(v.values[output.name])))];
    f.root.append(tip(svg("g", { class: "gone" }, svg("circle", { cx: x, cy: y, r: 5 }), svg("path", { d: `M${x - 8} ${y + 8}L${x + 8} ${y - 8}` })), `${v.number}: ${output.name} = ${show(v.values[output.name], 6)} was taken back by ${v.who}${v.reason ? `: ${v.reason}` : ""}`));
  }
  for (const a of aborted) {
    const together = aborted.filter((other) => other.after === a.after), part = (together.indexOf(a) + 1) / (together.length + 1);
    f.root.append(givenUp(a, f.X(a.after + part), f.bottom - STRIP / 2));
  }
  if (trial) {
    const x = f.X(told + 1), [low, high] = bounds.map((b) => f.Y(b));
    f.root.append(tip(svg("path", { class: "trial", d: `M${x - 5} ${high}h10M${x - 5} ${low}h10M${x} ${low}V${high}` }), `next trial: certified between ${show(bounds[0])} and ${show(bounds[1])}`));
  }
  return html("div", { class: "chart" }, f.root);
}

export function progressLegend(measurements, aborted, voided) {
  return legend([[dot("sample"), "experiment"], [dot("initial"), "told without asking"], [svg("path", { class: "trial", d: "M11 1V13M7 1h8M7 13h8" }), "certified interval of the next trial"], [stroke("limit"), "limit"],
    [stroke("best-line"), "best so far"], [cross(11, 7, 5, "violation"), "violation"], ...givenUpKeys(aborted),
    ...(voided.length ? [[svg("g", { class: "gone" }, svg("circle", { cx: 11, cy: 7, r: 4 }), svg("path", { d: "M4 13L18 1" })), "taken back"]] : []),
    ...(measurements.some((m) => m.doubtful) ? [[svg("circle", { class: "doubtful", cx: 11, cy: 7, r: 6 }), "certified with a measurement that was taken back"]] : [])]);
}

export function outside(output, value) { return (output.lower !== null && value < output.lower) || (output.upper !== null && value > output.upper); }
export function place_of(params) { return Object.entries(params).map(([name, value]) => `${name} = ${show(value, 5)}`).join(", "); }

function near(params, fixed, ranges) { return Object.entries(fixed).every(([name, value]) => Math.abs(params[name] - value) <= 0.02 * ranges[name]); }

export function line(place, data, run, measurements, trial, aborted) {
  const xs = data.x.values, ranges = Object.fromEntries(run.parameters.map((p) => [p.name, p.high - p.low])), output = run.outputs.find((o) => o.name === data.output);
  const clipped = [...data.mean, ...measurements.map((m) => m.values[data.output]), data.limits.lower, data.limits.upper, ...inSafe(data, "lower"), ...inSafe(data, "upper")].filter((v) => v !== null);
  const certified = data.safe.filter(Boolean).length;
  const label = `${data.output} along ${data.x.name}: ${Math.round((100 * certified) / xs.length)} per cent of the range are certified as safe`;
  const sets = [["safe", data.safe], ["maximiser", data.maximisers], ["expander", data.expanders]], bars = 8 * sets.length + 3, strip = bars + (aborted.length ? STRIP : 0);
  const f = frame(place, { x: [xs[0], xs.at(-1)], y: span(clipped, 0.12), xname: named(run.parameters.find((p) => p.name === data.x.name)), yname: named(output), height: 330 + strip, label, strip });
  const clamp = (v, d) => Math.min(f.floor, Math.max(f.top, v === null ? d : f.Y(v)));
  const upper = xs.map((x, i) => [f.X(x), clamp(data.upper[i], f.top)]), lower = xs.map((x, i) => [f.X(x), clamp(data.lower[i], f.floor)]);
  f.root.append(svg("path", { class: "band", d: `${path([...upper, ...[...lower].reverse()])}Z` }), svg("path", { class: "band-edge", d: path(upper) }), svg("path", { class: "band-edge", d: path(lower) }));
  limits(f, data.limits.lower, data.limits.upper);
  f.root.append(svg("path", { class: "mean", d: path(xs.map((x, i) => [f.X(x), clamp(data.mean[i], f.floor)])) }));
  sets.forEach(([kind, mask], row) => {
    if (!mask) return;
    for (const [a, b] of stretches(mask)) { // from the first certified point to the last, and no further
      const [from, wide] = [f.X(xs[a]), f.X(xs[b]) - f.X(xs[a])], more = Math.max(0, 3 - wide) / 2;
      f.root.append(svg("rect", { class: kind, x: from - more, width: wide + 2 * more, y: f.bottom - 7 - 8 * row, height: 7 }));
    }
  });
  for (const m of measurements) {
    const [x, y, on] = [f.X(m.params[data.x.name]), f.Y(m.values[data.output]), near(m.params, data.fixed, ranges)];
    const bad = outside(output, m.values[data.output]);
    f.root.append(tip(bad ? cross(x, y, 7, `violation${on ? "" : " faint"}`) : svg("circle", { class: `${m.trial ? "sample" : "initial"}${on ? "" : " faint"}`, cx: x, cy: y, r: 5 }), `${m.number}: ${show(m.values[data.output], 6)} at ${place_of(m.params)}`));
  }
  for (const a of aborted) f.root.append(givenUp(a, f.X(a.params[data.x.name]), f.bottom - bars - STRIP / 2, near(a.params, data.fixed, ranges) ? "" : " faint"));
  if (trial) {
    const x = f.X(trial.params[data.x.name]), b = trial.bounds[data.output], [low, high] = [clamp(b.lower, f.floor), clamp(b.upper, f.top)];
    f.root.append(tip(svg("path", { class: "trial", d: `M${x} ${f.top}V${f.bottom}`, "stroke-dasharray": "2 4" }), "next trial"), svg("path", { class: "trial", d: `M${x - 6} ${high}h12M${x - 6} ${low}h12M${x} ${low}V${high}` }));
  }
  return html("div", { class: "chart" }, f.root, legend([[stroke("mean"), "mean"], [bar("band"), "interval"], [bar("safe"), "certified as safe"], [bar("maximiser"), "may be the maximum"], [bar("expander"), "may enlarge the safe set"], [stroke("trial"), "next trial"], [stroke("limit"), "limit"], ...givenUpKeys(aborted)]));
}

function inSafe(data, which) { return data[which].filter((_, i) => data.safe[i]); }
function stretches(mask) {
  const found = [];
  mask.forEach((on, i) => { if (on) { if (i && mask[i - 1]) found.at(-1)[1] = i; else found.push([i, i]); } });
  return found;
}

const CIVIDIS = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56]];
function colour(t) {
  const at = Math.min(0.9999, Math.max(0, t)) * (CIVIDIS.length - 1), i = Math.floor(at), w = at - i;
  return `rgb(${CIVIDIS[i].map((c, k) => Math.round(c + w * (CIVIDIS[i + 1][k] - c))).join(",")})`;
}

const SHOWN = { mean: "mean", lower: "lower bound", upper: "upper bound", margin: "certified distance to the limits" };

// How far inside the limits the interval lies; negative where it may lie outside.
function margins(data) {
  const { lower: least, upper: most } = data.limits, far = (v) => (v === null ? -Infinity : v);
  return data.mean.map((_, k) => Math.min(least === null ? Infinity : far(data.lower[k]) - least, most === null ? Infinity : most - (data.upper[k] ?? Infinity)));
}

// Where the cells around the values of an axis begin and end: halfway to their neighbours.
function cells(values, to) {
  const between = values.slice(1).map((v, i) => (v + values[i]) / 2);
  return [values[0], ...between, values.at(-1)].map(to);
}

const maximiser = (x, y) => svg("circle", { class: "m-mark", cx: x, cy: y, r: 4 });
const expander = (x, y) => svg("path", { class: "g-mark", d: `M${x - 3.2} ${y - 1}h2.2v-2.2h2v2.2h2.2v2h-2.2v2.2h-2v-2.2h-2.2z` });

export function map(place, data, run, measurements, trial, shown, aborted) {
  const [xs, ys] = [data.x.values, data.y.values], n = ys.length, parameter = (name) => run.parameters.find((p) => p.name === name);
  const ranges = Object.fromEntries(run.parameters.map((p) => [p.name, p.high - p.low])), output = run.outputs.find((o) => o.name === data.output);
  const what = shown === "margin" && data.limits.lower === null && data.limits.upper === null ? "mean" : shown;
  const field = what === "margin" ? margins(data).map((v) => (Number.isFinite(v) ? v : null)) : data[what], known = field.filter((v, i) => v !== null && (what === "mean" || data.safe[i])), [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  const certified = data.safe.filter(Boolean).length, label = `${SHOWN[what]} of ${data.output} over ${data.x.name} and ${data.y.name}: ${Math.round((100 * certified) / field.length)} per cent are certified as safe`;
  const f = frame(place, { x: [xs[0], xs.at(-1)], y: [ys[0], ys.at(-1)], xname: named(parameter(data.x.name)), yname: named(parameter(data.y.name)), height: Math.min(560, Math.max(340, (place.clientWidth || 600) * 0.6)), label });
  const [wide, tall] = [f.right - f.left, f.bottom - f.top], sharp = Math.min(3, Math.ceil(window.devicePixelRatio || 1));
  const marks = svg("g"), canvas = html("canvas", { width: Math.round(wide * sharp), height: Math.round(tall * sharp) }), pen = canvas.getContext("2d");
  const [across, up] = [cells(xs, f.X), cells(ys, f.Y)], [px, py] = [across.map((x) => Math.round((x - f.left) * sharp)), up.map((y) => Math.round((y - f.top) * sharp))];
  const [dx, dy] = [wide / 60, tall / 45]; // marks no closer than this
  const marked = { maximisers: [], expanders: [] }, apart = (at, x, y) => at.every(([u, v]) => Math.abs(u - x) >= 0.9 * dx || Math.abs(v - y) >= 0.9 * dy);
  let edge = "";
  for (let i = 0; i < xs.length; i++) for (let j = 0; j < n; j++) {
    const k = i * n + j, [x, y] = [f.X(xs[i]), f.Y(ys[j])], safe = data.safe[k];
    pen.globalAlpha = safe ? 1 : 0.25;
    if (field[k] !== null) { pen.fillStyle = colour((field[k] - low) / (high - low || 1)); pen.fillRect(px[i], py[j + 1], px[i + 1] - px[i], py[j] - py[j + 1]); }
    if (i + 1 < xs.length && safe !== data.safe[k + n]) edge += `M${across[i + 1]} ${up[j]}V${up[j + 1]}`;
    if (j + 1 < n && safe !== data.safe[k + 1]) edge += `M${across[i]} ${up[j + 1]}H${across[i + 1]}`;
    for (const [kind, mark] of [["maximisers", maximiser], ["expanders", expander]]) { // what is both has a plus inside a circle
      if (!data[kind]?.[k] || !apart(marked[kind], x, y)) continue;
      marked[kind].push([x, y]);
      marks.append(mark(x, y));
    }
  }
  const inside = svg("svg", { x: f.left, y: f.top, width: f.right - f.left, height: f.bottom - f.top, viewBox: `${f.left} ${f.top} ${f.right - f.left} ${f.bottom - f.top}`, class: "clip" });
  inside.append(svg("image", { href: canvas.toDataURL(), x: f.left, y: f.top, width: wide, height: tall, preserveAspectRatio: "none", class: "pixels" }), marks, svg("path", { class: "edge", d: edge }), svg("path", { class: "edge over", d: edge }));
  f.root.append(inside);
  for (const m of measurements) {
    const [x, y, on] = [f.X(m.params[data.x.name]), f.Y(m.params[data.y.name]), near(m.params, data.fixed, ranges)];
    f.root.append(tip(outside(output, m.values[data.output]) || m.outside ? cross(x, y, 7, "violation") : svg("circle", { class: `${m.trial ? "sample" : "initial"}${on ? "" : " faint"}`, cx: x, cy: y, r: 5 }), `${m.number}: ${show(m.values[data.output], 6)} at ${place_of(m.params)}`));
  }
  for (const a of aborted) f.root.append(givenUp(a, f.X(a.params[data.x.name]), f.Y(a.params[data.y.name]), near(a.params, data.fixed, ranges) ? "" : " faint"));
  if (trial) {
    const [c, e] = [trial.cube[data.x.name], trial.cube[data.y.name]], [x, y] = [f.X(trial.params[data.x.name]), f.Y(trial.params[data.y.name])];
    f.root.append(svg("rect", { class: "cube", x: f.X(c[0]), y: f.Y(e[1]), width: f.X(c[1]) - f.X(c[0]), height: f.Y(e[0]) - f.Y(e[1]) }));
    f.root.append(tip(svg("path", { class: "trial-fill", d: `M${x} ${y - 10}L${x + 9} ${y}L${x} ${y + 10}L${x - 9} ${y}Z` }), `next trial: ${place_of(trial.params)}`));
  }
  const scale = svg("svg", { viewBox: "0 0 22 14" });
  for (let i = 0; i < 22; i++) scale.append(svg("rect", { x: i, y: 2, width: 1.2, height: 10, fill: colour(i / 21) }));
  const keys = legend([[svg("path", { class: "trial-fill", d: "M11 1l6 6l-6 6l-6 -6z" }), "next trial and its sub-domain"], [dot("sample"), "experiment"], [svg("g", {}, stroke("edge"), stroke("edge over")), "edge of what is certified as safe (pale beyond)"], [maximiser(11, 7), "may be the maximum"], [expander(11, 7), "may enlarge the safe set"], ...givenUpKeys(aborted)]);
  keys.prepend(html("span", {}, scale, `${SHOWN[what]} of ${named(output)}: ${show(low, 3)} to ${show(high, 3)}`));
  return html("div", { class: "chart" }, f.root, keys);
}

export function norms(place, data, output) {
  const all = data.subdomains.flatMap((s) => s.norms[output]).filter((v) => v !== null && v > 0), raised = data.refutations.filter((r) => r.output === output);
  const values = [...all, ...raised.flatMap((r) => [r.norm, r.raised_to])].filter((v) => v !== null && v > 0);
  const last = Math.max(data.measurements, 2), [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [1, 10];
  const label = `Norm bounds of ${output} in ${data.subdomains.length} sub-domains from ${show(low, 3)} to ${show(high, 3)}, ${raised.length} refuted`;
  const f = frame(place, { x: [0.8, last + 0.4], y: [low / 1.25, high * 1.25], xname: "measurements", yname: `B of ${output}`, height: 270, label, log: high > 20 * low, whole: true });
  data.subdomains.forEach((s, i) => {
    const kind = i === data.certifying ? " certifying" : s.lower.every((v) => v === 0) && s.upper.every((v) => v === 1) ? " whole" : "";
    const points = s.steps.map((step, k) => [f.X(step), f.Y(s.norms[output][k] ?? high)]);
    if (!points.length) return;
    f.root.append(tip(svg("path", { class: `norm${kind}`, d: path([...points, [f.X(last + 0.3), points.at(-1)[1]]], true) }), `sub-domain ${s.lower.map((v, a) => `${show(v, 3)}..${show(s.upper[a], 3)}`).join(" x ")}`));
    for (const [x, y] of points) f.root.append(svg("circle", { class: `norm-dot${kind}`, cx: x, cy: y, r: kind ? 3.5 : 2 }));
  });
  for (const r of raised) f.root.append(tip(svg("path", { class: "violation", d: `M${f.X(r.step)} ${f.Y(r.norm)}V${f.Y(r.raised_to)}` }), `refuted: ${show(r.norm)} raised to ${show(r.raised_to)}`), tip(cross(f.X(r.step), f.Y(r.norm), 6, "violation"), `refuted: ${show(r.norm)} raised to ${show(r.raised_to)}`));
  return html("div", { class: "chart" }, f.root, legend([[stroke("norm certifying"), "certifies the next trial"], [stroke("norm whole"), "whole domain"], [stroke("norm"), "other sub-domains"], [cross(11, 7, 5, "violation"), `refuted by the data (${raised.length})`]]));
}
