// The servers of a service as bars: height is open connections, colour and shape are how the server is. The spread is seen at once.
import { useEffect, useRef } from "preact/hooks";
import { type Server, type Standing, standing, takesNew } from "./fleet";
import { color } from "./theme";

const colors: Record<Standing, string> = { taking: "ok", unknown: "muted", draining: "drain", unhealthy: "bad", off: "muted", removed: "muted" };
const height = 26;
const most = 1200; // bars, in as many rows as they need

export function Strip({ servers, theme }: { servers: Server[]; theme: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => draw(canvas.current!, servers));
  return <canvas ref={canvas} class="strip" role="img" aria-label={summary(servers)} data-theme={theme} />;
}

function draw(canvas: HTMLCanvasElement, servers: Server[]): void {
  const width = canvas.clientWidth;
  const bars = servers.slice(0, most);
  const step = Math.min(18, Math.max(4, Math.floor(width / bars.length)));
  const inRow = Math.max(1, Math.floor(width / step));
  const rows = Math.max(1, Math.ceil(bars.length / inRow));
  const scale = window.devicePixelRatio;
  canvas.width = width * scale;
  canvas.height = rows * (height + 3) * scale;
  canvas.style.height = `${rows * (height + 3)}px`;
  const g = canvas.getContext("2d")!;
  g.scale(scale, scale);
  const palette = new Map(Object.values(colors).map((name) => [name, color(name)]));
  const top = bars.reduce((a, s) => Math.max(a, s.open), 0);
  bars.forEach((s, k) => {
    const is = standing(s);
    const [x, base] = [(k % inRow) * step, Math.floor(k / inRow) * (height + 3) + height];
    g.fillStyle = g.strokeStyle = palette.get(colors[is])!;
    const tall = top > 0 && s.open >= 0 ? 3 + (height - 3) * (s.open / top) : 3;
    if (is === "unhealthy") cross(g, x, base, step - 2, tall);
    else if (is === "draining") g.strokeRect(x + 0.5, base - tall + 0.5, step - 3, tall - 1);
    else g.fillRect(x, base - tall, step - 2, is === "taking" || is === "unknown" ? tall : 2);
  });
}

// cross is of unhealthy servers: they are seen without colours, too.
function cross(g: CanvasRenderingContext2D, x: number, base: number, wide: number, tall: number): void {
  g.globalAlpha = 0.35;
  g.fillRect(x, base - tall, wide, tall);
  g.globalAlpha = 1;
  g.beginPath();
  g.moveTo(x, base - height);
  g.lineTo(x + wide, base - height + wide);
  g.moveTo(x + wide, base - height);
  g.lineTo(x, base - height + wide);
  g.stroke();
}

// spread is how much more the fullest server has than the mean of those that take new connections, by weight; nothing where that says nothing.
export function spread(servers: Server[]): number | undefined {
  const shares = servers.filter((s) => takesNew(s) && s.open >= 0 && s.weight > 0).map((s) => ({ open: s.open, weight: s.weight }));
  const open = shares.reduce((a, s) => a + s.open, 0);
  const weight = shares.reduce((a, s) => a + s.weight, 0);
  if (shares.length < 2 || open === 0) return undefined;
  return Math.max(...shares.map((s) => s.open / s.weight)) / (open / weight);
}

export function summary(servers: Server[]): string {
  const counts = new Map<Standing, number>();
  for (const s of servers) counts.set(standing(s), (counts.get(standing(s)) ?? 0) + 1);
  const words: Record<Standing, string> = {
    taking: "take new connections",
    unknown: "of unknown health",
    draining: "draining",
    unhealthy: "unhealthy",
    off: "off",
    removed: "removed",
  };
  return [...counts].map(([is, n]) => `${n} ${words[is]}`).join(", ") || "no servers";
}
