// A pen with the methods of a canvas that the timeline uses; what it draws becomes the text of an SVG file.
import { html, render } from "./view.js";

const rounded = (value) => Math.round(100 * value) / 100;

export class SvgPen {
  constructor() {
    this.layers = [{ shapes: [], box: null }];
    this.points = [];
    this.circle = null;
    this.box = null;
    this.hatch = "url(#hatch)";
  }

  scale() {}

  save() {}

  rect(...box) {
    this.box = box.map(rounded);
  }

  clip() {
    this.layers.push({ shapes: [], box: this.box });
  }

  restore() {
    this.layers.push({ shapes: [], box: null });
  }

  add(shape) {
    this.layers[this.layers.length - 1].shapes.push(shape);
  }

  fillRect(x, y, width, height) {
    this.add(html`<rect x=${rounded(x)} y=${rounded(y)} width=${Math.max(0, rounded(width))} height=${Math.max(0, rounded(height))} fill=${this.fillStyle} />`);
  }

  fillText(text, x, y) {
    this.add(html`<text x=${rounded(x)} y=${rounded(y)} fill=${this.fillStyle} dominant-baseline="middle">${text}</text>`);
  }

  beginPath() {
    this.points = [];
    this.circle = null;
  }

  moveTo(x, y) {
    this.points = [[x, y]];
  }

  lineTo(x, y) {
    this.points.push([x, y]);
  }

  arc(x, y, radius) {
    this.circle = [x, y, radius].map(rounded);
  }

  stroke() {
    const points = this.points.map((point) => point.map(rounded).join(" ")).join(" ");
    this.add(html`<polyline points=${points} fill="none" stroke=${this.strokeStyle} />`);
  }

  fill() {
    const [x, y, radius] = this.circle;
    this.add(html`<circle cx=${x} cy=${y} r=${radius} fill=${this.fillStyle} />`);
  }

  // The serializer writes the text, so nothing that a model or a file named can become an element.
  asText({ width, height, ground, hatch, stroke }) {
    const [left, top, wide, tall] = this.layers.find(({ box }) => box)?.box || [0, 0, width, height];
    const page = document.createElement("div");
    render(html`<svg viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height} font-family="system-ui, sans-serif" font-size="11">
      <defs><clipPath id="window"><rect x=${left} y=${top} width=${wide} height=${tall} /></clipPath>
        <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" fill=${hatch} /><path d="M-1 1L1 -1M0 6L6 0M5 7L7 5" stroke=${stroke} stroke-width="1.6" /></pattern></defs>
      <rect width=${width} height=${height} fill=${ground} />
      ${this.layers.map(({ shapes, box }) => html`<g clip-path=${box ? "url(#window)" : "none"}>${shapes}</g>`)}</svg>`, page);
    return new XMLSerializer().serializeToString(page.firstChild);
  }
}
