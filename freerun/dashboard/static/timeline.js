// Draws the timeline on a canvas: one row for each process with the slots of engines, then buffer, gate and what happened.
import { colourOf } from "./chart.js";
import { visible } from "./format.js";
import { SvgPen } from "./svg.js";

const ACTIVITY_COLOURS = {
  training: "--c-blue", proximal: "--c-sky", reference: "#8a9fd8", rating: "#7a68b3", updating: "#00507d",
  publishing: "--c-orange", saving: "--c-yellow", decoding: "--c-green", recomputing: "--c-orange",
  evaluating: "--c-pink", loading: "--c-red", grading: "--c-sky", other: "--c-grey", starting: "--c-grey",
};
const STACK = ["decoding", "grading", "recomputing", "evaluating", "loading", "other", "starting", "waiting"];
const AGES = ["--s0", "--s1", "--s2", "--s3", "--s4", "--s5"];
const VERSION_CYCLE = ["--c-blue", "--c-orange", "--c-green", "--c-pink", "--c-sky", "--c-red"];
export const LABELS = 86;
const MAX_LANES = 20;
const MAX_LANE_SECONDS = 30;

// A style is asked for each colour once in a drawing, not for each of 100,000 spans.
const tones = new Map();
function toneNamed(name) {
  if (!tones.has(name)) tones.set(name, name.startsWith("#") ? name : colourOf(name));
  return tones.get(name);
}
const toneOf = (activity) => toneNamed(ACTIVITY_COLOURS[activity] || "--c-grey");

function hatchOf(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.fillStyle = colourOf("--c-hatch");
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = colourOf("--c-wait");
  pen.lineWidth = 1.6;
  for (const shift of [-6, 0, 6]) {
    pen.beginPath();
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}

// What is drawn in a lane: a completion while it has a slot; of an engine that does not tell, the group from its start.
function usesOf(group) {
  const [, , started, sampled, , left, , , , slots] = group;
  if (slots.length) return slots.map(([began, ended], sample) => ({ group, sample, began, ended, until: ended }));
  return started === null ? [] : [{ group, sample: null, began: started, ended: sampled ?? left, until: left }];
}

// In as few lanes as they need: each takes the first that is free when it begins. An engine moves its completions
// together when one ends, so a lane is a slot in use, not a place in the cache.
function lanesOf(groups, from, to) {
  const ends = [];
  const uses = groups.flatMap(usesOf).filter((use) => use.until >= from && use.began <= to);
  return uses.sort((a, b) => a.began - b.began).map((use) => {
    let lane = ends.findIndex((free) => free <= use.began);
    if (lane === -1) lane = ends.length;
    ends[lane] = use.until;
    return { ...use, lane };
  });
}

// The rows of a window with their heights: the same for drawing and for pointing.
export function rowsOf(data, from, to) {
  const names = Object.keys(data.tracks);
  const engines = names.filter((name) => name.startsWith("rollout"));
  const others = names.filter((name) => name !== "trainer" && !engines.includes(name));
  const rows = [{ kind: "versions", name: "versions", height: 18 }];
  if (names.includes("trainer")) rows.push({ kind: "phases", name: "trainer", height: 26 });
  for (const name of engines) {
    rows.push({ kind: "stack", name, height: engines.length > 4 ? 26 : 44 });
    if (to - from > MAX_LANE_SECONDS) continue;
    const lanes = lanesOf(data.groups.filter((group) => group[1] === name), from, to);
    const number = lanes.reduce((most, { lane }) => Math.max(most, lane + 1), 0);
    if (number && number <= 400) {
      const height = number > 3 * MAX_LANES ? 3 : number > MAX_LANES ? 6 : 11;
      const word = lanes.some(({ sample }) => sample !== null) ? "slots" : "groups";
      rows.push({ kind: "lanes", name: word, worker: name, lanes, laneHeight: height, height: Math.min(number, 100) * height });
    }
  }
  for (const name of others.slice(0, 8)) rows.push({ kind: "stack", name, height: 13 });
  if (data.queues.length) rows.push({ kind: "buffer", name: "buffer", height: 30 }, { kind: "gate", name: "gate", height: 10 });
  if (data.marks.length) rows.push({ kind: "marks", name: "events", height: 16 });
  let top = 6;
  for (const row of rows) {
    row.top = top;
    top += row.height + (row.kind === "versions" ? 2 : 7);
  }
  return { rows, height: top + 20 };
}

export function drawTimeline(canvas, data, view, colouring, maxStaleness) {
  const { rows, height } = rowsOf(data, view.from, view.to);
  const width = canvas.clientWidth || 800;
  const ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  paintTimeline({ pen, hatch: hatchOf(pen), width, height, rows, data, view, colouring, maxStaleness });
}

// The same picture as a file.
export function timelineAsSvg(data, view, colouring, maxStaleness, width) {
  const { rows, height } = rowsOf(data, view.from, view.to);
  const pen = new SvgPen();
  paintTimeline({ pen, hatch: pen.hatch, width, height, rows, data, view, colouring, maxStaleness });
  return pen.asText({ width, height, ground: colourOf("--card"), hatch: colourOf("--c-hatch"), stroke: colourOf("--c-wait") });
}

function paintTimeline({ height, rows, ...given }) {
  tones.clear();
  const { pen, width, view } = given;
  const x = (t) => LABELS + ((width - LABELS - 4) * (t - view.from)) / (view.to - view.from);
  const scene = { ...given, x, bottom: height - 20 };
  drawAxis(scene, height);
  pen.save();
  pen.beginPath();
  pen.rect(LABELS, 0, width - LABELS, height);
  pen.clip();
  for (const row of rows) DRAW[row.kind](scene, row);
  pen.restore();
  pen.fillStyle = toneNamed("--mute");
  for (const row of rows) pen.fillText(clipped(visible(row.name), 13), 2, row.top + Math.min(row.height, 26) / 2);
}

const clipped = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);

function drawAxis({ pen, x, view, width }, height) {
  const span = view.to - view.from;
  const raw = span / Math.max(2, (width - LABELS) / 90);
  const power = 10 ** Math.floor(Math.log10(raw));
  const distance = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= raw);
  pen.strokeStyle = toneNamed("--soft");
  pen.fillStyle = toneNamed("--mute");
  for (let t = Math.ceil(view.from / distance) * distance; t <= view.to; t += distance) {
    pen.beginPath();
    pen.moveTo(Math.round(x(t)) + 0.5, 4);
    pen.lineTo(Math.round(x(t)) + 0.5, height - 18);
    pen.stroke();
    const text = distance < 1 ? `${t.toFixed(Math.ceil(-Math.log10(distance)))} s` : `${Math.round(t)} s`;
    pen.fillText(text, Math.min(x(t) + 2, width - 34), height - 8);
  }
}

function block({ pen, x, hatch }, activity, begin, end, top, height) {
  if (activity === "unknown") return;
  pen.fillStyle = activity === "waiting" ? hatch : toneOf(activity);
  pen.fillRect(x(begin), top, Math.max(0.6, x(end) - x(begin)), height);
}

function drawPhases(scene, row) {
  const { pen, x, data } = scene;
  const track = data.tracks[row.name];
  if (track.is_binned) return drawStack(scene, row);
  for (const [begin, end, parts] of track.stretches) {
    let at = begin;
    for (const [activity, share] of Object.entries(parts)) {
      const until = at + share * (end - begin);
      block(scene, activity, at, until, row.top, row.height);
      at = until;
    }
  }
  pen.fillStyle = "#fff";
  for (const step of data.steps) {
    const room = x(step.end) - x(step.begin);
    if (room > 18) pen.fillText(String(step.version), x(step.begin) + 4, row.top + row.height / 2);
    if (room > 3) pen.fillRect(x(step.end) - 0.5, row.top, 1, row.height);
  }
  return undefined;
}

function drawStack(scene, row) {
  const { data } = scene;
  const order = row.name === "trainer" ? null : STACK;
  for (const [begin, end, parts] of data.tracks[row.name].stretches) {
    let bottom = row.top + row.height;
    const names = order ? order.filter((name) => name in parts) : Object.keys(parts);
    for (const activity of names) {
      const height = row.height * parts[activity];
      block(scene, activity, begin, end, bottom - height, height);
      bottom -= height;
    }
  }
  drawLoads(scene, row);
}

function drawLoads({ pen, x, data }, row) {
  pen.fillStyle = toneNamed("--fg");
  for (const [seconds, worker] of data.loads) {
    if (worker === row.name) pen.fillRect(x(seconds) - 0.5, row.top, 1, row.height);
  }
}

// colour = version, a gap = a load that interrupted it, ● = finished, g = graded
function drawLanes(scene, row) {
  const { pen, x, data, colouring } = scene;
  const own = data.loads.filter((load) => load[1] === row.worker);
  const loads = own.length ? own : data.versions.map(([at, version]) => [at, row.worker, version]);
  const thick = Math.max(1, row.laneHeight - 1.5);
  for (const { group, sample, lane, began, ended, until } of row.lanes) {
    const top = row.top + lane * row.laneHeight;
    if (top > row.top + row.height) continue;
    const graded = group[4] ?? until;
    const inside = loads.filter((load) => load[0] > began && load[0] < ended);
    const before = loads.filter((load) => load[0] <= began);
    const versions = [before.length ? before[before.length - 1][2] : null, ...inside.map((load) => load[2])];
    const cuts = [began, ...inside.map((load) => load[0]), ended];
    versions.forEach((version, i) => {
      pen.fillStyle = colourOfVersion(version, versions, colouring, group);
      pen.fillRect(x(cuts[i]), top, Math.max(0.6, x(cuts[i + 1]) - x(cuts[i]) - (i < versions.length - 1 ? 1 : 0)), thick);
    });
    if (sample !== null) drawEnd(pen, x(ended), top, thick);
    else if (until > ended) {
      pen.fillStyle = toneNamed("--c-grey");
      pen.fillRect(x(ended), top + thick / 2 - 0.5, x(graded) - x(ended), 1);
      pen.fillRect(x(graded) - 1, top, 2, thick);
    }
  }
  if (row.laneHeight > 8) drawGrades(scene, row, thick);
}

// Above what has taken the slot meanwhile.
function drawGrades({ pen, x }, row, thick) {
  pen.fillStyle = toneNamed("--fg");
  for (const { group, sample, lane, ended } of row.lanes) {
    const at = group[4] === null ? 0 : x(group[4]);
    if (sample !== null && at - x(ended) > 6) pen.fillText("g", at, row.top + lane * row.laneHeight + thick / 2);
  }
}

function drawEnd(pen, x, top, thick) {
  pen.fillStyle = toneNamed("--fg");
  pen.beginPath();
  pen.arc(x, top + thick / 2, Math.min(3, Math.max(1, thick / 2.5)), 0, 7);
  pen.fill();
}

function colourOfVersion(version, versions, colouring, group) {
  if (colouring === "activity") return group[6] === "buffered" ? toneNamed("--c-green") : toneNamed("--c-red");
  if (version === null) return toneNamed("--c-grey");
  if (colouring === "age") return toneNamed(AGES[Math.min(5, versions[versions.length - 1] - version)]);
  return toneNamed(VERSION_CYCLE[version % VERSION_CYCLE.length]);
}

function drawVersions({ pen, x, data, bottom }, row) {
  pen.strokeStyle = toneNamed("--line");
  pen.fillStyle = toneNamed("--mute");
  let free = -Infinity;
  for (const [seconds, version] of data.versions) {
    const at = Math.round(x(seconds)) + 0.5;
    pen.beginPath();
    pen.moveTo(at, row.top + row.height - 2);
    pen.lineTo(at, bottom);
    pen.stroke();
    if (at > free) {
      pen.fillText(`v${version}`, at - 2, row.top + row.height / 2);
      free = at + 34;
    }
  }
}

function drawBuffer({ pen, x, data, view }, row) {
  const most = Math.max(1, data.batch_groups || 0, ...data.queues.map((queue) => queue[2]));
  const y = (value) => row.top + row.height - (row.height * value) / most;
  pen.fillStyle = toneNamed("--c-sky");
  data.queues.forEach((queue, i) => {
    const end = data.queues[i + 1]?.[0] ?? view.to;
    pen.fillRect(x(queue[0]), y(queue[2]), Math.max(0.6, x(end) - x(queue[0])), row.top + row.height - y(queue[2]));
  });
  if (data.batch_groups) {
    pen.fillStyle = toneNamed("--c-red");
    pen.fillRect(LABELS, y(data.batch_groups), x(view.to) - LABELS, 1);
  }
}

function drawGate(scene, row) {
  const { pen, x, data, view, hatch } = scene;
  data.queues.forEach((queue, i) => {
    const end = data.queues[i + 1]?.[0] ?? view.to;
    pen.fillStyle = queue[3] >= (data.group_size || 1) ? toneNamed("--c-green") : hatch;
    pen.fillRect(x(queue[0]), row.top, Math.max(0.6, x(end) - x(queue[0])), row.height);
  });
}

const MARK_SIGNS = { death: ["✝", "--alarm"], checkpoint: ["⚑", "--info"], evaluation: ["E", "--c-pink"], skipped: ["e", "--mute"], cores: ["·", "--mute"] };

function drawMarkRow({ pen, x, data }, row) {
  for (const [seconds, kind] of data.marks) {
    const [sign, colour] = MARK_SIGNS[kind] || ["·", "--mute"];
    pen.fillStyle = toneNamed(colour);
    pen.fillText(sign, x(seconds) - 3, row.top + row.height / 2);
  }
}

const DRAW = { versions: drawVersions, phases: drawPhases, stack: drawStack, lanes: drawLanes, buffer: drawBuffer, gate: drawGate, marks: drawMarkRow };
