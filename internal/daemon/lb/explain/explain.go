// Package explain tells what would become of a packet here, by dry runs of the program.
package explain

import (
	"cmp"
	"context"
	"net"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/console"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants. A question costs some 10 ms of a CPU, and the first one what the kernel takes to verify the program.
const (
	runs        = 64 // dry runs, to see what a policy may choose
	perQuestion = 200 * time.Millisecond
	burst       = 10
	waiting     = 4 // questions of controllers
)

// Explainer answers questions about packets. All methods are safe for concurrent use.
type Explainer struct {
	name    string
	tables  *dataplane.Tables
	devices func() []int // that the program is on
	limit   *rate.Limiter
	asked   chan question
}

type question struct {
	*ballastv1.Question
	answer func(*ballastv1.Explained)
}

// New returns an explainer of the node of a name.
func New(name string, tables *dataplane.Tables, devices func() []int) *Explainer {
	return &Explainer{name: name, tables: tables, devices: devices, limit: rate.NewLimiter(rate.Every(perQuestion), burst), asked: make(chan question, waiting)}
}

// Ask has Run answer a controller's question. It never waits.
func (e *Explainer) Ask(q *ballastv1.Question, answer func(*ballastv1.Explained)) {
	select {
	case e.asked <- question{q, answer}:
	default:
		answer(&ballastv1.Explained{Number: q.Number, Explanation: &ballastv1.Explanation{Node: e.name, Error: tooMany}})
	}
}

// Run answers what Ask was asked until ctx ends.
func (e *Explainer) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-e.asked:
			q.answer(&ballastv1.Explained{Number: q.Number, Explanation: e.Explain(q.Packet)})
		}
	}
}

const tooMany = "too many questions at once: ask again in a few seconds"

// Explain tells what would become of a packet now, or in Error why it does not.
func (e *Explainer) Explain(packet *ballastv1.MadeUpPacket) *ballastv1.Explanation {
	out := &ballastv1.Explanation{Node: e.name}
	if err := e.explain(packet, out); err != nil {
		return &ballastv1.Explanation{Node: e.name, Error: err.Error()}
	}
	return out
}

func (e *Explainer) explain(packet *ballastv1.MadeUpPacket, out *ballastv1.Explanation) error {
	p, err := api.MadeUpFromProto(packet)
	if err != nil {
		return err
	}
	if !e.limit.Allow() {
		return api.BadRequest("%s", tooMany)
	}
	device, err := e.device()
	if err != nil {
		return err
	}
	now := e.tables.Now()
	made := lb.MadeUp{Client: p.Client, VIP: p.VIP, UDP: p.Protocol == model.ProtocolUDP, Flags: p.Flags,
		Timestamps: p.Timestamps, Timestamp: p.Timestamp, Echo: p.Echo, Payload: p.Payload}
	outcomes, err := e.tables.Path().DryRun(made, device, runs)
	if err != nil {
		return err
	}
	names, err := lb.VerdictNames()
	if err != nil {
		return err
	}
	first := outcomes[0]
	out.Interface, out.Verdict, out.Runs = device.Name, names[first.Verdict], runs
	out.Rung, out.Meaning = console.RungOf(out.Verdict), meaningOf(out.Verdict)
	out.Action = map[uint32]string{lb.ActionDrop: "drop", lb.ActionPass: "host", lb.ActionTransmit: "send", lb.ActionRedirect: "send"}[first.Action]
	if out.Action == "send" {
		out.Headers = headersOf(first.Frame)
	}
	service := serviceAt(now, first.Service)
	if service == nil {
		out.Notes = append(out.Notes, unserved(now, &p)...)
		return nil
	}
	out.Service = service.Name
	target := targetOf(now, service, first.Server)
	if first.Server != 0 {
		out.Server, out.Path = target.chosen, now.DescribePath(target.address)
		if now.Paths[target.address].Here {
			out.Action = "send" // to the agent, which no dry run comes to
			out.Headers = headersOf(first.Frame)
		}
	}
	for _, stop := range first.Stops {
		out.Stops = append(out.Stops, targetOf(now, service, stop).chosen.Name)
	}
	out.Candidates = candidatesOf(now, service, outcomes)
	if out.Unknown, err = e.unknown(now, service, made, device); err != nil {
		return err
	}
	out.Notes = notesOn(now, service, &p, out, target)
	return nil
}

// unknown is whom a segment of the SYN's connection would go to if the connection had begun elsewhere, where that is a predecessor. It echoes the clock of a host
// whose cookies are not ours; one such echo can look like a cookie, several do not.
func (e *Explainer) unknown(now *dataplane.Snapshot, service *model.Service, syn lb.MadeUp, device *net.Interface) (*ballastv1.Chosen, error) {
	if syn.UDP || syn.Flags&model.TCPSyn == 0 || len(service.Predecessor.Addresses) == 0 {
		return nil, nil
	}
	for _, echo := range []uint32{0x12345678, 0x9abcdef0, 0x55aa33cc, 0xe1d2c3b4} {
		segment := lb.MadeUp{Client: syn.Client, VIP: syn.VIP, Flags: model.TCPAck, Timestamps: true, Timestamp: syn.Timestamp, Echo: echo}
		outcomes, err := e.tables.Path().DryRun(segment, device, 1)
		if err != nil {
			return nil, err
		}
		if outcomes[0].Server >= model.PredecessorID {
			return targetOf(now, service, outcomes[0].Server).chosen, nil
		}
	}
	return nil, nil
}

// device is one that packets come in by.
func (e *Explainer) device() (*net.Interface, error) {
	for _, index := range slices.Sorted(slices.Values(e.devices())) {
		if device, err := net.InterfaceByIndex(index); err == nil && device.Flags&net.FlagLoopback == 0 {
			return device, nil
		}
	}
	return nil, api.BadRequest("the program is attached to no device: see ballast ctl status")
}

func meaningOf(name string) string {
	for _, e := range verdict.Explanations() {
		if e.Role == "lb" && e.Name == name {
			return e.Meaning
		}
	}
	return ""
}

func serviceAt(now *dataplane.Snapshot, number uint32) *model.Service {
	if name := now.ServiceAt(number); name != "" {
		return now.Running.Service(name)
	}
	return nil
}

// candidatesOf counts whom dry runs have led to, most first; nil: always to one.
func candidatesOf(now *dataplane.Snapshot, service *model.Service, outcomes []lb.DryOutcome) (all []*ballastv1.Chosen) {
	of := map[uint16]*ballastv1.Chosen{}
	for _, outcome := range outcomes {
		if outcome.Server == 0 {
			continue
		}
		if of[outcome.Server] == nil {
			of[outcome.Server] = targetOf(now, service, outcome.Server).chosen
			all = append(all, of[outcome.Server])
		}
		of[outcome.Server].Runs++
	}
	if len(all) < 2 {
		return nil
	}
	slices.SortFunc(all, func(a, b *ballastv1.Chosen) int { return cmp.Or(cmp.Compare(b.Runs, a.Runs), cmp.Compare(a.Id, b.Id)) })
	return all
}
