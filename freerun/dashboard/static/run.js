// The place Run: how it is, who waits for whom, whether it learns, what happens now.
import { html } from "./view.js";
import { AFTER_STEPS, useFeed, addressOf } from "./data.js";
import { UNKNOWN, number, whole, percent, seconds, visible, shortened, brief, plural, bytes } from "./format.js";
import { Card, SharesBar, Sparkline, TableBehind, Empty, Trouble, Verdict, wholePercents, wordOf, inOrder } from "./shapes.js";

export function RunPlace() {
  const { data: run, error } = useFeed("run");
  const { data: curves } = useFeed("steps", {}, { kinds: AFTER_STEPS });
  if (!run) return error ? html`<${Trouble} error=${error} />` : html`<${Empty}>reading the run …</${Empty}>`;
  return html`
    <${Trouble} error=${error} />
    <${Health} run=${run} />
    <div class="seven"><${WhoWaits} shares=${run.shares} limit=${run.health.find((finding) => finding.rule === "limit")} /></div>
    <div class="five"><${IsLearning} run=${run} curves=${curves} /></div>
    <div class="seven"><${Now} run=${run} /></div>
    <div class="five"><${Newest} samples=${run.newest} /></div>`;
}

function Health({ run }) {
  const { held, health } = run;
  return html`<${Card} id="health" title="Health" note=${health.length ? "" : run.step ? "nothing to complain about" : "too early to tell"}>
    ${run.reason ? html`<p class="trouble">${brief(run.reason)}</p>` : null}
    <ul class="findings">${health.map((finding) => html`<li>
      <span class=${`level ${finding.level}`}>${finding.level}</span>
      <span>${visible(finding.text)}${finding.advice ? html`<span class="advice">${visible(finding.advice)}</span>` : null}</span>
      ${finding.evidence && finding.evidence !== "#/" ? html`<a href=${evidenceOf(finding.evidence)}>see<span class="hidden"> ${visible(finding.rule)}</span></a>` : html`<span></span>`}
    </li>`)}</ul>
    <div class="promises">
      <span><span class=${`level ${held.is_bound_held ? "held" : "alarm"}`}>${held.is_bound_held ? "held" : "broken"}</span> staleness bound ${held.max_staleness}: ${
        held.worst_staleness === null ? "nothing trained yet" : html`greatest <a href=${addressOf("samples", { order: "age" })}>${held.worst_staleness}</a> of ${plural(held.num_trained, "sample")}`}</span>
      <span><span class="level held">weights</span> version ${held.loaded_version} confirmed by all engines, the trainer is at ${held.version}</span>
      ${held.num_steps_seen ? html`<span><span class=${`level ${held.num_steps_without_update ? "info" : "held"}`}>updates</span> ${whole(held.num_steps_seen - held.num_steps_without_update)} of ${plural(held.num_steps_seen, "step")} changed the weights${
        held.num_steps_without_update && held.why_no_update ? `; in the others ${visible(held.why_no_update)}` : ""}</span>` : null}
    </div>
  </${Card}>`;
}

// Evidence is an address of ours: take its place and parameters, and nothing else.
function evidenceOf(evidence) {
  const [place, query] = evidence.replace(/^#\//, "").split("?");
  return addressOf(/^[a-z]*$/.test(place) && place ? place : "run", Object.fromEntries(new URLSearchParams(query || "")));
}

function WhoWaits({ shares, limit }) {
  const workers = inOrder(shares.workers);
  const length = shares.end - shares.begin;
  return html`<${Card} id="waits" title="Who waits for whom" note=${workers.length ? `the last ${seconds(length)}; each adds up to 100 %` : ""}>
    ${workers.length ? null : html`<${Empty}>no process has reported yet</${Empty}>`}
    ${workers.slice(0, 16).map(([worker, of]) => html`<${SharesBar} worker=${worker} shares=${of} />`)}
    ${workers.length > 16 ? html`<p class="mute">and ${workers.length - 16} more processes; the table has all</p>` : null}
    ${workers.length ? html`<p class="conclusion">${limit ? `${visible(limit.text)}.` : conclude(Object.fromEntries(workers))} <a href=${addressOf("time", { from: shares.begin.toFixed(1), to: shares.end.toFixed(1) })}>timeline</a></p>
      <${TableBehind} name="who waits for whom" columns=${["process", "activity", "share"]}
        rows=${() => workers.flatMap(([worker, of]) => wholePercents(of).map((part) => [visible(worker), wordOf(part.name), percent(part.exact / 100, 1)]))} />` : null}
  </${Card}>`;
}

export function conclude(workers) {
  const trainer = workers.trainer;
  const engines = Object.entries(workers).filter(([name]) => name.startsWith("rollout"));
  if (!trainer || !engines.length) return "too little is known to name the limit.";
  const idle = engines.reduce((sum, [, of]) => sum + (of.waiting || 0), 0) / engines.length;
  const waits = trainer.waiting || 0;
  if (waits > 0.25 && waits > idle) return `Generation is the limit: the trainer waits ${percent(waits)} of the time for rollouts.`;
  if (idle > 0.25) return `The trainer is the limit: engines have nothing to do ${percent(idle)} of the time. More engines would not help.`;
  return "Neither trainer nor engines wait much for the other.";
}

const course = (values) => (values || []).filter((value) => value !== null && value !== undefined);

function IsLearning({ run, curves }) {
  if (!curves || (!curves.num_steps && !curves.evals.length)) {
    const last = run.sft[run.sft.length - 1];
    return html`<${Card} id="learning" title="Is it learning?">
      ${last ? html`<div class="courses"><span>SFT loss</span><${Sparkline} values=${run.sft.map((step) => step.loss)} label=${`SFT loss: ${run.sft.length} values, the last ${number(last.loss)}`} />
        <span class="words">${number(last.loss)} after ${last.step} of ${last.num_steps} supervised steps</span></div>
        <${TableBehind} name="the loss in SFT" columns=${["step", "loss", "held-out loss"]} rows=${() => run.sft.map((step) => [step.step, number(step.loss), number(step.held_out_loss)])} />` : html`<${Empty}>no step has finished yet</${Empty}>`}
    </${Card}>`;
  }
  const mean = (name) => curves.metrics[name]?.mean;
  const parts = Object.keys(curves.metrics).filter((name) => name.startsWith("reward/"));
  return html`<${Card} id="learning" title="Is it learning?" note=${plural(curves.num_steps, "step")}>
    <div class="courses">
      <${HeldOut} evals=${curves.evals} />
      <${Course} word="reward" values=${mean("reward")} more=${parts.length ? `parts: ${parts.map((name) => `${visible(name.slice(7))} ${number(course(mean(name)).pop())}`).join(", ")}` : ""} />
      <${Course} word="length" values=${mean("completion_length")} more=${mean("cut_off_share") ? `cut off ${percent(course(mean("cut_off_share")).pop())}` : ""} />
      <${Course} word="entropy" values=${mean("entropy")} />
      <${Course} word="equal groups" values=${mean("equal_group_share")} isPercent=${true} more="" />
      <${Course} word="ESS" values=${mean("effective_sample_size")} />
    </div>
    <p class="conclusion"><a href=${addressOf("learning")}>all curves</a></p>
    <${TableBehind} name="what is learned" columns=${["step", "held-out", ...COURSES.map(([, word]) => word)]} rows=${() => rowsOfCourses(curves)} />
  </${Card}>`;
}

const COURSES = [["reward", "reward"], ["completion_length", "length"], ["entropy", "entropy"], ["equal_group_share", "equal groups"], ["effective_sample_size", "ESS"]];

// One row for each step that has a batch to see, or was evaluated.
function rowsOfCourses({ x, metrics, evals }) {
  const accuracies = new Map(evals.map((row) => [row.version, row.accuracy]));
  const places = new Map(x.step.map((step, i) => [step, i]));
  const steps = [...new Set([...x.step, ...accuracies.keys()])].sort((a, b) => a - b);
  return steps.map((step) => {
    const i = places.get(step);
    const shown = i === undefined ? String(step) : html`<a href=${addressOf("samples", { step })}>${step}</a>`;
    return [shown, percent(accuracies.get(step), 1), ...COURSES.map(([name]) => number(i === undefined ? null : metrics[name]?.mean[i]))];
  });
}

function HeldOut({ evals }) {
  if (!evals.length) return html`<span>held-out</span><span></span><span class="words mute">not evaluated</span>`;
  const [first, last] = [evals[0], evals[evals.length - 1]];
  const interval = last.low !== null && last.high !== null ? ` [${percent(last.low, 1)}, ${percent(last.high, 1)}]` : "";
  const words = evals.length > 1 ? `${percent(first.accuracy, 1)} → ${percent(last.accuracy, 1)}` : percent(last.accuracy, 1);
  return html`<span>held-out</span><${Sparkline} values=${evals.map((row) => row.accuracy)} label=${`held-out accuracy: ${words}`} />
    <span class="words"><b><a href=${addressOf("samples", { where: "held_out" })}>${words}</a></b><span class="mute">${interval} at version ${last.version}</span></span>`;
}

function Course({ word, values, more, isPercent }) {
  const known = course(values);
  if (!known.length) return null;
  const shown = isPercent ? percent : number;
  const words = known.length > 1 ? `${shown(known[0])} → ${shown(known[known.length - 1])}` : shown(known[0]);
  return html`<span>${word}</span><${Sparkline} values=${values} label=${`${word}: ${words}`} /><span class="words"><b>${words}</b> <span class="mute">${more}</span></span>`;
}

function Now({ run }) {
  const { queues, totals, batch } = run;
  const counts = queues?.counts;
  const isClosed = counts && batch.group_size && counts.gate_capacity < batch.group_size;
  const groups = Object.entries(totals.groups).filter(([name]) => name !== "buffered");
  return html`<${Card} id="now" title="Now" note=${run.state === "running" ? "" : "when it ended"}>
    <div class="columns">
      <dl class="facts">
        <dt>gate</dt><dd>${counts ? (isClosed ? "closed" : `${plural(Math.max(0, batch.group_size ? Math.floor(counts.gate_capacity / batch.group_size) : counts.gate_capacity), batch.group_size ? "group" : "sample")} may start`) : UNKNOWN}</dd>
        <dt>buffer</dt><dd>${counts ? `${whole(counts.num_ready)}${counts.num_ready < batch.groups ? ` of ${batch.groups}` : ""} ready, ${whole(counts.num_running)} running` : UNKNOWN}</dd>
        <dt>oldest</dt><dd>${counts && counts.oldest_version !== null ? `version ${counts.oldest_version}` : UNKNOWN}</dd>
        <dt>slots</dt><dd>${whole(totals.num_running)} of ${whole(totals.num_slots)} running, ${whole(totals.num_waiting)} waiting</dd>
        <dt>cache</dt><dd>${whole(totals.cache_tokens_used)} of ${whole(totals.cache_tokens)} tokens</dd>
      </dl>
      <dl class="facts">
        <dt>sampled</dt><dd>${whole(totals.num_tokens)} tokens, ${number(totals.generated_tokens_per_second)} a second</dd>
        <dt>trained</dt><dd><a href=${addressOf("samples")}>${whole(run.held.num_trained)} samples</a>, ${number(totals.trained_tokens_per_second)} tokens a second</dd>
        <dt>interrupts</dt><dd>${whole(totals.num_interrupts)} in ${whole(totals.num_loads)} loads, ${seconds(totals.load_seconds)} paused</dd>
        <dt>recomputed</dt><dd>${whole(totals.num_recomputed_tokens)} tokens</dd>
        <dt>lost groups</dt><dd>${groups.length ? html`<a href=${addressOf("samples", { where: "lost" })}>${groups.map(([name, count]) => `${whole(count)} ${name.replace("_", " ")}`).join(", ")}</a>` : "none"}</dd>
      </dl>
    </div>
    ${run.activities.length ? html`<div class="scroll conclusion" tabindex="0" role="region" aria-label="processes"><table>
      <thead><tr><th scope="col">process</th><th scope="col" class="left">does</th><th scope="col">since</th><th scope="col">memory</th></tr></thead>
      <tbody>${run.activities.map((row) => html`<tr><th scope="row">${visible(row.worker)}</th><td class="wrap">${describeDoing(row)}</td><td>${seconds(Math.max(0, run.seconds - row.since))}</td><td>${bytes(row.memory_bytes)}</td></tr>`)}</tbody>
    </table></div>` : null}
    ${totals.last_failure ? html`<p class="trouble">last failure: ${brief(totals.last_failure)}</p>` : null}
  </${Card}>`;
}

function describeDoing(row) {
  const what = row.what ? (row.state === "waiting" ? ` for ${visible(row.what)}` : `: ${visible(row.what)}`) : "";
  const done = row.num_total !== null ? `, ${row.num_done} of ${row.num_total}` : row.num_done !== null ? ` ${row.num_done}` : "";
  return row.state + what + done;
}

function Newest({ samples }) {
  return html`<${Card} id="newest" title="Newest samples" note=${samples.length ? `trained on in step ${samples[0].step}` : ""}>
    ${samples.length ? null : html`<${Empty}>none has been trained on yet</${Empty}>`}
    <ul class="newest">${samples.map((sample) => html`<li><a href=${addressOf("samples", { step: sample.step, group: sample.ordinal })}>
      <${Verdict} isCorrect=${sample.is_correct} reward=${sample.reward} />
      <span class="text one-line"><span class="mute">${shortened(sample.prompt.slice(-60), 60)}</span> ${shortened(sample.completion, 160)}</span></a></li>`)}</ul>
  </${Card}>`;
}
