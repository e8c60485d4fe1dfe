// The place Learning: every metric in five rows with one cursor, over steps, seconds or tokens; the objective in words.
import { html } from "./view.js";
import { AFTER_STEPS, useFeed, changeAddress } from "./data.js";
import { number, percent, visible, plural } from "./format.js";
import { Card, Buttons, Empty, Trouble } from "./shapes.js";
import { Chart } from "./chart.js";

const ROWS = [
  ["Reward", "what is paid for, and whether held-out prompts follow", ["held_out", "reward", "accuracy", /^reward\//, "common_reward_share"]],
  ["Length", "growth, collapse, answers that were cut off", ["completion_length", "cut_off_share", "empty_share", "num_calls", "num_sequences", "num_tokens"]],
  ["Staleness", "how old the tokens are, and what that costs", ["staleness_mean", "staleness_max", "effective_sample_size", "behaviour_weight_max", "behaviour_weight_mean", "clip_fraction", "engine_trainer_kl", /ratio|weight|clip|kl$/]],
  ["Variety", "whether there is anything left to explore and to learn from", ["entropy", "distinct_text_share", "equal_group_share", "all_right_share", "all_wrong_share"]],
  ["Updates", "what the optimizer did", ["grad_norm", "lr", "skipped_updates", "loss", /loss|norm|lr|updates|variance/]],
];
const WORDS = { held_out: "held-out accuracy", completion_length: "completion length", cut_off_share: "cut off", empty_share: "empty", staleness_mean: "staleness, mean", staleness_max: "staleness, greatest",
  effective_sample_size: "effective sample size", behaviour_weight_max: "largest behaviour weight", behaviour_weight_mean: "mean behaviour weight", clip_fraction: "clipped", engine_trainer_kl: "KL engine–trainer",
  distinct_text_share: "different texts in a group", equal_group_share: "groups with equal rewards", all_right_share: "groups all right", all_wrong_share: "groups all wrong", grad_norm: "gradient norm", lr: "learning rate",
  skipped_updates: "skipped updates", num_tokens: "tokens in a step", common_reward_share: "share of the most common reward", step_seconds: "seconds of a step", wait_seconds: "seconds waited before a step" };
const SHARES = new Set(["held_out", "accuracy", "cut_off_share", "empty_share", "clip_fraction", "distinct_text_share", "equal_group_share", "all_right_share", "all_wrong_share", "common_reward_share"]);

export function LearningPlace({ params }) {
  const { data, error } = useFeed("steps", {}, { kinds: AFTER_STEPS });
  const { data: settings } = useFeed("settings", {}, { live: false });
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Empty}>reading the run …</${Empty}>`;
  if (!data.num_steps && !data.evals.length) return html`<${Card} id="none" title="Learning"><${Empty}>No step has finished yet: curves begin with the first.</${Empty}></${Card}>`;
  const axis = ["step", "seconds", "tokens"].includes(params.x) ? params.x : "step";
  const rows = assignMetrics(Object.keys(data.metrics));
  return html`
    <${Trouble} error=${error} />
    <div class="controls"><${Buttons} name="over" value=${axis} onChange=${(value) => changeAddress("learning", { ...params, x: value })} options=${[["step", "steps"], ["seconds", "seconds"], ["tokens", "tokens"]]} />
      <span class="mute">${plural(data.num_steps, "step")}${data.num_steps > data.x.step.length ? `, ${data.x.step.length} points: mean, and band from least to greatest` : ""} · drag or + − zoom, double-click or Home for all, ← → the cursor · ▲ a finding of health began</span></div>
    ${rows.map(([title, note, names]) => (names.length || title === "Reward" ? html`<${Card} id=${`row-${title.toLowerCase()}`} title=${title} note=${note}>
      <div class="charts">${names.map((name) => (name === "held_out" ? html`<${HeldOutChart} key=${name} data=${data} axis=${axis} />` : html`<${MetricChart} key=${name} name=${name} data=${data} axis=${axis} />`))}</div>
    </${Card}>` : null))}
    ${settings?.objective.length ? html`<${Card} id="objective" title="The objective in words" note="docs/objectives.md has the equations">
      <ul>${settings.objective.map((sentence) => html`<li>${visible(sentence)}</li>`)}</ul></${Card}>` : null}`;
}

function assignMetrics(names) {
  const left = new Set(names);
  const rows = ROWS.map(([title, note, wanted]) => {
    const found = wanted.flatMap((pattern) => {
      if (pattern === "held_out") return ["held_out"];
      const matches = typeof pattern === "string" ? (left.has(pattern) ? [pattern] : []) : [...left].filter((name) => pattern.test(name));
      matches.forEach((name) => left.delete(name));
      return matches;
    });
    return [title, note, found];
  });
  return left.size ? [...rows, ["Speed and others", "time, throughput, and every other metric", [...left]]] : rows;
}

function MetricChart({ name, data, axis }) {
  const curve = data.metrics[name];
  const known = curve.mean.filter((value) => value !== null);
  const marks = data.alarms.filter((alarm) => alarm.metric === name).map((alarm) => ({ ...alarm, x: placeOf(data, axis, alarm.step) })).filter((mark) => mark.x !== null);
  const shown = SHARES.has(name) ? percent : number;
  return html`<${Chart} title=${WORDS[name] || name.replaceAll("_", " ")} x=${data.x[axis]} xName=${axis} marks=${marks} isPercent=${SHARES.has(name)} hasPoints=${known.length < 3}
    now=${known.length ? shown(known[known.length - 1]) : "–"} curves=${[{ name: WORDS[name] || name.replaceAll("_", " "), values: curve.mean, low: curve.low, high: curve.high }]} />`;
}

function HeldOutChart({ data, axis }) {
  const rows = data.evals.filter((row) => row.accuracy !== null);
  if (!rows.length) return html`<div class="chart"><h3>held-out accuracy</h3><${Empty}>not evaluated</${Empty}></div>`;
  const x = rows.map((row) => (axis === "step" ? row.version : row[axis]));
  const marks = data.alarms.filter((alarm) => alarm.metric === "held_out").map((alarm) => ({ ...alarm, x: placeOf(data, axis, alarm.step) })).filter((mark) => mark.x !== null);
  return html`<${Chart} title="held-out accuracy" x=${x} xName=${axis} marks=${marks} isPercent=${true} hasPoints=${true} now=${percent(rows[rows.length - 1].accuracy, 1)}
    curves=${[{ name: "held-out accuracy", values: rows.map((row) => row.accuracy) }]}
    intervals=${rows.map((row, i) => ({ x: x[i], low: row.low, high: row.high, colour: "--c-blue" }))} />`;
}

function placeOf(data, axis, step) {
  const i = data.x.step.findIndex((known) => known >= step);
  return i === -1 ? null : data.x[axis][i];
}
