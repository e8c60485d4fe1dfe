// Where data comes from: the server's feeds, or the block that a report has inside; and what the address says.
import { useState, useEffect, useRef } from "./view.js";

const dataBlock = document.getElementById("data");
export const isReport = dataBlock !== null;
const REFRESH_MILLISECONDS = 500;

let unpacked = null;
async function unpackBlock() {
  const bytes = Uint8Array.from(atob(dataBlock.textContent.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// As Python's urllib.parse.quote with no safe characters.
const quoted = (text) =>
  encodeURIComponent(text).replace(/[!'()*]/g, (c) => "%" + c.charCodeAt(0).toString(16).toUpperCase());

export function requestKey(feed, params) {
  const pairs = Object.keys(params).sort().map((key) => `${quoted(key)}=${quoted(String(params[key]))}`);
  return pairs.length ? `${feed}?${pairs.join("&")}` : feed;
}

export async function get(feed, params = {}) {
  const asked = Object.fromEntries(Object.entries(params).filter(([, value]) => value !== undefined && value !== ""));
  if (isReport) {
    unpacked ??= unpackBlock();
    const answer = (await unpacked)[requestKey(feed, asked)];
    if (answer === undefined) throw new Error("this report does not have it; freerun view shows the whole run");
    return answer;
  }
  const run = readAddress().params.run;
  const address = `api/${requestKey(feed, run ? { ...asked, run } : asked)}`;
  if (!pending.has(address)) pending.set(address, fetchAnswer(address).finally(() => pending.delete(address)));
  return pending.get(address);
}

// Requests since the last change that are not answered yet: what two parts of the page show is asked once.
const pending = new Map();

async function fetchAnswer(address) {
  const response = await fetch(address, { cache: "no-store" });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || `the page's server answers ${response.status}`);
  return answer;
}

// Give the browser a file to save.
export function saveFile(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// ---- live: one stream for all, closed while the page is hidden ------------------------------------------------

const ANYTHING = "anything";
const listeners = new Map(); // and the kinds of events that concern each; null for all
let stream = null;
let due = null; // the kinds of events since the last announcement
let lastChange = -Infinity;
let streamedRun = null;

// At once after a pause; else at the end of the interval, for all that has changed in it.
function announceChange(kinds) {
  if (due) {
    kinds.forEach((kind) => due.add(kind));
    return;
  }
  due = new Set(kinds);
  setTimeout(() => {
    const happened = due;
    due = null;
    lastChange = performance.now();
    pending.clear();
    for (const [listener, concerning] of [...listeners]) {
      if (!concerning || happened.has(ANYTHING) || concerning.some((kind) => happened.has(kind))) listener();
    }
  }, Math.max(0, lastChange + REFRESH_MILLISECONDS - performance.now()));
}

function followStream() {
  const run = readAddress().params.run || "";
  const isWanted = !isReport && listeners.size > 0 && document.visibilityState === "visible";
  if (stream && (!isWanted || run !== streamedRun)) {
    stream.close();
    stream = null;
  }
  if (!stream && isWanted) {
    streamedRun = run;
    stream = new EventSource(requestKey("stream", run ? { run } : {}));
    let isLost = false; // what was asked meanwhile may have failed
    stream.onerror = () => { isLost = true; };
    stream.onmessage = (message) => {
      const kinds = Object.keys(JSON.parse(message.data).kinds);
      announceChange(isLost || !kinds.length ? [ANYTHING] : kinds);
      isLost = false;
    };
  }
}

export function onChange(listener, concerning = null) {
  listeners.set(listener, concerning);
  followStream();
  return () => {
    listeners.delete(listener);
    followStream();
  };
}

document.addEventListener("visibilitychange", () => {
  followStream();
  if (document.visibilityState === "visible") announceChange([ANYTHING]);
});

export const AFTER_STEPS = ["run_started", "step_finished", "eval_finished"];

// The answer of a feed, asked again whenever something has happened, or only after `kinds` of events; the old one
// stays until the new one is there.
export function useFeed(feed, params = {}, { live = true, kinds = null } = {}) {
  const [answer, setAnswer] = useState({ data: null, error: null, key: null });
  const run = readAddress().params.run || "";
  const key = feed === null ? null : `${run} ${requestKey(feed, params)}`;
  const newest = useRef(0);
  useEffect(() => {
    if (feed === null) return undefined;
    let isCurrent = true;
    const ask = async () => {
      const number = ++newest.current;
      try {
        const data = await get(feed, params);
        if (isCurrent && number === newest.current) setAnswer({ data, error: null, key });
      } catch (error) {
        if (isCurrent && number === newest.current) setAnswer((old) => ({ ...old, error: error.message, key }));
      }
    };
    ask();
    const stop = live ? onChange(ask, kinds) : () => {};
    return () => {
      isCurrent = false;
      stop();
    };
  }, [key]);
  return answer;
}

// ---- the address: #/place?name=value --------------------------------------------------------------------------

export function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { place: path || "run", params: Object.fromEntries(new URLSearchParams(query || "")) };
}

export function addressOf(place, params = {}) {
  const run = readAddress().params.run;
  const all = { ...(run ? { run } : {}), ...params };
  const known = Object.entries(all).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(known.map(([key, value]) => [key, String(value)])).toString();
  return `#/${place === "run" ? "" : place}${query ? "?" + query : ""}`;
}

export function changeAddress(place, params, { isKept = true } = {}) {
  const address = addressOf(place, params);
  if (address === location.hash) return;
  if (isKept) location.hash = address;
  else {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

export function useAddress() {
  const [address, setAddress] = useState(readAddress());
  useEffect(() => {
    const read = () => {
      setAddress(readAddress());
      followStream();
    };
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  return address;
}
