// Numbers, times and hostile text, as people read them. What is not known is a dash, never 0.
export const UNKNOWN = "–";

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(Math.max(0, digits - 2)).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

export const whole = (value) =>
  value === null || value === undefined ? UNKNOWN : Math.round(value).toLocaleString("en");

export const signed = (value, digits = 3) =>
  value === null || value === undefined ? UNKNOWN : (value > 0 ? "+" : "") + number(value, digits).replace("-", "−");

export function percent(share, digits = 0) {
  if (share === null || share === undefined || !Number.isFinite(share)) return UNKNOWN;
  return `${(100 * share).toFixed(digits)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (value < 10) return `${value.toFixed(value < 1 ? 2 : 1)} s`;
  if (value < 90) return `${Math.round(value)} s`;
  const minutes = Math.floor(value / 60);
  const rest = String(Math.floor(value % 60)).padStart(2, "0");
  if (minutes < 60) return `${minutes}:${rest}`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
}

export const clock = (value) => (value === null || value === undefined ? UNKNOWN : `${value.toFixed(1)} s`);

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return value >= 1e9 ? `${(value / 1e9).toFixed(1)} GB` : `${Math.round(value / 1e6)} MB`;
}

// Line breaks, tabs, controls, direction marks, invisible characters and lone surrogates become visible.
const SHOWN = { "\n": "⏎", "\t": "⇥", "\r": "␍", "\u007f": "␡" };
const INVISIBLE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/g;

function shownCharacter(found) {
  if (found in SHOWN) return SHOWN[found];
  const code = found.codePointAt(0);
  if (code < 32) return String.fromCodePoint(0x2400 + code);
  return `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

const PILE = /(\p{M}{4})\p{M}+/gu;

export const visible = (text) => String(text ?? "").replace(INVISIBLE, shownCharacter).replace(PILE, "$1…");

// The same, but a line break also breaks the line.
export const visibleLines = (text) => visible(text).replaceAll("⏎", "⏎\n");

export function shortened(text, length = 90) {
  const shown = visible(text);
  return shown.length > length ? shown.slice(0, length - 1) + "…" : shown;
}

// One line for a text whose lines are a traceback: its first and its last.
export function brief(text, length = 400) {
  const lines = String(text ?? "").split("\n").map((line) => line.trim()).filter(Boolean);
  return shortened([...new Set([lines[0], lines[lines.length - 1]])].join(" … "), length);
}

export const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
