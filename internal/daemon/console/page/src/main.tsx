// The page: what is wrong in words, then how much goes on, then what there is.
import { render } from "preact";
import { useEffect, useReducer, useRef, useState } from "preact/hooks";
import "./app.css";
import { Changes } from "./changes";
import { Chart, type Line } from "./chart";
import { Fleet, standing, takesNew } from "./fleet";
import { clock, moment, number, open, rate } from "./format";
import { Drains, type Filter, Mark, Nodes, Problems, Servers, Services } from "./sections";
import { watch } from "./stream";
import { Traffic } from "./traffic";
import { applyTheme, followSystem, theme, toggleTheme } from "./theme";

const fleet = new Fleet();

interface Link {
  seen: number; // when the daemon was heard last; 0: never
  lost: string; // why it is not heard now; empty: it is
}

function Page() {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  const [link, setLink] = useState<Link>({ seen: 0, lost: "" });
  const [filter, setFilter] = useState<Filter>({ text: "", service: "", standing: "" });
  const [shade, setShade] = useState(theme());
  const list = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    watch({
      message: (m) => {
        fleet.take(m);
        setLink({ seen: Date.now(), lost: "" });
      },
      lost: (why) => setLink((l) => ({ ...l, lost: why })),
    });
    followSystem(() => setShade(theme()));
  }, []);
  useEffect(() => {
    document.title = `${fleet.head?.level === "bad" ? "✕ " : fleet.head?.level === "warn" ? "▲ " : ""}${fleet.head?.name ?? "Ballast"}`;
  });
  const show = (service: string) => {
    setFilter({ text: "", service, standing: "" });
    list.current?.focus();
    list.current?.scrollIntoView();
  };
  const switchTheme = () => {
    toggleTheme();
    setShade(theme());
    redraw(undefined);
  };
  return (
    <>
      <a class="skip" href="#servers">
        To the servers
      </a>
      <Top link={link} shade={shade} switchTheme={switchTheme} />
      <main data-stale={link.lost ? "" : undefined}>
        <Headline link={link} />
        {fleet.head && <Body filter={filter} setFilter={setFilter} show={show} shade={shade} heading={list} />}
      </main>
    </>
  );
}

function Top({ link, shade, switchTheme }: { link: Link; shade: string; switchTheme: () => void }) {
  const head = fleet.head;
  const seen = link.seen > 0 && clock(link.seen);
  const role = head?.role === "lb" ? "load balancer" : head?.role;
  return (
    <header>
      <span class="brand">Ballast</span>
      {head && (
        <span>
          {role} <b>{head.name}</b>{" "}
          <small>
            {head.version}, revision {head.revision}
          </small>
        </span>
      )}
      <span class="live">
        {link.lost ? (
          <>
            <Mark is="bad" /> not connected{seen && `, shown is ${seen}`}
          </>
        ) : (
          <>
            <Mark is="ok" /> live <time>{seen}</time>
          </>
        )}
      </span>
      <button type="button" onClick={switchTheme}>
        {shade === "dark" ? "Light" : "Dark"} colours
      </button>
    </header>
  );
}

function Headline({ link }: { link: Link }) {
  const [level, text] = link.lost
    ? ["bad", `This page hears nothing: ${link.lost}. It tries again every second.`]
    : fleet.head
      ? [fleet.head.level, fleet.head.headline]
      : ["ok", "Waiting for the daemon."];
  const first = fleet.problems[0];
  const others = fleet.problems.length - 1;
  return (
    <section class={`headline ${level}`} aria-label="State">
      <div role="status">
        <h1>
          <Mark is={level} /> {text}
        </h1>
      </div>
      {!link.lost && first && (
        <p class="more">
          {others > 0 && `And ${others} more problem${others > 1 ? "s" : ""}. `}
          <small>Since {moment(first.since)}.</small>
        </p>
      )}
      <Problems problems={fleet.problems} />
    </section>
  );
}

interface BodyProps {
  filter: Filter;
  setFilter: (f: Filter) => void;
  show: (service: string) => void;
  shade: string;
  heading: { current: HTMLHeadingElement | null };
}

function Body({ filter, setFilter, show, shade, heading }: BodyProps) {
  const servers = [...fleet.servers.values()];
  const now = Date.now();
  return (
    <>
      <Figures />
      <Charts shade={shade} />
      <section>
        <h2>Services</h2>
        <Services fleet={fleet} show={show} theme={shade} />
      </section>
      <section>
        <h2>Servers that leave</h2>
        <Drains servers={servers} now={now} />
      </section>
      <section>
        <h2>{fleet.head?.role === "controller" ? "Controllers, load balancers, agents" : "Load balancers"}</h2>
        <Nodes nodes={fleet.nodes} now={now} />
      </section>
      <section>
        <h2 id="servers" tabIndex={-1} ref={heading}>
          Servers
        </h2>
        <Servers servers={servers} services={fleet.services} filter={filter} setFilter={setFilter} />
      </section>
      <section>
        <h2>Top clients and servers</h2>
        <Traffic now={now} />
      </section>
      <section>
        <h2>Last changes</h2>
        <Changes changes={fleet.changes} none={fleet.head?.noChanges ?? ""} />
      </section>
    </>
  );
}

function Figures() {
  const servers = [...fleet.servers.values()].filter((s) => s.state !== "removed");
  const lbs = fleet.nodes.filter((n) => n.role === "lb");
  const last = fleet.series.at(-1) ?? [0, 0, -1];
  const figures: [string, string][] = [
    ["New connections a second", rate(last[1] ?? 0)],
    ["Open connections", open(last[2] ?? -1)],
    ["Servers that take new ones", `${number(servers.filter(takesNew).length)} of ${number(servers.length)}`],
    ["Unhealthy servers", number(servers.filter((s) => standing(s) === "unhealthy").length)],
    ["Draining servers", number(servers.filter((s) => s.state === "draining").length)],
    ["Load balancers ready", `${lbs.filter((n) => n.ready === "yes").length} of ${lbs.length}`],
  ];
  return (
    <dl class="figures">
      {figures.map(([what, value]) => (
        <div key={what}>
          <dt>{what}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

const rungColors: Record<string, string> = {
  new: "ok",
  cookie: "accent",
  table: "teal",
  session: "drain",
  hash: "slate",
  fallback: "warn",
  other: "muted",
  returned: "sand",
  dropped: "bad",
};

function Charts({ shade }: { shade: string }) {
  const series = fleet.series;
  const row = (k: number) => series.map((p) => p[k] ?? 0);
  const times = series.map((p) => p[0]! / 1000);
  const last = series.at(-1);
  const line = (label: string, color: string, k: number, text: (n: number) => string): Line => ({
    label,
    color,
    now: text(last?.[k] ?? 0),
  });
  const used = (fleet.head?.rungs ?? []).map((name, k) => ({ name, k: k + 3 })).filter(({ k }) => series.some((p) => (p[k] ?? 0) > 0));
  return (
    <section class="charts">
      <h2 class="unseen">The last quarter of an hour</h2>
      <Chart title="New connections" unit="a second" theme={shade} lines={[line("all services", "ok", 1, rate)]} data={[times, row(1)]} />
      <Chart
        title="Open connections"
        unit="as far as known"
        theme={shade}
        lines={[line("all services", "accent", 2, open)]}
        data={[times, row(2)]}
      />
      {fleet.head!.rungs.length > 0 ? (
        <Chart
          title="How packets found their server"
          unit="packets a second"
          stacked
          theme={shade}
          lines={used.map(({ name, k }) => line(name, rungColors[name] ?? "muted", k, rate))}
          data={[times, ...used.map(({ k }) => row(k))]}
        />
      ) : (
        <figure class="chart note">
          <h3>How packets found their server</h3>
          <p class="muted">Load balancers count that: see their own consoles, or ballast_packets_total of Prometheus.</p>
        </figure>
      )}
    </section>
  );
}

applyTheme();
render(<Page />, document.getElementById("page")!);
