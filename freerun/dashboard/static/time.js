// The place Time: who did what when. Wheel and + − zoom, drag and arrows move, Enter opens the step in the middle.
import { html, useEffect, useRef, useState } from "./view.js";
import { useFeed, changeAddress, addressOf, isReport, get, saveFile } from "./data.js";
import { clock, seconds, whole, percent, visible, number, UNKNOWN, plural } from "./format.js";
import { Card, Buttons, Swatch, TableBehind, Empty, Trouble, wholePercents, wordOf, inOrder, ACTIVITIES } from "./shapes.js";
import { useScheme, useWidth } from "./chart.js";
import { drawTimeline, timelineAsSvg, rowsOf, LABELS } from "./timeline.js";
import { conclude } from "./run.js";

const MIN_SPAN = 0.02;
const SETTLE_MILLISECONDS = 160;

export function TimePlace({ params }) {
  const asked = { from: params.from, to: params.to };
  const known = Object.fromEntries(Object.entries(asked).filter(([, value]) => value !== undefined));
  const { data, error } = useFeed("time", isReport ? {} : known);
  const [moved, setMoved] = useState(null);
  const [pointed, setPointed] = useState(null);
  const [colouring, setColouring] = useState("version");
  const settle = useRef(0);
  useEffect(() => setMoved(null), [params.from, params.to]);
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Empty}>reading the run …</${Empty}>`;

  const fallback = isReport && params.from !== undefined ? { from: Number(params.from), to: Number(params.to) } : { from: data.from, to: data.to };
  const view = moved || fallback;
  const show = (next) => {
    const span = Math.min(Math.max(MIN_SPAN, next.to - next.from), Math.max(MIN_SPAN, data.last - data.first));
    const from = Math.min(Math.max(data.first, next.from), Math.max(data.first, data.last - span));
    setMoved({ from, to: from + span });
    clearTimeout(settle.current);
    settle.current = setTimeout(() => changeAddress("time", { from: from.toFixed(2), to: (from + span).toFixed(2) }, { isKept: false }), SETTLE_MILLISECONDS);
  };
  const last = (span) => (span === null ? changeAddress("time", {}) : show({ from: data.last - span, to: data.last }));
  const shares = moved || isReport ? sharesIn(data.tracks, view) : data.shares;
  return html`
    <${Trouble} error=${error} />
    <${Card} id="timeline" title="Who did what when" note="wheel or + − zoom · drag or ← → move · Enter opens the step in the middle">
      <div class="controls">
        <div class="buttons" role="group" aria-label="window">
          <button aria-pressed=${String(params.from === undefined && !moved)} onClick=${() => last(null)}>${data.is_live ? "live, all" : "all"}</button>
          ${[10, 60, 600].filter((span) => span < data.last).map((span) => html`<button onClick=${() => last(span)}>last ${seconds(span)}</button>`)}
        </div>
        <${Buttons} name="slots by" value=${colouring} onChange=${setColouring} options=${[["version", "version"], ["age", "age"], ["activity", "outcome"]]} />
        <span class="mute">${clock(view.from)} to ${clock(view.to)}</span>
        <${Files} data=${data} view=${view} colouring=${colouring} />
      </div>
      <${Canvas} data=${data} view=${view} colouring=${colouring} show=${show} onPoint=${setPointed} label=${sentenceOfWindow(data, view, shares)} />
      <p class="pointed" role="status">${pointed || html`<${Legend} shares=${shares} />`}</p>
      <p class="conclusion">${sentenceOfWindow(data, view, shares)} ${data.num_groups > data.groups.length ? `Of ${plural(data.num_groups, "group")} the newest ${whole(data.groups.length)} are drawn; zoom in to see others.` : ""}</p>
      <div class="controls"><${TableBehind} isNamed name="what each process did in this window" columns=${["process", "activity", "share", "seconds"]}
        rows=${() => inOrder(shares).flatMap(([worker, of]) => wholePercents(of).map((part) => [visible(worker), wordOf(part.name), percent(part.exact / 100, 1), ((part.exact / 100) * (view.to - view.from)).toFixed(2)]))} />
      <${TableBehind} isNamed name="steps in this window" columns=${["step", "begins", "ends", "waited before"]}
        rows=${() => data.steps.map((step) => [html`<a href=${addressOf("samples", { step: step.version })}>${step.version}</a>`, clock(step.begin), clock(step.end), clock(step.wait)])} />
      <${TableBehind} isNamed name="groups" columns=${["group", "process", "started", "sampled", "graded", "left", "outcome", "interrupts", "reward"]}
        rows=${() => newest(data.groups).map(([ordinal, worker, started, sampled, graded, left, outcome, interrupts, reward]) => [ordinal, visible(worker), ...[started, sampled, graded, left].map(clock), visible(outcome), whole(interrupts), number(reward)])} />
      <${TableBehind} isNamed name="loads" columns=${["at", "process", "version", "took", "interrupts"]}
        rows=${() => newest(data.loads).map(([at, worker, version, took, interrupts]) => [clock(at), visible(worker), whole(version), seconds(took), whole(interrupts)])} />
      <${TableBehind} isNamed name="buffer and gate" columns=${["at", "ready", "running", "may start", "oldest version"]}
        rows=${() => newest(data.queues).map(([at, running, ready, capacity, oldest]) => [clock(at), whole(ready), whole(running), whole(Math.max(0, capacity)), whole(oldest)])} /></div>
    </${Card}>
    ${data.marks.length ? html`<${Card} id="marks" title="What happened" note="deaths, checkpoints, evaluations, moved cores">
      <div class="scroll" tabindex="0" role="region" aria-label="what happened"><table><thead><tr><th scope="col">at</th><th scope="col" class="left">what</th></tr></thead>
      <tbody>${data.marks.slice(-300).reverse().map(([at, , what]) => html`<tr><th scope="row">${clock(at)}</th><td class="wrap">${visible(what)}</td></tr>`)}</tbody></table></div></${Card}>` : null}`;
}

const MAX_ROWS = 500;
const newest = (rows) => rows.slice(-MAX_ROWS).reverse();

const SVG_WIDTH = 1200;

// The window as files: a picture, and a trace for Perfetto; a report has no trace inside, only the command for it.
function Files({ data, view, colouring }) {
  const [error, setError] = useState("");
  const name = `${view.from.toFixed(0)}-${view.to.toFixed(0)}`;
  const range = { from: view.from.toFixed(2), to: view.to.toFixed(2) };
  const saveTrace = async () => {
    try {
      saveFile(`trace-${name}.json`, "application/json", JSON.stringify(await get("trace", range)));
      setError("");
    } catch (trouble) {
      setError(trouble.message);
    }
  };
  return html`<span class="buttons" role="group" aria-label="files">
    ${isReport ? null : html`<button onClick=${saveTrace}>Perfetto ↓</button>`}
    <button onClick=${() => saveFile(`timeline-${name}.svg`, "image/svg+xml", timelineAsSvg(data, view, colouring, data.max_staleness, SVG_WIDTH))}>SVG ↓</button>
    ${isReport ? html`<code>${visible(data.trace_command)} --from ${range.from} --to ${range.to}</code>` : null}</span><${Trouble} error=${error} />`;
}

// Of what is drawn, and nothing else.
function Legend({ shares }) {
  const drawn = Object.keys(ACTIVITIES).filter((activity) => Object.values(shares).some((of) => of[activity] > 0));
  return html`<span class="legend">${drawn.map((activity) => html`<span><${Swatch} activity=${activity} />${wordOf(activity)}</span>`)}</span>`;
}

// As the server's, for windows that it was not asked about: of a report, or while dragging.
function sharesIn(tracks, view) {
  const length = view.to - view.from;
  return Object.fromEntries(Object.entries(tracks).map(([worker, track]) => {
    const shares = {};
    let sum = 0;
    for (const [begin, end, parts] of track.stretches) {
      const overlap = Math.min(view.to, end) - Math.max(view.from, begin);
      if (overlap <= 0) continue;
      for (const [activity, share] of Object.entries(parts)) {
        shares[activity] = (shares[activity] || 0) + (share * overlap) / length;
        sum += (share * overlap) / length;
      }
    }
    if (sum < 0.999) shares.unknown = (shares.unknown || 0) + 1 - sum;
    return [worker, shares];
  }));
}

function sentenceOfWindow(data, view, shares) {
  const told = inOrder(shares).slice(0, 6).map(([worker, of]) => {
    const idle = (of.waiting || 0) + (of.unknown || 0) + (of.starting || 0);
    return `${visible(worker)} ${percent(1 - idle)} busy${of.waiting ? `, ${percent(of.waiting)} waiting` : ""}`;
  });
  const steps = data.steps.filter((step) => step.end >= view.from && step.end <= view.to).length;
  const interrupts = data.loads.filter(([at]) => at >= view.from && at <= view.to).reduce((sum, load) => sum + load[4], 0);
  const loads = data.loads.length ? `, ${plural(interrupts, "sequence")} interrupted by loads` : "";
  return `In this window (${clock(view.from)} to ${clock(view.to)}): ${plural(steps, "step")}${loads}; ${told.join("; ") || UNKNOWN}. ${conclude(shares)}`;
}

function Canvas({ data, view, colouring, show, onPoint, label }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const dragged = useRef(null);
  const width = useWidth(box);
  const isDark = useScheme();
  useEffect(() => {
    if (width) drawTimeline(canvas.current, data, view, colouring, data.max_staleness);
  }, [data, view.from, view.to, colouring, width, isDark]);
  const timeAt = (event) => {
    const room = canvas.current.getBoundingClientRect();
    return view.from + ((event.clientX - room.left - LABELS) / (room.width - LABELS - 4)) * (view.to - view.from);
  };
  const zoom = (factor, at) => show({ from: at - (at - view.from) * factor, to: at + (view.to - at) * factor });
  const keep = useRef(null);
  keep.current = (event) => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
  };
  useEffect(() => {
    const wheel = (event) => keep.current(event);
    canvas.current.addEventListener("wheel", wheel, { passive: false });
    return () => canvas.current?.removeEventListener("wheel", wheel);
  }, []);
  const press = (event) => {
    const span = view.to - view.from;
    const middle = (view.from + view.to) / 2;
    const moves = { ArrowLeft: -0.2, ArrowRight: 0.2, PageUp: -0.9, PageDown: 0.9 };
    if (event.key in moves) show({ from: view.from + moves[event.key] * span, to: view.to + moves[event.key] * span });
    else if (event.key === "+" || event.key === "=" || event.key === "ArrowUp") zoom(0.7, middle);
    else if (event.key === "-" || event.key === "ArrowDown") zoom(1.4, middle);
    else if (event.key === "Home") changeAddress("time", {});
    else if (event.key === "Enter") openStep(data, middle);
    else return;
    event.preventDefault();
  };
  const move = (event) => {
    if (dragged.current) {
      const room = canvas.current.clientWidth - LABELS;
      const shift = ((dragged.current.x - event.clientX) / room) * (dragged.current.to - dragged.current.from);
      show({ from: dragged.current.from + shift, to: dragged.current.to + shift });
    } else onPoint(describePoint(data, view, timeAt(event), event.clientY - canvas.current.getBoundingClientRect().top));
  };
  return html`<div class="timeline" ref=${box}><canvas ref=${canvas} role="img" tabindex="0" aria-label=${label} onKeyDown=${press}
    onPointerDown=${(event) => { dragged.current = { x: event.clientX, ...view }; canvas.current.setPointerCapture(event.pointerId); }}
    onPointerMove=${move} onPointerLeave=${() => onPoint(null)} onPointerUp=${() => { dragged.current = null; }}
    onDblClick=${(event) => openStep(data, timeAt(event))}></canvas></div>`;
}

function openStep(data, at) {
  const step = data.steps.find((known) => known.end >= at) || data.steps[data.steps.length - 1];
  if (step) location.hash = addressOf("samples", { step: step.version });
}

function describePoint(data, view, at, y) {
  if (at < view.from || at > view.to) return null;
  const row = rowsOf(data, view.from, view.to).rows.find((known) => y >= known.top && y < known.top + known.height + 4);
  const words = [clock(at)];
  const step = data.steps.find((known) => known.begin <= at && known.end >= at);
  if (row?.kind === "stack" || row?.kind === "phases") {
    const stretch = data.tracks[row.name].stretches.find(([begin, end]) => begin <= at && at <= end);
    words.push(visible(row.name));
    if (stretch) words.push(Object.entries(stretch[2]).map(([name, share]) => `${wordOf(name)} ${percent(share)}`).join(", "));
    if (row.name === "trainer" && step) words.push(`step ${step.version}, ${seconds(step.end - step.begin)}`);
    const load = data.loads.filter((known) => known[1] === row.name && Math.abs(known[0] - at) < (view.to - view.from) / 200)[0];
    if (load) words.push(`loaded version ${load[2]} in ${seconds(load[3])}, ${plural(load[4], "interrupt")}`);
    const report = data.engines.filter((known) => known[1] === row.name && known[0] <= at).pop();
    if (report) words.push(`${report[2]} of ${report[4]} slots, ${report[3]} waiting`);
  } else if (row?.kind === "lanes") {
    const lane = Math.floor((y - row.top) / row.laneHeight);
    const use = row.lanes.find((known) => known.lane === lane && known.began <= at && known.until >= at);
    const found = use?.group;
    if (use && use.sample !== null) words.push(`a completion in its slot for ${seconds(use.ended - use.began)}`);
    if (found) words.push(`group ${found[0]}`, `started ${clock(found[2])}, sampled ${clock(found[3])}, graded ${clock(found[4])}`, visible(found[6]), plural(found[7], "interrupt"), `reward ${number(found[8])}`);
  } else if (row?.kind === "buffer" || row?.kind === "gate") {
    const queue = data.queues.filter((known) => known[0] <= at).pop();
    if (queue) words.push(`${queue[2]} ready, ${queue[1]} running, ${Math.max(0, queue[3])} samples may start`);
  } else if (row?.kind === "marks") {
    const mark = data.marks.find((known) => Math.abs(known[0] - at) < (view.to - view.from) / 100);
    if (mark) words.push(visible(mark[2]));
  }
  return words.join(" · ");
}
