// The parts of the page that list what there is.
import { useState } from "preact/hooks";
import type { Fleet, Node, Problem, Server, Service, Standing } from "./fleet";
import { standing } from "./fleet";
import { moment, number, open, rate, span } from "./format";
import { Strip, spread, summary } from "./strip";
import { type Column, Table } from "./table";
import { Why } from "./why";

const glyphs: Record<string, string> = { bad: "✕", warn: "▲", ok: "●", taking: "●", unknown: "◌", draining: "◐", unhealthy: "✕", off: "○", removed: "○" };

export function Mark({ is }: { is: string }) {
  return (
    <i class={`mark ${is}`} aria-hidden="true">
      {glyphs[is] ?? "●"}
    </i>
  );
}

const problemsShown = 12;

// Problems lists those after the first, which is the headline.
export function Problems({ problems }: { problems: Problem[] }) {
  const rest = problems.length - problemsShown;
  return (
    <ul class="problems" aria-live="polite" aria-relevant="additions text" aria-label="Further problems">
      {problems.slice(1, problemsShown).map((p) => (
        <li key={p.text}>
          <Mark is={p.level} /> {p.text} <small>since {moment(p.since)}</small>
        </li>
      ))}
      {rest > 0 && (
        <li key="rest" class="muted">
          and {rest} more: ballast ctl nodes, ballast ctl servers
        </li>
      )}
    </ul>
  );
}

interface Grouped extends Service {
  servers: Server[];
  fresh: number;
}

export function Services({ fleet, show, theme }: { fleet: Fleet; show: (service: string) => void; theme: string }) {
  const groups = fleet.byService();
  const rows: Grouped[] = fleet.services.map((s) => ({ ...s, servers: groups.get(s.name) ?? [], fresh: fleet.fresh.get(s.name) ?? 0 }));
  const total = (servers: Server[]) => servers.reduce((a, s) => (s.open < 0 ? a : Math.max(a, 0) + s.open), -1);
  const columns: Column<Grouped>[] = [
    {
      title: "Service",
      by: (s) => s.name,
      cell: (s) => (
        <>
          <button type="button" class="link" onClick={() => show(s.name)} title={`Servers of ${s.name}`}>
            {s.name}
          </button>
          <small>
            {s.address} {s.protocol}
          </small>
        </>
      ),
    },
    {
      title: "Finds servers by",
      by: (s) => s.dispatch,
      cell: (s) => (
        <>
          {s.dispatch}, {s.affinity}
          <small>
            {s.forward}, returns {s.return}
          </small>
        </>
      ),
    },
    {
      title: "Servers, by open connections",
      cell: (s) => (
        <>
          <Strip servers={s.servers} theme={theme} />
          <small>{summary(s.servers)}</small>
        </>
      ),
    },
    { title: "New/s", by: (s) => s.fresh, cell: (s) => rate(s.fresh), numeric: true },
    { title: "Open", by: (s) => total(s.servers), cell: (s) => open(total(s.servers)), numeric: true },
    { title: "Fullest / mean", by: (s) => spread(s.servers) ?? 0, cell: (s) => spread(s.servers)?.toFixed(2) ?? "–", numeric: true },
  ];
  return <Table caption="Services" columns={columns} rows={rows} id={(s) => s.name} empty="No service is configured yet." pageSize={15} />;
}

export function Drains({ servers, now }: { servers: Server[]; now: number }) {
  const leaving = servers.filter((s) => s.state === "draining" || s.state === "removed");
  const columns: Column<Server>[] = [
    {
      title: "Server",
      by: (s) => s.name,
      cell: (s) => (
        <>
          <Mark is={standing(s)} /> {s.name}
        </>
      ),
    },
    { title: "Service", by: (s) => s.service, cell: (s) => s.service },
    { title: "Leaves", by: (s) => s.state, cell: (s) => (s.state === "removed" ? "removed from the configuration" : "draining") },
    {
      title: "Connections left",
      by: (s) => s.open,
      cell: (s) => (s.open === 0 ? "none" : `${open(s.open)}${s.exact || s.open < 0 ? "" : " (estimated)"}`),
      numeric: true,
    },
    {
      title: "Deadline",
      by: (s) => s.deadline ?? 0,
      cell: (s) => (s.deadline ? (s.deadline > now ? `in ${span(s.deadline - now)}` : "passed") : "none"),
      numeric: true,
    },
  ];
  return (
    <Table caption="Servers that leave" columns={columns} rows={leaving} id={(s) => s.i} empty="No server is draining." pageSize={10} />
  );
}

// rank: who has a problem comes first.
const rank: Record<Standing, number> = { unhealthy: 0, unknown: 1, draining: 2, off: 3, taking: 4, removed: 5 };

export interface Filter {
  text: string;
  service: string;
  standing: string;
}

export function Servers({
  servers,
  services,
  filter,
  setFilter,
}: {
  servers: Server[];
  services: Service[];
  filter: Filter;
  setFilter: (f: Filter) => void;
}) {
  const [asked, ask] = useState<number | undefined>();
  const why = servers.find((s) => s.i === asked);
  const text = filter.text.toLowerCase();
  const rows = servers
    .filter(
      (s) =>
        (!filter.service || s.service === filter.service) &&
        (!filter.standing || standing(s) === filter.standing) &&
        (!text || `${s.name} ${s.address} ${s.service}`.toLowerCase().includes(text)),
    )
    .sort((a, b) => rank[standing(a)] - rank[standing(b)] || a.i - b.i);
  const columns: Column<Server>[] = [
    {
      title: "Server",
      by: (s) => s.name,
      cell: (s) => (
        <>
          <Mark is={standing(s)} />{" "}
          <button type="button" class="link" onClick={() => ask(s.i)} title={`Why ${s.name} gets what it gets`}>
            {s.name}
          </button>
          <small>
            {s.address}, id {s.id}
          </small>
        </>
      ),
    },
    { title: "Service", by: (s) => s.service, cell: (s) => s.service },
    { title: "State", by: (s) => s.state, cell: (s) => s.state },
    {
      title: "Health",
      by: (s) => s.health,
      cell: (s) => (
        <>
          {s.health}
          {s.detail && <small>{s.detail}</small>}
        </>
      ),
    },
    { title: "Agent", by: (s) => s.agent ?? "", cell: (s) => s.agent ?? "–" },
    { title: "Weight", by: (s) => s.weight, cell: (s) => s.weight, numeric: true },
    { title: "New/s", by: (s) => s.fresh, cell: (s) => rate(s.fresh), numeric: true },
    { title: "Open", by: (s) => s.open, cell: (s) => open(s.open), numeric: true },
  ];
  return (
    <>
      <form class="filter" role="search" aria-label="Filter servers" onSubmit={(e) => e.preventDefault()}>
        <label>
          Find{" "}
          <input
            type="search"
            value={filter.text}
            placeholder="name, address"
            onInput={(e) => setFilter({ ...filter, text: e.currentTarget.value })}
          />
        </label>
        <label>
          Service{" "}
          <select value={filter.service} onChange={(e) => setFilter({ ...filter, service: e.currentTarget.value })}>
            <option value="">all</option>
            {services.map((s) => (
              <option key={s.name} value={s.name}>
                {s.name}
              </option>
            ))}
          </select>
        </label>
        <label>
          Which{" "}
          <select value={filter.standing} onChange={(e) => setFilter({ ...filter, standing: e.currentTarget.value })}>
            <option value="">all</option>
            <option value="taking">take new connections</option>
            <option value="unhealthy">unhealthy</option>
            <option value="unknown">of unknown health</option>
            <option value="draining">draining</option>
            <option value="off">off</option>
            <option value="removed">removed</option>
          </select>
        </label>
        <output>
          {number(rows.length)} of {number(servers.length)}
        </output>
      </form>
      {why && <Why server={why} close={() => ask(undefined)} />}
      <Table caption="Servers" columns={columns} rows={rows} id={(s) => s.i} empty="No server is like that." />
    </>
  );
}

const roles: Record<string, string> = { lb: "load balancer", agent: "agent", controller: "controller" };

export function Nodes({ nodes, now }: { nodes: Node[]; now: number }) {
  const level = (n: Node) =>
    n.ready === "no" || (n.ready === "lost" && n.role !== "agent") || n.health === "unhealthy"
      ? "bad"
      : n.ready === "lost" || n.problems?.length
        ? "warn"
        : "ok";
  const since = (n: Node) => (n.since ? (n.ready === "lost" ? `seen ${span(now - n.since)} ago` : `for ${span(now - n.since)}`) : "–");
  const columns: Column<Node>[] = [
    {
      title: "Node",
      by: (n) => n.name,
      cell: (n) => (
        <>
          <Mark is={level(n)} /> {n.name}
          <small>
            {roles[n.role] ?? n.role}
            {n.tier && `, ${n.tier} tier`}
            {n.state && n.state !== "active" && `, ${n.state}`}
          </small>
        </>
      ),
    },
    {
      title: "Ready",
      by: (n) => n.ready,
      cell: (n) => (
        <>
          {n.ready || "not known"}
          {n.health && <small>{n.health}</small>}
        </>
      ),
    },
    {
      title: "Problems",
      by: (n) => -(n.problems?.length ?? 0),
      cell: (n) =>
        n.problems?.length ? (
          <ul class="plain">
            {n.problems.map((p) => (
              <li key={p}>{p}</li>
            ))}
          </ul>
        ) : (
          "none"
        ),
    },
    { title: "Connected", by: (n) => n.since ?? 0, cell: since },
    { title: "Address", by: (n) => n.address, cell: (n) => n.address || "–" },
    { title: "Version", by: (n) => n.version, cell: (n) => n.version || "–" },
    { title: "Revision", by: (n) => n.revision ?? 0, cell: (n) => n.revision || "–", numeric: true },
  ];
  return <Table caption="Nodes" columns={columns} rows={nodes} id={(n) => `${n.role} ${n.name}`} empty="No node is known." pageSize={15} />;
}
