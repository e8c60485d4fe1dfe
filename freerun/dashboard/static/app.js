// The page: a line about the run, five places, one address each.
import { html, render, useEffect } from "./view.js";
import { useFeed, useAddress, addressOf, isReport } from "./data.js";
import { seconds, visible, whole } from "./format.js";
import { Share } from "./shapes.js";
import { RunPlace } from "./run.js";
import { TimePlace } from "./time.js";
import { SamplesPlace } from "./samples.js";
import { LearningPlace } from "./learning.js";
import { RunsPlace } from "./runs.js";

const PLACES = [
  ["run", "Run", RunPlace], ["time", "Time", TimePlace], ["samples", "Samples", SamplesPlace],
  ["learning", "Learning", LearningPlace], ["runs", "Runs", RunsPlace],
];

function StatusLine({ run }) {
  if (!run) return html`<div class="status"><h1>freerun</h1></div>`;
  const took = run.seconds - (run.started || 0);
  return html`<div class="status">
    <h1>freerun <b>${visible(run.name)}</b></h1>
    <span class=${`state ${run.state}`}>${run.state}</span>
    ${run.num_steps ? html`<span class="progress">step ${whole(run.step)} of ${whole(run.num_steps)} <${Share} share=${run.step / run.num_steps} /></span>` : null}
    <span class="mute">${seconds(took)}${run.seconds_left !== null ? `, ${seconds(run.seconds_left)} left` : ""}</span>
    ${run.num_engines ? html`<span class="mute">v${run.loaded_version} on ${run.num_engines} ${run.num_engines === 1 ? "engine" : "engines"}</span>` : null}
    ${run.checkpoint ? html`<span class="mute">checkpoint ${run.checkpoint.version}, ${seconds(Math.max(0, run.seconds - run.checkpoint.seconds))} ${run.state === "running" ? "ago" : "before the end"}</span>` : null}
    ${run.deaths ? html`<span class="level warn">${run.deaths} died</span>` : null}
  </div>`;
}

function Page() {
  const { place, params } = useAddress();
  const { data: run } = useFeed("run");
  const places = isReport ? PLACES.filter(([name]) => name !== "runs") : PLACES;
  const [name, title, Place] = places.find(([known]) => known === place) || places[0];
  useEffect(() => {
    document.title = `${title} · ${visible(run?.name || "")} · freerun`;
  }, [title, run?.name]);
  useEffect(() => {
    const press = (event) => {
      if (event.target.closest?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      const index = Number(event.key) - 1;
      if (places[index]) location.hash = addressOf(places[index][0]);
      if (event.key === "t") dispatchEvent(new Event("freerun-tables"));
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>to the content</a>
    <header class="top"><${StatusLine} run=${run} />
      <nav aria-label="places">${places.map(([key, word]) => html`<a href=${addressOf(key)} aria-current=${key === name ? "page" : null}>${word}</a>`)}
        <span class="keys">keys: 1–${places.length} places, t tables</span></nav></header>
    <main id="main" tabindex="-1" data-place=${name}><${Place} key=${name + (params.run || "")} params=${params} run=${run} /></main>`;
}

render(html`<${Page} />`, document.getElementById("page"));
