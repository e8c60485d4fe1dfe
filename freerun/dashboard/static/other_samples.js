// The places of a sample that is not a row of a batch: held-out, lost, found.
import { html } from "./view.js";
import { AFTER_STEPS, useFeed, addressOf, isReport } from "./data.js";
import { UNKNOWN, number, whole, clock, signed, visibleLines, shortened, plural } from "./format.js";
import { Card, Choice, Empty, Trouble, Verdict } from "./shapes.js";

export function HeldOutSamples({ params, change }) {
  const asked = Object.fromEntries(["version", "against"].filter((name) => params[name]).map((name) => [name, params[name]]));
  const { data, error } = useFeed("held_out", asked, { kinds: AFTER_STEPS });
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Empty}>reading …</${Empty}>`;
  if (data.version === null) return html`<${Card} id="none" title="Held-out"><${Empty}>Nothing has been evaluated yet.</${Empty}></${Card}>`;
  const versions = isReport ? [...new Set([data.versions[0], data.versions[data.versions.length - 1]])] : data.versions;
  const options = versions.map((version) => [String(version), String(version)]);
  return html`
    <div class="controls"><${Choice} name="evaluation of version" value=${String(data.version)} options=${options} onChange=${(version) => change({ version })} />
      ${isReport || versions.length < 2 ? null : html`<${Choice} name="against version" value=${String(data.changes?.against ?? data.version)} options=${options} onChange=${(against) => change({ against })} />`}</div>
    <${Trouble} error=${error} />
    ${data.changes ? html`<${Changes} changes=${data.changes} version=${data.version} />` : null}
    <${Card} id="kept" title="Completions that were kept" note=${`version ${data.version}`}>
      ${data.completions.length ? null : html`<${Empty}>none were kept</${Empty}>`}
      ${data.completions.slice(0, 200).map((row) => html`<${PlainSample} row=${row} />`)}</${Card}>
    <${Card} id="prompts" title=${plural(data.prompts.length, "prompt")} note="the worst first"><div class="scroll" tabindex="0" role="region" aria-label="prompts"><table>
      <thead><tr><th scope="col">prompt</th><th scope="col">right</th><th scope="col">reward</th><th scope="col">length</th><th scope="col" class="left">failure</th></tr></thead>
      <tbody>${[...data.prompts].sort((a, b) => a.num_correct / (a.num_samples || 1) - b.num_correct / (b.num_samples || 1)).slice(0, 500).map((row) => html`<tr><th scope="row">${shortened(row.key, 60)}</th>
        <td>${row.num_samples ? `${row.num_correct} of ${row.num_samples}` : UNKNOWN}</td><td>${number(row.mean_reward)}</td><td>${number(row.mean_length)}</td><td class="wrap">${shortened(row.failure, 160)}</td></tr>`)}</tbody></table></div></${Card}>`;
}

// Which prompts became right and which wrong, each in words: the numbers of an accuracy hide both.
function Changes({ changes, version }) {
  return html`<${Card} id="changes" title=${`From version ${changes.against} to ${version}`} note=${wordsOfChanges(changes)}>
    <${ChangedPrompts} rows=${changes.rows} before=${`version ${changes.against}`} after=${`version ${version}`} /></${Card}>`;
}

export function wordsOfChanges(changes) {
  const same = changes.num_compared - changes.num_better - changes.num_worse;
  const [value, low, high] = changes.difference.map((each) => (each === null ? UNKNOWN : signed(100 * each)));
  return `${value} points [${low}, ${high}]: ${plural(changes.num_better, "prompt")} more often right, ${whole(changes.num_worse)} less often, ${whole(same)} as before`;
}

export function ChangedPrompts({ rows, before, after, addressOfPrompt }) {
  if (!rows.length) return html`<${Empty}>no prompt changed</${Empty}>`;
  const nameOf = (key) => (addressOfPrompt ? html`<a href=${addressOfPrompt(key)}>${shortened(key, 60)}</a>` : shortened(key, 60));
  const textOf = (text) => (text === null ? UNKNOWN : shortened(text, 160));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="changed prompts"><table>
    <thead><tr><th scope="col">prompt</th><th scope="col" class="left">became</th><th scope="col">${before}</th><th scope="col">${after}</th><th scope="col" class="left">${before} wrote</th><th scope="col" class="left">${after} wrote</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr><th scope="row">${nameOf(row.key)}</th>
      <td class="left"><span class=${row.change > 0 ? "verdict right" : "verdict wrong"}>${row.change > 0 ? "right" : "wrong"} ${signed(100 * row.change)} points</span></td>
      <td>${row.before[0]} of ${row.before[1]}</td><td>${row.after[0]} of ${row.after[1]}</td><td class="wrap text">${textOf(row.text_before)}</td><td class="wrap text">${textOf(row.text_after)}</td></tr>`)}</tbody></table></div>`;
}

function PlainSample({ row, more }) {
  return html`<div class="group"><div class="group-head">${row.sample === -1 ? null : html`<${Verdict} isCorrect=${row.is_correct} reward=${row.reward} />`}<h3>${shortened(row.key, 80)}</h3>
    <span class="mute">${more}${row.is_cut_off ? " cut off" : ""} ${row.num_tokens ? plural(row.num_tokens, "token") : ""}</span><span class="mute">answer <span class="text">${shortened(row.answer, 120)}</span></span></div>
    <div class="text"><span class="mute">${visibleLines(row.prompt.slice(-600))}</span> ${visibleLines(row.completion ?? row.text)}</div></div>`;
}

// What went wrong stands once above all that it happened to.
export function Lost({ only }) {
  const { data, error } = useFeed("lost");
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Empty}>reading …</${Empty}>`;
  const rows = (only && only !== "lost" ? data.rows.filter((row) => row.outcome === only) : data.rows).slice(0, 200);
  const totals = Object.entries(data.totals);
  const places = [...new Set(rows.map((row) => row.reason))];
  return html`<${Trouble} error=${error} /><${Card} id="lost" title="Sampled and not trained on" note=${totals.length ? totals.map(([name, count]) => `${whole(count)} ${name.replace("_", " ")}`).join(", ") : "no group is lost"}>
    ${rows.length ? null : html`<${Empty}>none is kept here</${Empty}>`}
    ${places.map((place) => html`<div>
      ${place === null ? null : html`<h3>${plural(data.reasons[place].num_groups, "group")} for this reason</h3><p class="trouble text">${visibleLines(data.reasons[place].text)}</p>`}
      ${rows.filter((row) => row.reason === place).map((row) => html`<${PlainSample} row=${row} more=${`${row.outcome} at ${clock(row.seconds)} `} />`)}</div>`)}</${Card}>`;
}

export function Found({ text }) {
  const { data, error } = useFeed("search", { text }, { live: false });
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Empty}>searching all completions …</${Empty}>`;
  return html`<${Card} id="found" title=${`“${shortened(text, 40)}” in ${data.is_cut ? "at least " : ""}${plural(data.rows.length, "completion")}`} note="the newest first">
    ${data.rows.map((row) => html`<${PlainSample} row=${row} more=${html`<a href=${addressOf("samples", { step: row.step, group: row.ordinal })}>step ${row.step}</a> `} />`)}</${Card}>`;
}
