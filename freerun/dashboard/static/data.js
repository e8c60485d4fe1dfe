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
  const response = await fetch(`api/${requestKey(feed, run ? { ...asked, run } : asked)}`, { cache: "no-store" });
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

const listeners = new Set();
let stream = null;
let isDue = false;
let lastChange = -Infinity;
let streamedRun = null;

// At once after a pause; else at the end of the interval, for all that has changed in it.
function announceChange() {
  if (isDue) return;
  isDue = true;
  setTimeout(() => {
    isDue = false;
    lastChange = performance.now();
    for (const listener of [...listeners]) listener();
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
    stream.onmessage = announceChange;
  }
}

export function onChange(listener) {
  listeners.add(listener);
  followStream();
  return () => {
    listeners.delete(listener);
    followStream();
  };
}

document.addEventListener("visibilitychange", () => {
  followStream();
  if (document.visibilityState === "visible") announceChange();
});

// The answer of a feed, asked again whenever something has happened; the old one stays until the new one is there.
export function useFeed(feed, params = {}, { live = true } = {}) {
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
    const stop = live ? onChange(ask) : () => {};
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
