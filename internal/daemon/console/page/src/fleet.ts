// What the page knows of the fleet: the first message says everything, the others what has changed.

export type Level = "bad" | "warn" | "ok";

export interface Head {
  role: string;
  name: string;
  version: string;
  revision: number;
  level: Level;
  headline: string;
  rungs: string[];
  noChanges: string;
}

export interface Problem {
  level: Level;
  text: string;
  since: number;
}

export interface Service {
  name: string;
  address: string;
  protocol: string;
  dispatch: string;
  affinity: string;
  forward: string;
  return: string;
  check: string;
}

export interface Server {
  i: number;
  service: string;
  name: string;
  id: number;
  address: string;
  state: "active" | "draining" | "off" | "removed";
  health: string;
  detail?: string;
  agent?: string;
  exact?: boolean;
  deadline?: number;
  open: number; // connections; -1: unknown
  fresh: number; // new ones a second
  weight: number;
}

export interface Node {
  role: string;
  name: string;
  address: string;
  version: string;
  ready: string;
  tier?: string;
  state?: string;
  health?: string;
  revision?: number;
  since?: number;
  services?: number;
  problems?: string[];
}

export interface Change {
  time: number;
  by: string;
  from?: string;
  comment?: string;
  revision?: number;
  back?: number; // the revision before it, if that is kept
  changes: string[];
}

export interface Message {
  seq: number;
  whole?: boolean;
  head?: Head;
  problems?: Problem[];
  services?: Service[];
  nodes?: Node[];
  changes?: Change[];
  servers?: Omit<Server, "open" | "fresh" | "weight">[];
  gone?: number[];
  counts?: number[];
  new: number[] | null;
  point?: number[];
  series?: number[][];
}

const pointsKept = 900;

export class Fleet {
  head: Head | undefined;
  problems: Problem[] = [];
  services: Service[] = [];
  nodes: Node[] = [];
  changes: Change[] = [];
  servers = new Map<number, Server>();
  fresh = new Map<string, number>(); // new connections a second, by service
  series: number[][] = [];

  take(m: Message): void {
    if (m.whole) {
      this.servers.clear();
      this.series = m.series ?? [];
    } else if (m.point) {
      this.series.push(m.point);
      if (this.series.length > pointsKept) this.series.shift();
    }
    this.head = m.head ?? this.head;
    this.problems = m.problems ?? this.problems;
    this.services = m.services ?? this.services;
    this.nodes = m.nodes ?? this.nodes;
    this.changes = m.changes ?? this.changes;
    for (const i of m.gone ?? []) this.servers.delete(i);
    for (const row of m.servers ?? []) {
      const before = this.servers.get(row.i);
      this.servers.set(row.i, { ...row, open: before?.open ?? -1, fresh: before?.fresh ?? 0, weight: before?.weight ?? 0 });
    }
    const counts = m.counts ?? [];
    for (let k = 0; k + 3 < counts.length; k += 4) {
      const server = this.servers.get(counts[k]!);
      if (server) [server.open, server.fresh, server.weight] = [counts[k + 1]!, counts[k + 2]!, counts[k + 3]!];
    }
    this.fresh = new Map(this.services.map((s, k) => [s.name, m.new?.[k] ?? 0]));
  }

  byService(): Map<string, Server[]> {
    const groups = new Map<string, Server[]>(this.services.map((s) => [s.name, []]));
    for (const server of this.servers.values()) groups.get(server.service)?.push(server);
    return groups;
  }
}

export const takesNew = (s: Server): boolean => s.state === "active" && s.health !== "unhealthy";

// standing is how a server is, in one word that colours and shapes go by.
export type Standing = "taking" | "unknown" | "draining" | "unhealthy" | "off" | "removed";

export function standing(s: Server): Standing {
  if (s.state === "removed" || s.state === "off") return s.state;
  if (s.health === "unhealthy") return "unhealthy";
  if (s.state === "draining") return "draining";
  return s.health === "unknown" ? "unknown" : "taking";
}
