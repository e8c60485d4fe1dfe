// The place Runs: every run of the directory; tick two or more for their curves, settings and evaluations side by side.
import { html, useState } from "./view.js";
import { useFeed, changeAddress, addressOf } from "./data.js";
import { number, percent, visible, shortened, UNKNOWN } from "./format.js";
import { Card, Empty, Trouble } from "./shapes.js";
import { Chart } from "./chart.js";
import { PairedRuns } from "./paired.js";

const RUN_COLOURS = ["--c-blue", "--c-red", "--c-green", "--c-pink", "--c-orange", "--c-sky"];
const MAX_TICKED = 12;
const COLUMNS = [["name", "run"], ["state", "state"], ["step", "step"], ["accuracy", "held-out"], ["reward", "reward"], ["updated", "written"]];

export function RunsPlace({ params }) {
  const { data, error } = useFeed("runs");
  const ticked = (params.compare || "").split(",").filter(Boolean);
  const tick = (name) => changeAddress("runs", { compare: (ticked.includes(name) ? ticked.filter((known) => known !== name) : [...ticked, name].slice(-MAX_TICKED)).join(",") });
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Empty}>reading the directory …</${Empty}>`;
  return html`<${Trouble} error=${error} /><${RunTable} data=${data} ticked=${ticked} tick=${tick} />
    ${ticked.length > 1 ? html`<${Comparison} names=${ticked} /><${PairedRuns} names=${ticked} params=${params} />` : html`<${Empty}>Tick two or more runs to compare them.</${Empty}>`}`;
}

function RunTable({ data, ticked, tick }) {
  const [order, setOrder] = useState({ by: "updated", isDown: true });
  const sorted = [...data.runs].sort((a, b) => {
    const [x, y] = [a[order.by], b[order.by]];
    const compared = x === y ? 0 : x === null ? -1 : y === null ? 1 : x < y ? -1 : 1;
    return order.isDown ? -compared : compared;
  });
  return html`<${Card} id="runs" title="Runs" note=${visible(data.directory)}>
    <div class="scroll" tabindex="0" role="region" aria-label="runs"><table><thead><tr><th scope="col"><span class="hidden">compare</span></th>${COLUMNS.map(([key, word]) => html`
      <th scope="col" class=${key === "name" || key === "state" ? "left" : ""} aria-sort=${order.by === key ? (order.isDown ? "descending" : "ascending") : "none"}>
        <button class="plain" onClick=${() => setOrder({ by: key, isDown: order.by === key ? !order.isDown : true })}>${word}${order.by === key ? (order.isDown ? " ↓" : " ↑") : ""}</button></th>`)}</tr></thead>
    <tbody>${sorted.map((run) => html`<tr class=${ticked.includes(run.name) ? "chosen" : ""}>
      <td class="left"><input type="checkbox" aria-label=${`compare ${visible(run.name)}`} checked=${ticked.includes(run.name)} onChange=${() => tick(run.name)} /></td>
      <td class="left"><a href=${addressOf("run", { run: run.name })}>${visible(run.name)}</a>${run.is_this ? html` <span class="mute">shown</span>` : null}</td>
      <td class="left"><span class=${`state ${run.state}`}>${run.state}</span> <span class="mute">${shortened(run.reason.split("\n")[0], 80)}</span></td>
      <td><a href=${addressOf("samples", { run: run.name })}>${run.step} of ${run.num_steps}</a></td><td>${run.accuracy === null ? UNKNOWN : html`<a href=${addressOf("samples", { run: run.name, where: "held_out" })}>${percent(run.accuracy, 1)}</a>`}</td><td>${number(run.reward)}</td><td>${run.updated ? new Date(1000 * run.updated).toISOString().slice(0, 16).replace("T", " ") : UNKNOWN}</td></tr>`)}</tbody></table></div>
  </${Card}>`;
}

function Comparison({ names }) {
  const { data, error } = useFeed("compare", { runs: names.join(",") });
  if (!data) return html`<${Trouble} error=${error} />`;
  const metrics = [...new Set(data.runs.flatMap((run) => Object.keys(run.metrics)))];
  const families = data.families.map((places) => places.map((place) => data.runs[place]));
  const key = html`<p class="key">${families.map((runs, i) => html`<span><i class=${`k${i % RUN_COLOURS.length}`}></i>${visible(nameOfFamily(runs))}</span>`)}</p>`;
  const note = families.some((runs) => runs.length > 1) ? "over steps; of seeds the mean, and a band from least to greatest" : "over steps";
  return html`<${Trouble} error=${error} />
    <${Card} id="curves" title="Curves over each other" note=${note}>${key}
      <div class="charts"><${Accuracies} families=${families} />${metrics.map((metric) => html`<${Overlaid} key=${metric} metric=${metric} families=${families} />`)}</div></${Card}>
    <${Card} id="differences" title="What differs" note="settings and provenance that are not the same in all">
      ${data.differences.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="differences"><table><thead><tr><th scope="col">setting</th>${data.runs.map((run) => html`<th scope="col">${visible(run.name)}</th>`)}</tr></thead>
        <tbody>${data.differences.map((row) => html`<tr><th scope="row">${visible(row.key)}</th>${row.values.map((value) => html`<td>${value === null ? UNKNOWN : visible(value) || "empty"}</td>`)}</tr>`)}</tbody></table></div>` : html`<${Empty}>nothing: only chance tells them apart</${Empty}>`}</${Card}>
    <${Card} id="held-out" title="Held-out" note="the last evaluation, with its 95 % interval">
      <div class="scroll" tabindex="0" role="region" aria-label="held-out"><table><thead><tr><th scope="col">run</th><th scope="col">first</th><th scope="col">last</th><th scope="col">interval</th><th scope="col">prompts</th></tr></thead>
      <tbody>${data.runs.map((run) => {
        const [first, last] = [run.evals[0], run.evals[run.evals.length - 1]];
        return html`<tr><th scope="row">${visible(run.name)}</th><td>${percent(first?.accuracy, 1)}</td><td>${last ? html`<a href=${addressOf("samples", { run: run.name, where: "held_out", version: last.version })}>${percent(last.accuracy, 1)}</a>` : UNKNOWN}</td><td>${last ? `${percent(last.low, 1)} to ${percent(last.high, 1)}` : UNKNOWN}</td><td>${last ? `${last.num_prompts} × ${last.num_samples}` : UNKNOWN}</td></tr>`;
      })}</tbody></table></div></${Card}>`;
}

// Runs that differ in nothing but their seed are one curve.
const nameOfFamily = (runs) => (runs.length > 1 ? `${runs[0].name} and ${runs.length - 1} more seed${runs.length > 2 ? "s" : ""}` : runs[0].name);

// Curves of several families over the union of their steps; a step that not all seeds have is the mean of those that do.
function aligned(families, pick) {
  const x = [...new Set(families.flat().flatMap((run) => pick(run).map(([at]) => at)))].sort((a, b) => a - b);
  const curves = families.map((runs, i) => {
    const known = runs.map((run) => new Map(pick(run)));
    const columns = x.map((at) => known.map((values) => values.get(at) ?? null).filter((value) => value !== null));
    const of = (choose) => columns.map((values) => (values.length ? choose(values) : null));
    const mean = of((values) => values.reduce((sum, value) => sum + value, 0) / values.length);
    const band = runs.length > 1 ? { low: of((values) => Math.min(...values)), high: of((values) => Math.max(...values)) } : {};
    return { name: nameOfFamily(runs), values: mean, colour: RUN_COLOURS[i % RUN_COLOURS.length], ...band };
  });
  return { x, curves };
}

function Overlaid({ metric, families }) {
  const { x, curves } = aligned(families, (run) => (run.metrics[metric]?.mean || []).map((value, i) => [run.x.step[i], value]));
  return html`<${Chart} title=${metric.replaceAll("_", " ")} x=${x} xName="step" curves=${curves} />`;
}

function Accuracies({ families }) {
  const { x, curves } = aligned(families, (run) => run.evals.map((row) => [row.version, row.accuracy]));
  const intervals = families.flatMap((runs, i) => (runs.length > 1 ? [] : runs[0].evals.map((row) => ({ x: row.version, low: row.low, high: row.high, colour: RUN_COLOURS[i % RUN_COLOURS.length] }))));
  return html`<${Chart} title="held-out accuracy" x=${x} xName="step" curves=${curves} isPercent=${true} hasPoints=${true} intervals=${intervals} />`;
}
