"""How long the page's own drawing takes in Chromium: a curve, a timeline, the tokens of a group.

The modules that the page is made of are loaded once more into it and given more than a feed answers with: a
feed gives at most 1,000 points, 9,000 spans and 60,000 tokens. A canvas is read back, so that what was drawn is
there; tokens count until the frame that shows them.
"""

from pathlib import Path
from typing import Any

from bench.harness import Result, at_most, show
from bench.page_viewing import APPEARED, viewing

NUM_POINTS, NUM_SPANS, NUM_TOKENS = 1_000_000, 100_000, 32_768
ENGINES = 4
CURVE = """async (number) => {
  const { plotCurves } = await import("/static/chart.js");
  const x = Array.from({ length: number }, (_, i) => i);
  const values = x.map((i) => Math.sin(i / 9999) + ((i * 7919) % 1000) / 1000);
  const box = document.body.appendChild(document.createElement("div"));
  const given = { width: 1200, height: 300, marks: [], intervals: [], isPercent: false, onPoint: () => {} };
  const began = performance.now();
  const plot = plotCurves(box, x, [{ name: "curve", values, colour: "--c-blue" }], given);
  await new Promise(queueMicrotask);
  const pen = plot.ctx;
  pen.getImageData(0, 0, 1, 1);
  const took = performance.now() - began;
  const pixels = pen.getImageData(0, 0, pen.canvas.width, pen.canvas.height).data;
  box.remove();
  return [took, new Set(new Uint32Array(pixels.buffer)).size];
}"""
TIMELINE = """async ([number, engines]) => {
  const { drawTimeline } = await import("/static/timeline.js");
  const names = ["trainer", ...Array.from({ length: engines }, (_, i) => `rollout-${i}`)];
  const each = number / names.length;
  const span = (i) => [i, i + 0.8, { [i % 3 ? "decoding" : "training"]: 1 }];
  const track = () => ({ is_binned: false, stretches: Array.from({ length: each }, (_, i) => span(i)) });
  const nothing = { groups: [], loads: [], versions: [], queues: [], marks: [], steps: [] };
  const data = { ...nothing, tracks: Object.fromEntries(names.map((name) => [name, track()])) };
  const canvas = document.querySelector("main").appendChild(document.createElement("canvas"));
  canvas.style.width = "1200px";
  const began = performance.now();
  drawTimeline(canvas, data, { from: 0, to: each }, "version", 4);
  const pen = canvas.getContext("2d");
  pen.getImageData(0, 0, 1, 1);
  const took = performance.now() - began;
  const pixels = pen.getImageData(0, 0, pen.canvas.width, pen.canvas.height).data;
  canvas.remove();
  return [took, new Set(new Uint32Array(pixels.buffer)).size];
}"""
TOKENS = """async (number) => {
  const { Tokens } = await import("/static/tokens.js");
  const { html, render } = await import("/static/view.js");
  const numbers = Array.from({ length: number }, (_, i) => i);
  const sample = {
    tokens: numbers.map((i) => ` t${i % 97}`), ids: numbers, logprobs: numbers.map((i) => -(i % 50) / 10),
    log_weights: [], spans: [[3, number, 0]], clipped: [], departs: null, num_hidden: 0, advantage: 1,
  };
  const box = document.querySelector("main").appendChild(document.createElement("div"));
  const began = performance.now();
  const isThere = () => box.querySelectorAll("[data-i]").length === number;
  await new Promise((painted) => {
    new MutationObserver((_, observer) => {
      if (!isThere()) return;
      observer.disconnect();
      requestAnimationFrame(() => requestAnimationFrame(painted));
    }).observe(box, { childList: true, subtree: true });
    render(html`<${Tokens} sample=${sample} by="logprob" step=${4} label="all" onPoint=${() => {}} />`, box);
  });
  const took = performance.now() - began;
  render(null, box);
  box.remove();
  return [took, number];
}"""
MANY_COLOURS = 2
"""Of pixels, at the least: the ground, and something drawn on it."""


def rows_of_drawing(browser: Any, run: Path, repetitions: int) -> list[Result]:
    """Milliseconds for each of the three, on the page of any run."""
    work: dict[str, tuple[str, Any, float]] = {
        "a curve of a million points, ms": (CURVE, NUM_POINTS, 50.0),
        "a timeline of 100,000 spans, ms": (TIMELINE, [NUM_SPANS, ENGINES], 100.0),
        "32,768 tokens in colours, ms": (TOKENS, NUM_TOKENS, 500.0),
    }
    rows = []
    with viewing(run) as link:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(link)
        page.evaluate(APPEARED, ["main h2", ""])
        for claim, (script, argument, limit) in work.items():
            taken = [_drawn(page, script, argument) for _ in range(repetitions + 1)][1:]
            show(f"  {claim}: " + ", ".join(f"{each:.0f}" for each in taken))
            settings = {"num_points": NUM_POINTS, "num_spans": NUM_SPANS, "num_tokens": NUM_TOKENS}
            rows.append(at_most(claim, limit, " ms", taken, settings, peer="drawn in Chromium"))
        page.close()
    return rows


def _drawn(page: Any, script: str, argument: Any) -> float:
    took, num_colours = page.evaluate(script, argument)
    if num_colours < MANY_COLOURS:
        raise SystemExit("the page has drawn nothing")
    return float(took)
