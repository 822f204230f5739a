// table: a limit on the packets of one connection, and a client whose packets visit a scrubber first.
package table

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
)

// Implementation constants.
const (
	policyLimit    = 250             // packets of a connection in a second
	greedyBytes    = 1_500_000       // 1040 packets: four windows of the limit
	minGreedy      = 2 * time.Second // that they take: of the first and of the last there may be only a part
	scrubber       = 5               // server
	minScrubbed    = 100             // packets
	scrubbedBefore = 60              // connections of all clients while one is scrubbed
)

func policySetup() world.Setup {
	return world.Setup{
		Name: "policies", Services: []*fleet.Service{scenario.TableService(scenario.VIP4, model.Table{PacketLimit: policyLimit, Scrubber: world.ServerName(scrubber)})},
		Topology: tableTopology(make([]world.ServerNode, scrubber)...),
	}
}

func (x *tableTrial) runPolicies() {
	running := x.Traffic.Generate(scenario.Downloads(x.Fleet.Target(), 24), scenario.Browsers(x.Fleet.Target(), 12), scenario.Shorts(x.Fleet.Target(), 40))
	x.Traffic.Busy(running, 60)
	suspect := netip.MustParseAddr(x.Network.SourceAddresses(false)[1])
	s := &scrubbing{tableTrial: x, suspect: suspect}
	x.Series(running,
		world.Step{What: "one connection is greedy", Do: x.uploadGreedily},
		world.Step{What: fmt.Sprintf("%s is suspect", suspect), Do: func() { s.begin(true) }},
		world.Step{What: "its packets visit the scrubber, no others do", Do: func() { s.watch(running) }},
		world.Step{What: fmt.Sprintf("%s is suspect no more", suspect), Do: func() { s.begin(false) }},
		world.Step{What: "nothing visits the scrubber", Do: func() { s.judgeQuiet(running) }})
}

// uploadGreedily uploads as fast as it goes. What is dropped must be its own: it repeats it.
func (x *tableTrial) uploadGreedily() {
	before := script.Must(x.Counters.Verdicts(x.lbs...))
	greedy := x.Clients.Dial(x.Network.SourceAddresses(false)[0])
	defer greedy.Close()
	begin := time.Now()
	script.Check(greedy.SetDeadline(begin.Add(time.Minute)))
	request, err := http.NewRequest(http.MethodPut, "http://"+x.Fleet.Target()+world.PathUpload+"greedy", bytes.NewReader(make([]byte, greedyBytes)))
	if err == nil {
		err = request.Write(greedy)
	}
	script.Checkf(err, "upload greedily")
	answer, err := http.ReadResponse(bufio.NewReader(greedy), request)
	script.Checkf(err, "upload greedily")
	took := time.Since(begin)
	after := script.Must(x.Counters.Verdicts(x.lbs...))
	own, others := 0, 0
	sockets := script.Must(x.Lab.Space(world.ClientNode).Established())
	for _, socket := range sockets {
		if socket.Local.String() == greedy.LocalAddr().String() {
			own = int(socket.Retransmitted)
		} else {
			others += int(socket.Retransmitted)
		}
	}
	dropped := int(after["dropped_over_limit"] - before["dropped_over_limit"])
	x.result.Measure("greedy_seconds", world.Round(took))
	x.result.Measure("greedy_retransmitted", float64(own))
	x.result.Measure("others_retransmitted", float64(others))
	x.result.Measure("dropped_over_limit", float64(dropped))
	x.result.Expect(answer.StatusCode/100 == 2, "the greedy upload was answered with %s", answer.Status)
	x.result.Expect(dropped > 0 && took > minGreedy, "the limit dropped %d packets of an upload that took %v", dropped, took)
	// Acknowledgements are not repeated.
	x.result.Expect(dropped <= own+own/10+10 && others <= own/2, "the limit dropped %d packets; the greedy connection repeated %d, all others %d", dropped, own, others)
}

// scrubbing is the suspicion against one client.
type scrubbing struct {
	*tableTrial
	suspect netip.Addr
}

// begin makes the client suspect on every load balancer, or ends that, and waits until its entries say so.
func (s *scrubbing) begin(suspect bool) {
	verb := "suspect"
	if !suspect {
		verb = "clear"
	}
	for _, lb := range s.lbs {
		script.Must(s.Operator.On(lb, "connections", verb, "--service", "web", "--client", s.suspect.String()))
	}
	await.Promised(s.Context, await.Deadline, "entries tell who is suspect", func() error {
		tables, err := s.Tables.Open(s.lbs...)
		if err != nil {
			return err
		}
		found := 0
		for lb, table := range tables {
			for client, one := range table {
				if want := suspect && client.Addr() == s.suspect; one.Suspect != want {
					return fmt.Errorf("%s lists %v as suspect: %t", lb, client, one.Suspect)
				}
				if one.Suspect {
					found++
				}
			}
		}
		if suspect && found == 0 {
			return errors.New("no entry is suspect")
		}
		return nil
	})
}

// handedOn is what the scrubber's agent sent on, and what the load balancers sent there.
func (s *scrubbing) handedOn() (on, sent uint64, err error) {
	counters, err := s.Daemons.Client(world.ServerName(scrubber)).Counters(s.Context)
	if err != nil {
		return 0, 0, err
	}
	verdicts, err := s.Counters.Verdicts(s.lbs...)
	return counters["handed_on"], verdicts["forwarded_by_scrubber"], err
}

// watch looks at what passes the scrubber's link while clients open connections.
func (s *scrubbing) watch(running *world.Load) {
	link := script.Must(s.Network.OpenFrames(world.RouterNode, world.ServerName(scrubber)))
	defer link.Close()
	visits, done := map[netip.Addr]int{}, make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			frame, err := link.Receive()
			if err != nil {
				return
			}
			if segment, ok := frames.Tunnelled(frame); ok {
				visits[segment.Client.Addr()]++
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	err := script.Try(func() {
		s.Traffic.Busy(running, scrubbedBefore)
		await.Promised(s.Context, world.Stall, "the scrubber has handed on what it was sent", func() error {
			on, sent, err := s.handedOn()
			if err == nil && (on < minScrubbed || on+on/20 < sent) {
				err = fmt.Errorf("it was sent %d packets and handed on %d", sent, on)
			}
			return err
		})
	})
	close(done)
	watching.Wait()
	script.Check(err)
	s.result.Measure("scrubber_packets_of_the_suspect", float64(visits[s.suspect]))
	s.result.Expect(visits[s.suspect] > 0, "nothing of %s passed the scrubber's link", s.suspect)
	delete(visits, s.suspect)
	s.result.Expect(len(visits) == 0, "packets of others passed the scrubber's link: %v", visits)
}

// judgeQuiet: nothing is sent to the scrubber any more.
func (s *scrubbing) judgeQuiet(running *world.Load) {
	_, before, err := s.handedOn()
	script.Check(err)
	s.Traffic.Busy(running, scrubbedBefore)
	on, after, err := s.handedOn()
	s.result.Measure("scrubber_handed_on", float64(on))
	s.result.Measure("scrubber_was_sent", float64(after))
	s.result.Expect(before == after, "%d packets were sent to the scrubber though nobody is suspect", after-before)
	script.Check(err)
}
