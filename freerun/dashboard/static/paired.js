// Two of the ticked runs, prompt by prompt: who is right where, and both runs' samples of one prompt side by side.
import { html } from "./view.js";
import { useFeed, changeAddress, addressOf } from "./data.js";
import { UNKNOWN, visible, visibleLines, shortened, plural } from "./format.js";
import { Card, Choice, Empty, Trouble, Verdict } from "./shapes.js";
import { ChangedPrompts, wordsOfChanges } from "./other_samples.js";

export function PairedRuns({ names, params }) {
  const first = names.includes(params.first) ? params.first : names[0];
  const other = names.includes(params.other) && params.other !== first ? params.other : names.find((name) => name !== first);
  const asked = { runs: `${first},${other}`, ...(params.prompt ? { prompt: params.prompt } : {}) };
  const { data, error } = useFeed("paired", asked);
  const change = (changes) => changeAddress("runs", { ...params, first, other, ...changes });
  const options = names.map((name) => [name, visible(name)]);
  if (!data) return html`<${Trouble} error=${error} />`;
  return html`<${Trouble} error=${error} />
    <${Card} id="paired" title="Prompt by prompt" note=${data.changes ? wordsOfChanges(data.changes) : "of the last evaluations"}>
      ${names.length > 2 ? html`<div class="controls"><${Choice} name="from" value=${first} options=${options} onChange=${(name) => change({ first: name, prompt: "" })} />
        <${Choice} name="to" value=${other} options=${options} onChange=${(name) => change({ other: name, prompt: "" })} /></div>` : null}
      ${data.changes ? html`<${Pairs} data=${data} change=${change} addressOfPrompt=${(prompt) => addressOf("runs", { ...params, first, other, prompt })} />`
        : html`<${Empty}>${data.runs.filter((run) => run.version === null).map((run) => visible(run.name)).join(" and ") || "one of them"} has no evaluation to compare</${Empty}>`}</${Card}>`;
}

function Pairs({ data, change, addressOfPrompt }) {
  const [before, after] = data.runs.map((run) => `${visible(run.name)}, version ${run.version}`);
  if (!data.prompts.length) return html`<${Empty}>they share no prompt</${Empty}>`;
  return html`<${ChangedPrompts} rows=${data.changes.rows} before=${before} after=${after} addressOfPrompt=${addressOfPrompt} />
    <div class="controls conclusion"><${Choice} name="samples of" value=${data.prompt} options=${data.prompts.map((key) => [key, shortened(key, 60)])} onChange=${(prompt) => change({ prompt })} />
      <span class="mute">of ${plural(data.prompts.length, "prompt")} that both were asked</span></div>
    <div class="sides">${data.samples.map((samples, i) => html`<${Side} run=${data.runs[i]} samples=${samples} />`)}</div>`;
}

function Side({ run, samples }) {
  return html`<div class="group"><div class="group-head"><h3><a href=${addressOf("samples", { run: run.name, where: "held_out", version: run.version })}>${visible(run.name)}</a></h3>
      <span class="mute">version ${run.version}</span><span class="mute">answer <span class="text">${samples.length ? shortened(samples[0].answer, 120) : UNKNOWN}</span></span></div>
    ${samples.length ? html`<div class="prompt text" tabindex="0" role="group" aria-label=${`prompt of ${visible(run.name)}`}>${visibleLines(samples[0].prompt)}</div>` : html`<${Empty}>no completion of it was kept</${Empty}>`}
    ${samples.map((row) => html`<div class="paired-sample"><${Verdict} isCorrect=${row.is_correct} reward=${row.reward} /><div class="text">${visibleLines(row.completion)}${row.is_cut_off ? html` <span class="mute">cut off</span>` : null}</div></div>`)}</div>`;
}
