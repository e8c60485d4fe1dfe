// The place Samples: what the model wrote and what it got for it; a step's batch, held-out, lost, or a search.
import { html, useEffect, useRef, useState } from "./view.js";
import { AFTER_STEPS, useFeed, changeAddress, addressOf, isReport } from "./data.js";
import { UNKNOWN, number, signed, whole, percent, clock, visible, visibleLines, shortened, plural } from "./format.js";
import { Card, Choice, Buttons, Empty, Trouble, Verdict, TableBehind } from "./shapes.js";
import { Tokens, Scale, COLOURINGS } from "./tokens.js";
import { colourOf, useScheme, useWidth } from "./chart.js";
import { HeldOutSamples, Lost, Found } from "./other_samples.js";

const GROUPS_ON_A_PAGE = 6;
const ORDERS = [["batch", "as trained"], ["reward", "lowest reward"], ["best", "highest reward"], ["weight", "largest weight"], ["age", "oldest"], ["length", "longest"], ["spread", "most divided"]];
const FILTERS = [["", "all"], ["wrong", "wrong"], ["right", "right"], ["cut-off", "cut off"], ["stale", "older than 2"], ["mixed", "mixed groups"], ["equal", "equal groups"], ["empty", "empty"]];
const VIEWS = [["", "trained on"], ["held_out", "held-out"], ["lost", "lost"]];
const LOST_VIEWS = ["lost", "failed", "dropped", "filtered", "requeued"];

export function SamplesPlace({ params }) {
  const view = LOST_VIEWS.includes(params.where) ? "lost" : params.where === "held_out" ? "held_out" : params.find ? "search" : "";
  const change = (changes) => changeAddress("samples", { ...params, ...changes });
  return html`
    <div class="controls"><${Buttons} name="show" value=${view} onChange=${(value) => changeAddress("samples", value ? { where: value } : {})} options=${VIEWS} />
      ${isReport ? null : html`<${SearchField} value=${params.find || ""} onFind=${(find) => changeAddress("samples", find ? { find } : {})} />`}</div>
    ${view === "lost" ? html`<${Lost} only=${params.where} />` : view === "held_out" ? html`<${HeldOutSamples} params=${params} change=${change} />`
      : view === "search" ? html`<${Found} text=${params.find} />` : html`<${Batch} params=${params} change=${change} />`}`;
}

function SearchField({ value, onFind }) {
  return html`<form class="choice" role="search" onSubmit=${(event) => { event.preventDefault(); onFind(event.target.elements.find.value); }}>
    <label class="choice"><span>in all steps</span><input type="text" name="find" value=${value} placeholder="text, then Enter" /></label></form>`;
}

// ---- a batch ---------------------------------------------------------------------------------------------------

const keepers = {
  wrong: (row) => !row.is_correct, right: (row) => row.is_correct, "cut-off": (row) => row.is_cut_off,
  stale: (row) => row.age > 2, empty: (row) => row.text.trim() === "",
};
const rewardsOf = (rows) => [...new Set(rows.map((row) => row.sample))].map((sample) => rows.find((row) => row.sample === sample).reward);
const isEqual = (rows) => new Set(rewardsOf(rows)).size === 1;
const deviation = (values) => {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
};
const greatest = (rows, name) => Math.max(...rows.map((row) => row[name] ?? -Infinity));
const ranks = {
  reward: (rows) => Math.min(...rows.map((row) => row.reward ?? Infinity)), best: (rows) => -greatest(rows, "reward"), weight: (rows) => -greatest(rows, "weight"),
  age: (rows) => -greatest(rows, "age"), length: (rows) => -greatest(rows, "num_tokens"), spread: (rows) => -deviation(rewardsOf(rows)),
};

function chooseGroups(data, params) {
  const groups = new Map();
  for (const row of data.rows) groups.set(row.ordinal, [...(groups.get(row.ordinal) || []), row]);
  const text = (params.text || "").toLowerCase();
  const chosen = [];
  for (const [ordinal, rows] of groups) {
    if ((params.where === "equal" && !isEqual(rows)) || (params.where === "mixed" && isEqual(rows))) continue;
    const about = data.groups[ordinal];
    const isAsked = text && about.prompt.toLowerCase().includes(text);
    const kept = rows.filter((row) => (keepers[params.where] || (() => true))(row) && (!text || isAsked || row.text.toLowerCase().includes(text)));
    if (kept.length) chosen.push({ ordinal, about, rows, kept: new Set(kept.map((row) => `${row.sample}.${row.part}`)), numKept: kept.length });
  }
  const rank = ranks[params.order];
  return rank ? chosen.map((group) => [rank(group.rows), group]).sort(([a], [b]) => a - b).map(([, group]) => group) : chosen;
}

function Batch({ params, change }) {
  const { data, error } = useFeed("batch", params.step ? { step: params.step } : {}, { live: !params.step, kinds: AFTER_STEPS });
  const [by, setBy] = useState("version");
  const [page, setPage] = useState(0);
  const [pointed, setPointed] = useState("");
  useEffect(() => setPage(0), [params.step, params.order, params.where, params.text, params.group]);
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Empty}>reading the batch …</${Empty}>`;
  if (data.step === null || data.last === null) return html`<${Card} id="none" title="Samples"><${Empty}>Nothing has been trained on yet: the first batch appears with the first step.</${Empty}></${Card}>`;
  const all = chooseGroups(data, params);
  const groups = params.group ? all.filter((group) => group.ordinal === Number(params.group)) : all;
  const shown = groups.slice(page * GROUPS_ON_A_PAGE, (page + 1) * GROUPS_ON_A_PAGE);
  const numKept = groups.reduce((sum, group) => sum + group.numKept, 0);
  const toStep = (step) => change({ step: Math.max(data.first ?? 1, Math.min(data.last, step)), group: "" });
  return html`
    <div class="controls">
      <label class="choice"><span>step</span><input type="number" min=${data.first} max=${data.last} value=${data.step} onChange=${(event) => toStep(Number(event.target.value))} /></label>
      <button onClick=${() => toStep(data.step - 1)} disabled=${data.step <= data.first}>◂ previous</button><button onClick=${() => toStep(data.step + 1)} disabled=${data.step >= data.last}>next ▸</button>
      ${params.step ? html`<button onClick=${() => change({ step: "", group: "" })}>newest</button>` : null}
      <${Choice} name="order" value=${params.order || "batch"} options=${ORDERS} onChange=${(order) => change({ order })} />
      <${Choice} name="filter" value=${keepers[params.where] || ["equal", "mixed"].includes(params.where) ? params.where : ""} options=${FILTERS} onChange=${(where) => change({ where })} />
      <label class="choice"><span>text</span><input type="text" value=${params.text || ""} onChange=${(event) => change({ text: event.target.value })} /></label>
      <span class="mute">${whole(numKept)} of ${plural(data.rows.length, "sample")}</span>
      ${params.group ? html`<button onClick=${() => change({ group: "" })}>all groups</button>` : null}
    </div>
    <${Trouble} error=${error} />
    <${Overview} data=${data} all=${all} change=${change} />
    <${Card} id="groups" title=${params.group ? `Group ${visible(params.group)}` : plural(groups.length, "group")} note=${`trained on in step ${data.step}`}>
      <div class="controls"><${Buttons} name="colour tokens by" value=${by} onChange=${setBy} options=${Object.entries(COLOURINGS).map(([key, { word }]) => [key, word])} /><${Scale} by=${by} /></div>
      <p class="pointed" role="status">${pointed || html`<span class="mute">point at a token, or go through them with ← →</span>`}</p>
      ${shown.length ? null : html`<${Empty}>no sample of this step is like that</${Empty}>`}
      ${shown.map((group) => html`<${GroupView} key=${group.ordinal} group=${group} step=${data.step} by=${by} onPoint=${setPointed} />`)}
      ${groups.length > GROUPS_ON_A_PAGE ? html`<div class="pager"><button disabled=${page === 0} onClick=${() => setPage(page - 1)}>◂ previous groups</button>
        <span class="mute">groups ${page * GROUPS_ON_A_PAGE + 1} to ${Math.min(groups.length, (page + 1) * GROUPS_ON_A_PAGE)} of ${groups.length}</span>
        <button disabled=${(page + 1) * GROUPS_ON_A_PAGE >= groups.length} onClick=${() => setPage(page + 1)}>next groups ▸</button></div>` : null}
    </${Card}>`;
}

function GroupView({ group, step, by, onPoint }) {
  const { data, error } = useFeed("group", { step, ordinal: group.ordinal }, { live: false });
  const rewards = rewardsOf(group.rows).filter((reward) => reward !== null);
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const numRight = new Set(group.rows.filter((row) => row.is_correct).map((row) => row.sample)).size;
  const samples = (data?.samples || group.rows).filter((row) => group.kept.has(`${row.sample}.${row.part}`));
  return html`<article class="group">
    <div class="group-head"><h3>${shortened(group.about.key, 80)}</h3><span class="mute">prompt ${group.ordinal}</span>
      <span>${numRight} of ${rewards.length} right, reward ${signed(mean)} ± ${number(deviation(rewards), 2)}</span>
      ${isEqual(group.rows) ? html`<span class="level info">equal rewards${group.rows.every((row) => row.advantage === 0) ? ": teaches nothing" : ""}</span>` : null}
      <span class="mute">answer <span class="text">${shortened(group.about.answer, 120)}</span></span></div>
    <div class="prompt text" tabindex="0" role="group" aria-label="prompt">${visibleLines(group.about.prompt)}</div>
    ${error && !isReport ? html`<${Trouble} error=${error} />` : null}
    <div class="sample head" aria-hidden="true"><span>reward</span><span class="number">advantage</span><span class="number">weight</span><span class="number">versions</span><span class="number">tokens</span><span>completion</span></div>
    ${samples.map((row) => html`<${SampleView} key=${`${row.sample}.${row.part}`} row=${row} step=${step} by=${by} onPoint=${onPoint} />`)}
    ${data?.life ? html`<${Life} life=${data.life} step=${step} />` : null}
    ${data?.replay_command ? html`<p class="note">sample this group again: <code>${visible(data.replay_command)}</code></p>` : null}
  </article>`;
}

function SampleView({ row, step, by, onPoint }) {
  const label = `${row.is_correct ? "right" : "wrong"} sample ${row.sample}, reward ${number(row.reward)}`;
  const parts = Object.entries(row.parts);
  const remarks = [row.is_cut_off ? "cut off" : "", row.num_calls > 1 ? `${row.num_calls} calls${row.turns?.length ? `, earned ${row.turns.map((turn) => number(turn)).join(", ")}` : ""}` : "", row.part ? `part ${row.part + 1}` : "",
    row.num_clipped ? `${row.num_clipped} clipped` : "", parts.map(([name, value]) => `${visible(name)} ${signed(value)}`).join(", "),
    by === "difference" && row.departs ? `leaves sample ${row.departs.sample} at token ${row.departs.at + 1}` : ""].filter(Boolean);
  return html`<div class="sample"><${Verdict} isCorrect=${row.is_correct} reward=${row.reward} />
    <span class="number">${signed(row.advantage)}</span><span class="number">${number(row.weight)}</span>
    <span class="number">${row.oldest === row.newest ? `v${row.oldest ?? UNKNOWN}` : `v${row.oldest}–${row.newest}`}</span><span class="number">${row.num_tokens}</span>
    <div>${row.ids ? html`<${Tokens} sample=${row} by=${by} step=${step} label=${label} onPoint=${onPoint} />` : html`<div class="tokens" tabindex="0" role="group" aria-label=${label}>${visibleLines(row.text)}${row.is_long ? "…" : ""}</div>`}
      ${remarks.length ? html`<span class="note">${remarks.join(" · ")}</span>` : null}</div></div>`;
}

function Life({ life, step }) {
  const known = [["started", life.started], ["sampled", life.sampled], ["graded", life.graded], ["buffered", life.buffered], [`trained in step ${step}`, life.trained]].filter(([, at]) => at !== null && at !== undefined);
  const from = Math.max(0, (life.started ?? life.buffered ?? life.trained) - 1);
  return html`<p class="note">life: ${known.map(([word, at]) => `${word} ${clock(at)}`).join(" → ")}${life.worker ? ` · ${visible(life.worker)}` : ""}${life.num_interrupts ? ` · ${plural(life.num_interrupts, "interrupt")}` : ""} · <a href=${addressOf("time", { from: from.toFixed(1), to: (life.trained + 1).toFixed(1) })}>in time</a></p>`;
}

// ---- three small pictures of a batch ---------------------------------------------------------------------------

function Overview({ data, all, change }) {
  const rows = data.rows;
  const ages = countBy(rows, (row) => row.age);
  const weights = rows.filter((row) => row.weight !== null);
  const numEqual = all.filter((group) => isEqual(group.rows)).length;
  const dots = rows.map((row) => ({ x: row.num_tokens, y: row.reward, isRight: row.is_correct, row }));
  const binned = WEIGHT_BINS.map(([word, least, most]) => [word, weights.filter((row) => row.weight >= least && row.weight < most).length]);
  const groupOf = (row) => html`<a href=${addressOf("samples", { step: data.step, group: row.ordinal })}>${row.ordinal}</a>`;
  const share = (counts) => () => counts.map(([key, count]) => [String(key), whole(count), percent(count / rows.length)]);
  return html`<${Card} id="overview" title="The batch" note=${`${numEqual} of ${plural(all.length, "group")} have equal rewards`}>
    <div class="overview">
      <div class="chart"><h3>reward by length</h3><${Dots} dots=${dots} onOpen=${(row) => change({ group: row.ordinal })} />
        <${TableBehind} name="rewards and lengths" columns=${["prompt", "sample", "reward", "advantage", "weight", "age", "tokens"]}
          rows=${() => rows.map((row) => [groupOf(row), row.sample, number(row.reward), signed(row.advantage), number(row.weight), row.age, row.num_tokens])} /></div>
      <div class="chart"><h3>age in versions</h3><${Bars} counts=${ages} label="samples by the age of their oldest token" />
        <${TableBehind} name="ages" columns=${["age", "samples", "share"]} rows=${share(ages)} /></div>
      ${weights.length ? html`<div class="chart"><h3>largest weight of a token</h3><${Bars} counts=${binned} label="samples by the largest behaviour weight of a token" />
        <${TableBehind} name="largest weights" columns=${["weight up to", "samples", "share"]} rows=${share(binned)} /></div>`
        : html`<div><h3>largest weight of a token</h3><${Empty}>${UNKNOWN} the trainer did not say</${Empty}></div>`}
    </div>
  </${Card}>`;
}

const WEIGHT_BINS = [["below 1.05", 0, 1.05], ["1.25", 1.05, 1.25], ["2", 1.25, 2], ["5", 2, 5], ["more", 5, Infinity]];

function countBy(rows, key) {
  const counts = new Map();
  for (const row of rows) counts.set(key(row), (counts.get(key(row)) || 0) + 1);
  return [...counts].sort(([a], [b]) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b))));
}

function useCanvas(draw, changes) {
  const box = useRef(null);
  const width = useWidth(box);
  const isDark = useScheme();
  useEffect(() => {
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    box.current.width = width * ratio;
    box.current.height = 96 * ratio;
    const pen = box.current.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    draw(pen, width, 96);
  }, [width, isDark, JSON.stringify(changes)]);
  return box;
}

function Bars({ counts, label }) {
  const total = counts.reduce((sum, [, count]) => sum + count, 0);
  const box = useCanvas((pen, width, height) => {
    const top = Math.max(...counts.map(([, count]) => count), 1);
    const room = Math.min(90, width / Math.max(1, counts.length));
    counts.forEach(([key, count], i) => {
      const tall = ((height - 34) * count) / top;
      pen.fillStyle = colourOf("--c-blue");
      pen.fillRect(i * room + 2, height - 18 - tall, room - 8, tall);
      pen.fillStyle = colourOf("--mute");
      pen.fillText(String(key), i * room + 3, height - 5);
      pen.fillText(percent(count / total), i * room + 3, height - 22 - tall);
    });
  }, counts);
  return html`<canvas ref=${box} role="img" aria-label=${`${label}: ${counts.map(([key, count]) => `${key}: ${count}`).join(", ")}`}></canvas>`;
}

const NEAR_PIXELS = 12;

// A dot is pointed at by mouse or, from the shortest sample to the longest, by arrow keys; a click or Enter opens its group.
function Dots({ dots, onOpen }) {
  const [pointed, setPointed] = useState(null);
  const known = dots.filter((dot) => dot.y !== null).sort((a, b) => a.x - b.x || a.y - b.y);
  const span = (name) => [Math.min(...known.map((dot) => dot[name])), Math.max(...known.map((dot) => dot[name]))];
  const [[left, right], [low, high]] = known.length ? [span("x"), span("y")] : [[0, 1], [0, 1]];
  const place = (dot, width, height) => [10 + ((width - 24) * (dot.x - left)) / (right - left || 1), height - 22 - ((height - 34) * (dot.y - low)) / (high - low || 1)];
  const shown = pointed !== null && pointed < known.length ? known[pointed] : null;
  const box = useCanvas((pen, width, height) => {
    pen.globalAlpha = 0.55;
    for (const dot of known) {
      pen.fillStyle = colourOf(dot.isRight ? "--right" : "--wrong");
      pen.beginPath();
      pen.arc(...place(dot, width, height), 3, 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
    if (shown) {
      pen.strokeStyle = colourOf("--accent");
      pen.lineWidth = 2;
      pen.beginPath();
      pen.arc(...place(shown, width, height), 6, 0, 7);
      pen.stroke();
    }
    pen.fillStyle = colourOf("--mute");
    pen.fillText(`${left} to ${right} tokens, reward ${number(low)} to ${number(high)}`, 4, height - 5);
  }, [known.map((dot) => [dot.x, dot.y]), pointed]);
  const nearest = (event) => {
    const room = box.current.getBoundingClientRect();
    const distances = known.map((dot) => Math.hypot(...place(dot, room.width, 96).map((at, i) => at - [event.clientX - room.left, event.clientY - room.top][i])));
    const least = Math.min(...distances);
    return least < NEAR_PIXELS ? distances.indexOf(least) : null;
  };
  const open = (event) => {
    const found = nearest(event);
    if (found !== null) onOpen(known[found].row);
  };
  const press = (event) => {
    const to = { ArrowRight: (pointed ?? -1) + 1, ArrowLeft: (pointed ?? 1) - 1, Home: 0, End: known.length - 1 }[event.key];
    if (to !== undefined) setPointed(Math.max(0, Math.min(known.length - 1, to)));
    else if (event.key === "Enter" && shown) onOpen(shown.row);
    else return;
    event.preventDefault();
  };
  const told = shown ? `prompt ${shown.row.ordinal}, sample ${shown.row.sample}: ${plural(shown.x, "token")}, reward ${number(shown.y)}` : "";
  return html`<canvas ref=${box} role="img" tabindex="0" onClick=${open} onKeyDown=${press} onPointerMove=${(event) => setPointed(nearest(event))} onBlur=${() => setPointed(null)}
    aria-label=${`${plural(known.length, "sample")}: between ${left} and ${right} tokens, rewards between ${number(low)} and ${number(high)}; arrow keys go through them, Enter opens a group`}></canvas>
    <p class="note" role="status">${told || "click a dot, or go through them with ← → and Enter"}</p>`;
}
