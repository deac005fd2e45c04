// A small chart of the last minutes, drawn as SVG.
import { el, put } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [300, 56];
const SPANS = [1, 2, 5, 10]; // minutes: the first that covers all points

/** One number: its present value and its line. `points` are pairs: seconds ago, and the value. */
export class Chart {
  constructor(title, write, seconds) {
    this.write = write;
    this.seconds = seconds;
    this.title = title;
    this.now = el("strong", "", "–");
    this.from = el("span");
    this.most = el("span", "most");
    this.svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.area = drawn("path", { class: "area" });
    this.line = drawn("path", { class: "line" });
    this.svg.append(this.area, this.line);
    const caption = el("figcaption", "", el("span", "", title), this.now, this.most);
    const ends = el("div", "ends", this.from, el("span", "", "now"));
    this.node = el("figure", "chart", caption, this.svg, ends);
  }

  /** Draw the points. Points more than `gap` seconds apart are not joined: there was no look in between. */
  draw(points, gap) {
    const most = Math.max(0, ...points.map(([, value]) => value));
    const last = points.at(-1);
    put(this.now, last ? this.write(last[1]) : "–");
    put(this.most, last ? `most ${this.write(most)}` : "");
    const minutes = SPANS.find((span) => 60 * span >= (points[0]?.[0] ?? 0)) ?? this.seconds / 60;
    put(this.from, `${minutes} min ago`);
    this.svg.setAttribute("aria-label", `${this.title}, in the last ${minutes} min`);
    const top = Math.max(most, 1e-9);
    let [line, area, before] = ["", "", null];
    for (const [ago, value] of points) {
      const x = (WIDTH * (1 - ago / (60 * minutes))).toFixed(1);
      const y = (HEIGHT - 2 - ((HEIGHT - 6) * value) / top).toFixed(1);
      if (before === null || before.ago - ago > gap) {
        if (before) area += `V${HEIGHT}Z`;
        line += `M${x} ${y}`;
        area += `M${x} ${HEIGHT}V${y}`;
      } else {
        line += `L${x} ${y}`;
        area += `L${x} ${y}`;
      }
      before = { ago };
    }
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area && `${area}V${HEIGHT}Z`);
  }
}

function drawn(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
