// Top clients and servers, by packets: a sample, taken when somebody asks for one.
import { useState } from "preact/hooks";
import { clock, number, span } from "./format";
import { useAnswer } from "./once";
import { type Column, Table } from "./table";

interface Share {
  name: string;
  packets: number;
  share: number;
  error: number;
}

interface Sample {
  at: number;
  seconds: number;
  sampled: number;
  packets: number;
  nodes: number;
  missing: { node: string; why: string }[];
  atLeast?: boolean;
  clients: Share[];
  servers: Share[];
}

export function Traffic({ now }: { now: number }) {
  const [asked, ask] = useState(0);
  const { answer, error, busy } = useAnswer<Sample>(asked ? "/sample" : "", asked);
  return (
    <>
      <p>
        <button type="button" disabled={busy} onClick={() => ask(asked + 1)}>
          Take a sample
        </button>{" "}
        <span class="muted">
          It takes 5 s, in which each load balancer looks at some 500 packets a second; at most every 10 s. A trace ends it.
        </span>
      </p>
      <div role="status">
        {busy && <p>Load balancers are looking.</p>}
        {error && <p>Not known{answer ? " any more" : ""} because {error}</p>}
        {!asked && <p class="muted">Not known because nobody has asked for a sample.</p>}
        {answer && <Summary sample={answer} now={now} />}
      </div>
      {answer && answer.nodes > 0 && (
        <div class="halves">
          <Table caption="Packets by client prefix" columns={columns("Clients")} rows={answer.clients} id={(s) => s.name} empty="No packet came." />
          <Table caption="Packets by server" columns={columns("Service and server")} rows={answer.servers} id={(s) => s.name} empty="No packet came." />
        </div>
      )}
    </>
  );
}

function Summary({ sample, now }: { sample: Sample; now: number }) {
  const most = sample.atLeast ? " Of each there may be more." : "";
  return (
    <>
      {sample.nodes > 0 && (
        <p>
          {number(sample.packets)} packets in {sample.seconds.toFixed(1)} s at {sample.nodes} load balancer{sample.nodes > 1 ? "s" : ""}, of which{" "}
          {number(sample.sampled)} were looked at.{most}{" "}
          <small>
            As of {clock(sample.at)}, {span(now - sample.at)} ago.
          </small>
        </p>
      )}
      {sample.nodes === 0 && sample.missing.length === 0 && <p>Not known because no load balancer is connected.</p>}
      {sample.missing.map((m) => (
        <p key={m.node}>
          Of {m.node} not known because {m.why}
        </p>
      ))}
    </>
  );
}

function columns(first: string): Column<Share>[] {
  const percent = (part: number) => `${(100 * part).toFixed(1)} %`;
  return [
    { title: first, by: (s) => s.name, cell: (s) => s.name },
    { title: "Packets", by: (s) => s.packets, cell: (s) => number(s.packets), numeric: true },
    { title: "Share", by: (s) => s.share, cell: (s) => percent(s.share) + (s.error > 0 ? ` ± ${percent(s.error)}` : ""), numeric: true },
  ];
}
