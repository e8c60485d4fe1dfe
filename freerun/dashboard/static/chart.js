// A chart of one or more curves with uPlot: a common cursor, bands, marks where a finding of health began, intervals.
import { html, useEffect, useRef, useState } from "./view.js";
import { number, UNKNOWN, visible } from "./format.js";
import { TableBehind } from "./shapes.js";

const CURVE_COLOURS = ["--c-blue", "--c-red", "--c-green", "--c-pink", "--c-orange", "--c-sky"];
export const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Something that is drawn must be drawn again when the scheme changes.
export function useScheme() {
  const [isDark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const note = () => setDark(query.matches);
    query.addEventListener("change", note);
    return () => query.removeEventListener("change", note);
  }, []);
  return isDark;
}

export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

function drawMarks(plot, marks) {
  const context = plot.ctx;
  context.save();
  context.strokeStyle = colourOf("--warn");
  context.setLineDash([3, 3]);
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.x, "x", true));
    if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
    context.beginPath();
    context.moveTo(x, plot.bbox.top);
    context.lineTo(x, plot.bbox.top + plot.bbox.height);
    context.stroke();
  }
  context.restore();
}

function drawIntervals(plot, intervals) {
  const context = plot.ctx;
  context.save();
  context.lineWidth = devicePixelRatio;
  for (const { x, low, high, colour } of intervals) {
    if (low === null || high === null) continue;
    context.strokeStyle = colourOf(colour);
    const at = Math.round(plot.valToPos(x, "x", true));
    context.beginPath();
    context.moveTo(at, plot.valToPos(low, "y", true));
    context.lineTo(at, plot.valToPos(high, "y", true));
    context.stroke();
  }
  context.restore();
}

// Values on an axis are round, but may be close together.
const tick = (value) => number(value, Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 ? 6 : 3);

function plotOptions({ width, height, curves, marks, intervals, isPercent, onPoint, bands }) {
  const axis = { stroke: colourOf("--mute"), grid: { stroke: colourOf("--soft"), width: 1 }, ticks: { show: false }, font: "11px system-ui", gap: 3 };
  const shown = (value) => (value === null ? "" : isPercent ? `${tick(100 * value)} %` : tick(value));
  return {
    width, height, bands,
    padding: [8, 14, 0, 0],
    cursor: { sync: { key: "freerun" }, y: false, points: { size: 6 }, drag: { x: true, y: false } },
    legend: { show: false },
    scales: { x: { time: false }, y: { range: (plot, low, high) => yRange(low, high, intervals) } },
    axes: [
      { ...axis, size: 22, values: (plot, values) => values.map((value) => (value >= 1e4 ? `${number(value / 1000)}k` : number(value))) },
      { ...axis, size: 46, values: (plot, values) => values.map(shown) },
    ],
    series: [{}, ...curves.map((curve) => ({
      stroke: colourOf(curve.colour), width: curve.isBand ? 0 : 1.5, spanGaps: true,
      points: { show: !curve.isBand && curve.hasPoints, size: 4, fill: colourOf(curve.colour) },
      fill: undefined, paths: curve.isBand ? () => null : undefined,
    }))],
    hooks: {
      draw: [(plot) => drawMarks(plot, marks), (plot) => drawIntervals(plot, intervals)],
      setCursor: [(plot) => onPoint(plot.cursor.idx)],
    },
  };
}

function yRange(low, high, intervals) {
  const ends = intervals.flatMap(({ low: a, high: b }) => [a, b]).filter((value) => value !== null);
  const all = [low, high, ...ends].filter((value) => value !== null && Number.isFinite(value));
  if (!all.length) return [0, 1];
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const pad = (most - least || Math.abs(most) || 1) * 0.08;
  return [least < 0 ? least - pad : Math.max(0, least - pad), most + pad];
}

// The curves as uPlot draws them; of one with a band its ends follow it.
export function plotCurves(box, x, curves, given) {
  const bands = curves.flatMap((curve, i) => (curve.low && !curve.isBand ? [{ series: [i + 3, i + 2], fill: colourOf(curve.colour) + "33" }] : []));
  return new uPlot(plotOptions({ curves, bands, ...given }), [x, ...curves.map((curve) => curve.values)], box);
}

// What a mouse does, by keys: ← → move the cursor, + − zoom around it, Home shows all.
function pressOnPlot(event, plot) {
  const [x] = plot.data;
  const { min, max } = plot.scales.x;
  const last = x.length - 1;
  const at = plot.cursor.idx ?? (event.key === "ArrowLeft" ? last + 1 : -1);
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
  const factor = { "+": 0.7, "=": 0.7, "-": 1.4 }[event.key];
  if (event.key in moves) plot.setCursor({ left: plot.valToPos(x[Math.max(0, Math.min(last, at + moves[event.key]))], "x"), top: 1 });
  else if (factor) {
    const middle = x[Math.max(0, Math.min(last, at))];
    plot.setScale("x", { min: Math.max(x[0], middle - factor * (middle - min)), max: Math.min(x[last], middle + factor * (max - middle)) });
  } else if (event.key === "Home") plot.setScale("x", { min: x[0], max: x[last] });
  else return;
  event.preventDefault();
}

// curves: [{name, values, low?, high?, colour?}] over the common x; intervals: [{x, low, high, colour}].
export function Chart({ title, x, xName, curves, marks = [], intervals = [], height = 132, isPercent = false, hasPoints = false, now }) {
  const box = useRef(null);
  const plot = useRef(null);
  const width = useWidth(box);
  const isDark = useScheme();
  const [pointed, setPointed] = useState(null);
  const coloured = curves.map((curve, i) => ({ colour: CURVE_COLOURS[i % CURVE_COLOURS.length], hasPoints, ...curve }));
  const lines = coloured.flatMap((curve) => [curve, ...(curve.low ? ["low", "high"].map((end) => ({ ...curve, values: curve[end], isBand: true })) : [])]);
  const data = JSON.stringify([x, lines.map((line) => line.values), marks, intervals]);
  useEffect(() => {
    if (!width || !x.length) return undefined;
    const drawn = plotCurves(box.current, x, lines, { width, height, marks, intervals, isPercent, onPoint: setPointed });
    plot.current = drawn;
    return () => drawn.destroy();
  }, [width, isDark, data]);
  const shown = (value) => (isPercent && value !== null && value !== undefined ? `${(100 * value).toFixed(1)} %` : number(value, 4));
  const atPoint = pointed !== null && pointed !== undefined && x[pointed] !== undefined
    ? `${xName} ${number(x[pointed], 5)}: ${coloured.map((curve) => shown(curve.values[pointed])).join(" · ")}` : now;
  return html`<div class="chart">
    <h3>${visible(title)}${marks.length ? html`<span class="fired" title=${marks.map((mark) => visible(mark.text)).join("\n")}>▲ ${namesOf(marks)}</span>` : null}<span class="now">${atPoint}</span></h3>
    <div class="plot" ref=${box} role="img" tabindex="0" onKeyDown=${(event) => plot.current && pressOnPlot(event, plot.current)} aria-label=${sentenceOf(title, x, xName, coloured, shown, marks)}></div>
    <${TableBehind} name=${visible(title)} columns=${[xName, ...coloured.map((curve) => visible(curve.name))]}
      rows=${() => x.map((value, i) => [number(value, 6), ...coloured.map((curve) => shown(curve.values[i]))])} />
  </div>`;
}

const MAX_MARKS = 3;
const namesOf = (marks) => `${marks.slice(0, MAX_MARKS).map((mark) => `step ${mark.step}`).join(", ")}${marks.length > MAX_MARKS ? ` and ${marks.length - MAX_MARKS} more` : ""}`;

function sentenceOf(title, x, xName, curves, shown, marks) {
  const told = curves.map((curve) => {
    const known = curve.values.filter((value) => value !== null && value !== undefined);
    if (!known.length) return `${visible(curve.name)} is not known`;
    const range = `between ${shown(Math.min(...known))} and ${shown(Math.max(...known))}`;
    return `${visible(curve.name)} from ${shown(known[0])} to ${shown(known[known.length - 1])}, ${range}`;
  });
  const alarms = marks.length ? ` A finding of health began at ${namesOf(marks)}: ${marks.map((mark) => visible(mark.text)).slice(0, MAX_MARKS).join("; ")}.` : "";
  return `${visible(title)} over ${xName} ${number(x[0] ?? null)} to ${number(x[x.length - 1] ?? null)}: ${told.join("; ") || UNKNOWN}.${alarms}`;
}
