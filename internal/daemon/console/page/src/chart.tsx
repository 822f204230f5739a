// A chart over time. What it shows now is said in its caption, too.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, tick } from "./format";
import { color } from "./theme";

export interface Line {
  label: string;
  color: string; // of the stylesheet
  now: string;
}

interface Props {
  title: string;
  unit: string;
  lines: Line[];
  data: number[][]; // seconds, then a row for each line
  stacked?: boolean;
  theme: string;
}

const height = 150;

export function Chart({ title, unit, lines, data, stacked, theme }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = lines.map((l) => l.label).join();
  useEffect(() => {
    const parent = box.current!;
    const made = new uPlot(options(lines, parent.clientWidth, !!stacked), drawn(data, !!stacked), parent);
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: parent.clientWidth, height }));
    resized.observe(parent);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [shape, theme, stacked]);
  useEffect(() => plot.current?.setData(drawn(data, !!stacked)), [data]);
  return (
    <figure class="chart">
      <figcaption>
        <h3>
          {title} <small>{unit}</small>
        </h3>
        <ul class="legend">
          {lines.map((l) => (
            <li key={l.label}>
              <i class={`swatch ${l.color}`} aria-hidden="true" />
              {l.label} <b>{l.now}</b>
            </li>
          ))}
        </ul>
      </figcaption>
      <div ref={box} aria-hidden="true" />
    </figure>
  );
}

// drawn stacks rows where that is wanted: the first lies at the bottom, and is drawn last.
function drawn(data: number[][], stacked: boolean): uPlot.AlignedData {
  const [x = [], ...rows] = data;
  if (!stacked) return [x, ...rows.map((row) => row.map((v) => (v < 0 ? null : v)))];
  const sums: number[][] = [];
  rows.forEach((row, k) => sums.push(row.map((v, i) => v + (sums[k - 1]?.[i] ?? 0))));
  return [x, ...sums.reverse()];
}

function options(lines: Line[], width: number, stacked: boolean): uPlot.Options {
  const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const shown = stacked ? [...lines].reverse() : lines;
  return {
    width,
    height,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 8, 0, 0],
    scales: { y: { range: (_, __, top) => [0, top > 0 ? top * 1.1 : 1] } },
    axes: [
      { ...axis, values: (_, times) => times.map((t) => clock(t * 1000)), space: 90, size: 26 },
      { ...axis, values: (_, values) => values.map(tick), size: 52, space: 34 },
    ],
    series: [
      {},
      ...shown.map((l) => ({
        label: l.label,
        stroke: color(l.color),
        width: stacked ? 0.5 : 1.5,
        points: { show: false },
        ...(stacked ? { fill: color(l.color) } : { fill: `${color(l.color)}18` }),
      })),
    ],
  };
}
