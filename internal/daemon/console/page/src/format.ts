// How numbers and times read.

const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function number(n: number): string {
  return n < 100_000 ? plain.format(n) : short.format(n);
}

// tick is a number at an axis: as many digits as keep neighbours apart.
export const tick = (n: number): string => (Number.isInteger(n) || n >= 100 ? number(n) : String(Number(n.toPrecision(3))));

export function rate(n: number): string {
  return n > 0 && n < 10 ? n.toFixed(1) : number(n);
}

export const open = (n: number): string => (n < 0 ? "–" : number(n));

export function clock(ms: number): string {
  return new Date(ms).toLocaleTimeString("en-GB");
}

export function moment(ms: number): string {
  const at = new Date(ms);
  const sameDay = at.toDateString() === new Date().toDateString();
  return sameDay ? clock(ms) : `${at.toLocaleDateString("sv")} ${clock(ms)}`;
}

export function span(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
