// A sample token by token, coloured by what is known of each; made directly, since there can be tens of thousands.
import { html, useEffect, useRef } from "./view.js";
import { number, signed, visibleLines, visible } from "./format.js";

const CHUNK = 256;
export const COLOURINGS = {
  version: { word: "age", scale: [["s0", "0 versions old"], ["s1", "1"], ["s2", "2"], ["s3", "3"], ["s4", "4"], ["s5", "5 or more"]] },
  logprob: { word: "logprob", scale: [["s0", "above −0.1"], ["s1", "−0.5"], ["s2", "−1"], ["s3", "−2"], ["s4", "−4"], ["s5", "below"]] },
  weight: { word: "weight", scale: [["p3", "below 0.5"], ["p2", "0.8"], ["p1", "0.95"], ["bare", "1"], ["n1", "1.05"], ["n2", "1.25"], ["n3", "above 2"]] },
  clipped: { word: "clipped", scale: [["bare", "trained on"], ["n2", "held back by the trust region"]] },
  advantage: { word: "advantage", scale: [["n3", "very negative"], ["n1", "negative"], ["bare", "0"], ["p1", "positive"], ["p3", "very positive"]] },
  difference: { word: "difference to ✓", scale: [["bare", "as in a right sample"], ["n2", "from where it differs"]] },
};

const levelOfAge = (age) => `s${Math.max(0, Math.min(5, age))}`;
function levelOfLogprob(logprob) {
  const limits = [-0.1, -0.5, -1, -2, -4];
  const level = limits.findIndex((limit) => logprob > limit);
  return `s${level === -1 ? 5 : level}`;
}
function levelOfWeight(log) {
  const size = Math.abs(log);
  const level = size < 0.05 ? 0 : size < 0.22 ? 1 : size < 0.69 ? 2 : 3;
  return level === 0 ? "bare" : `${log > 0 ? "n" : "p"}${level}`;
}
function levelOfAdvantage(advantage) {
  if (!advantage) return "bare";
  return `${advantage > 0 ? "p" : "n"}${Math.abs(advantage) > 1.5 ? 3 : Math.abs(advantage) > 0.5 ? 2 : 1}`;
}

// Version and call of each token, and whether it was clipped; a given token has no version.
function originsOf(sample) {
  const origins = sample.spans.flatMap(([version, count, call]) => Array.from({ length: count }, () => ({ version, call, isClipped: false })));
  for (const place of sample.clipped) origins[place].isClipped = true;
  return origins;
}

function classOfToken(sample, i, by, origin, trainedAt) {
  if (origin.version === null) return "given";
  switch (by) {
    case "version": return levelOfAge(trainedAt - origin.version);
    case "logprob": return levelOfLogprob(sample.logprobs[i]);
    case "weight": return sample.log_weights[i] === undefined || sample.log_weights[i] === null ? "bare" : levelOfWeight(sample.log_weights[i]);
    case "clipped": return origin.isClipped ? "n2" : "bare";
    case "advantage": return levelOfAdvantage(sample.advantage);
    default: return sample.departs && i >= sample.departs.at ? "n2" : "bare";
  }
}

export function describeToken(sample, i, step) {
  const origin = originsOf(sample)[i];
  const words = [`token ${i + 1} of ${sample.ids.length}`, `“${visible(sample.tokens[i])}”`, `id ${sample.ids[i]}`];
  if (!origin || origin.version === null) return [...words, "given, not sampled"].join(" · ");
  words.push(`version ${origin.version} (age ${step - 1 - origin.version})`, `logprob ${number(sample.logprobs[i])}`);
  const weight = sample.log_weights[i];
  if (weight !== undefined && weight !== null) words.push(`proximal ${number(sample.logprobs[i] + weight)}`, `weight ${number(Math.exp(weight))}`);
  if (sample.advantage !== null) words.push(`advantage ${signed(sample.advantage)}`);
  if (origin.isClipped) words.push("clipped");
  if (sample.num_calls > 1) words.push(`call ${origin.call + 1}`);
  return words.join(" · ");
}

function fillTokens(box, sample, by, step) {
  const origins = originsOf(sample);
  const chunks = [];
  for (let begin = 0; begin < sample.tokens.length; begin += CHUNK) {
    const chunk = document.createElement("span");
    chunk.className = "chunk";
    for (let i = begin; i < Math.min(begin + CHUNK, sample.tokens.length); i++) {
      const token = document.createElement("span");
      token.className = classOfToken(sample, i, by, origins[i] || { version: null }, step - 1);
      if (by === "difference" && sample.departs?.at === i) token.classList.add("departs");
      token.textContent = visibleLines(sample.tokens[i]);
      token.dataset.i = i;
      chunk.append(token);
    }
    chunks.push(chunk);
  }
  box.replaceChildren(...chunks);
  if (sample.num_hidden) box.append(`… ${sample.num_hidden} more tokens`);
}

// onPoint is told which token is pointed at, by mouse or by arrow keys.
export function Tokens({ sample, by, step, label, onPoint }) {
  const box = useRef(null);
  const pointed = useRef(-1);
  useEffect(() => {
    if (sample.tokens) fillTokens(box.current, sample, by, step);
    else box.current.textContent = visibleLines(sample.text);
    pointed.current = -1;
  }, [sample, by]);
  const point = (i) => {
    if (!sample.tokens || i < 0 || i >= sample.tokens.length) return;
    box.current.querySelector(".pointed-at")?.classList.remove("pointed-at");
    const token = box.current.querySelector(`[data-i="${i}"]`);
    token?.classList.add("pointed-at");
    pointed.current = i;
    onPoint(describeToken(sample, i, step));
  };
  const move = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    point(Math.max(0, pointed.current + by));
  };
  return html`<div class="tokens" ref=${box} tabindex="0" role="group" aria-label=${label} onKeyDown=${move}
    onMouseOver=${(event) => event.target.dataset.i !== undefined && point(Number(event.target.dataset.i))}></div>`;
}

export function Scale({ by }) {
  return html`<span class="scale">${COLOURINGS[by].scale.map(([level, word]) => html`<i class=${level === "bare" ? "" : level}>${level === "bare" ? html`<span class="mute">${word}</span>` : word}</i>`)}</span>`;
}
