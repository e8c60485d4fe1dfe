// Small parts that all places use: cards, bars of shares, sparklines, tables behind a key.
import { html, useState, useEffect } from "./view.js";
import { UNKNOWN, percent, visible } from "./format.js";

export const ACTIVITIES = {
  training: "trains", proximal: "proximal logprobs", reference: "reference logprobs", rating: "rates",
  updating: "updates weights", publishing: "publishes", saving: "saves", decoding: "decodes",
  recomputing: "recomputes caches", evaluating: "evaluates", loading: "loads weights", grading: "grades",
  waiting: "waits", starting: "starts", other: "messages", unknown: "unknown",
};
export const wordOf = (activity) => ACTIVITIES[activity] || visible(activity);
const classOf = (activity) => (activity in ACTIVITIES ? `a-${activity}` : "a-other");

export const Swatch = ({ activity }) => html`<i class=${`swatch ${classOf(activity)}`} aria-hidden="true"></i>`;

export function Card({ title, note, id, wide, children }) {
  return html`<section class=${wide ? "card wide" : "card"} aria-labelledby=${id}>
    <header class="card-head"><h2 id=${id}>${title}</h2>${note ? html`<p class="note">${note}</p>` : null}</header>
    ${children}
  </section>`;
}

// Shares in whole percents that add up to exactly 100: the largest remainders get what is left.
export function wholePercents(shares) {
  const entries = Object.entries(shares).map(([name, share]) => ({ name, exact: 100 * share, shown: Math.floor(100 * share) }));
  let left = Math.round(entries.reduce((sum, entry) => sum + entry.exact, 0)) - entries.reduce((sum, entry) => sum + entry.shown, 0);
  for (const entry of [...entries].sort((a, b) => b.exact - b.shown - (a.exact - a.shown))) {
    if (left-- <= 0) break;
    entry.shown += 1;
  }
  return entries.sort((a, b) => b.exact - a.exact);
}

// The trainer first, then engines, then the rest.
const rankOf = (worker) => (worker === "trainer" ? 0 : worker.startsWith("rollout") ? 1 : 2);
export const inOrder = (workers) => Object.entries(workers).sort(([a], [b]) => rankOf(a) - rankOf(b) || a.localeCompare(b, "en", { numeric: true }));

export function SharesBar({ worker, shares }) {
  const parts = wholePercents(shares);
  const words = parts.filter((part) => part.shown > 0).map((part) => `${wordOf(part.name)} ${part.shown} %`).join(", ");
  return html`<div class="shares">
    <span class="worker">${visible(worker)}</span>
    <span class="bar" role="img" aria-label=${`${visible(worker)}: ${words}`}>
      ${parts.map((part) => html`<i class=${classOf(part.name)} style=${{ flexGrow: part.exact }}></i>`)}
    </span>
    <span class="legend">${parts.filter((part) => part.shown > 0).map((part) => html`
      <span><${Swatch} activity=${part.name} />${wordOf(part.name)} <b>${part.shown}</b></span>`)}</span>
  </div>`;
}

export function Sparkline({ values, label }) {
  const known = values.map((value, i) => [i, value]).filter(([, value]) => value !== null && Number.isFinite(value));
  if (known.length < 2) return html`<span class="spark" role="img" aria-label=${`${label}: too few values for a curve`}></span>`;
  const low = Math.min(...known.map(([, v]) => v));
  const high = Math.max(...known.map(([, v]) => v));
  const x = (i) => (118 * i) / Math.max(1, values.length - 1) + 1;
  const y = (v) => (high === low ? 12 : 22 - (20 * (v - low)) / (high - low));
  const path = known.map(([i, v], n) => `${n ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  const [lastI, lastV] = known[known.length - 1];
  return html`<svg class="spark" viewBox="0 0 122 24" preserveAspectRatio="none" role="img" aria-label=${label}>
    <path d=${path} /><circle cx=${x(lastI)} cy=${y(lastV)} r="2" /></svg>`;
}

// Every chart has its numbers: a button opens them, and the key t opens all.
export function TableBehind({ columns, rows, name, isNamed }) {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    const toggle = () => setOpen((open) => !open);
    addEventListener("freerun-tables", toggle);
    return () => removeEventListener("freerun-tables", toggle);
  }, []);
  return html`<div class="behind">
    <button class="plain" aria-expanded=${String(isOpen)} onClick=${() => setOpen(!isOpen)}>${isOpen ? "hide table" : "table"}<span class=${isNamed ? "" : "hidden"}> of ${name}</span></button>
    ${isOpen ? html`<div class="scroll" tabindex="0" role="region" aria-label=${`table of ${name}`}><table>
      <thead><tr>${columns.map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>
      <tbody>${rows().map((row) => html`<tr>${row.map((cell, i) => (i ? html`<td>${cell}</td>` : html`<th scope="row">${cell}</th>`))}</tr>`)}</tbody>
    </table></div>` : null}
  </div>`;
}

export function Choice({ name, value, options, onChange: choose }) {
  return html`<label class="choice"><span>${name}</span><select value=${value} onChange=${(event) => choose(event.target.value)}>
    ${options.map(([key, word]) => html`<option value=${key} selected=${key === value}>${word}</option>`)}</select></label>`;
}

export function Buttons({ name, value, options, onChange: choose }) {
  return html`<div class="buttons" role="group" aria-label=${name}><span class="mute">${name}</span>
    ${options.map(([key, word]) => html`<button aria-pressed=${String(key === value)} onClick=${() => choose(key)}>${word}</button>`)}</div>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;
export const Trouble = ({ error }) => (error ? html`<p class="trouble" role="status">${visible(error)}</p>` : null);

export const Verdict = ({ isCorrect, reward }) =>
  html`<span class=${isCorrect ? "verdict right" : "verdict wrong"}><span aria-hidden="true">${isCorrect ? "✓" : "✗"}</span><span class="hidden">${isCorrect ? "right" : "wrong"}</span> ${reward === null ? UNKNOWN : (reward > 0 ? "+" : "") + reward.toFixed(1).replace("-", "−")}</span>`;

export const Share = ({ share }) => html`<span class="meter" role="img" aria-label=${percent(share)}><i style=${{ width: `${100 * (share || 0)}%` }}></i></span>`;
