// table: a limit on the packets of one connection, and a client whose packets visit a scrubber first.
package lab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/frames"
)

// Implementation constants.
const (
	policyLimit    = 250             // packets of a connection in a second
	greedyBytes    = 1_500_000       // 1040 packets: four windows of the limit
	greedyLeast    = 2 * time.Second // that they take: of the first and of the last there may be only a part
	scrubber       = 5               // server
	scrubbedLeast  = 100             // packets
	scrubbedBefore = 60              // connections of all clients while one is scrubbed
)

func policySetup() setup {
	return setup{
		name: "policies", services: []*service{tableService(vip4, serviceTable{PacketLimit: policyLimit, Scrubber: serverName(scrubber)})},
		topology: tableTopology(make([]ServerNode, scrubber)...),
	}
}

func (x *tableTrial) playPolicies() error {
	running, err := x.generate(downloads(x.target(), 24), browsers(x.target(), 12), shorts(x.target(), 40))
	if err != nil {
		return err
	}
	if err := x.busy(running, 60); err != nil {
		return err
	}
	suspect := netip.MustParseAddr(x.topo.sourceAddresses(false)[1])
	s := &scrubbing{tableTrial: x, suspect: suspect}
	return x.series(running,
		step{"one connection is greedy", x.playGreedy},
		step{fmt.Sprintf("%s is suspect", suspect), func() error { return s.begin(true) }},
		step{"its packets visit the scrubber, no others do", func() error { return s.watch(running) }},
		step{fmt.Sprintf("%s is suspect no more", suspect), func() error { return s.begin(false) }},
		step{"nothing visits the scrubber", func() error { return s.judgeQuiet(running) }})
}

// playGreedy uploads as fast as it goes. What is dropped must be its own: it repeats it.
func (x *tableTrial) playGreedy() error {
	before, err := x.verdicts(x.lbs...)
	if err != nil {
		return err
	}
	greedy, err := x.dial(x.topo.sourceAddresses(false)[0])
	if err != nil {
		return err
	}
	defer greedy.Close()
	begin := time.Now()
	if err := greedy.SetDeadline(begin.Add(time.Minute)); err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPut, "http://"+x.target()+pathUpload+"greedy", bytes.NewReader(make([]byte, greedyBytes)))
	if err == nil {
		err = request.Write(greedy)
	}
	if err != nil {
		return fmt.Errorf("upload greedily: %w", err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(greedy), request)
	if err != nil {
		return fmt.Errorf("upload greedily: %w", err)
	}
	took := time.Since(begin)
	after, err := x.verdicts(x.lbs...)
	if err != nil {
		return err
	}
	own, others := 0, 0
	sockets, err := x.space(clientNode).Established()
	if err != nil {
		return err
	}
	for _, socket := range sockets {
		if socket.Local.String() == greedy.LocalAddr().String() {
			own = int(socket.Retransmitted)
		} else {
			others += int(socket.Retransmitted)
		}
	}
	dropped := int(after["dropped_over_limit"] - before["dropped_over_limit"])
	x.result.measure("greedy_seconds", round(took))
	x.result.measure("greedy_retransmitted", float64(own))
	x.result.measure("others_retransmitted", float64(others))
	x.result.measure("dropped_over_limit", float64(dropped))
	x.result.expect(answer.StatusCode/100 == 2, "the greedy upload was answered with %s", answer.Status)
	x.result.expect(dropped > 0 && took > greedyLeast, "the limit dropped %d packets of an upload that took %v", dropped, took)
	// Acknowledgements are not repeated.
	x.result.expect(dropped <= own+own/10+10 && others <= own/2, "the limit dropped %d packets; the greedy connection repeated %d, all others %d", dropped, own, others)
	return nil
}

// scrubbing is the suspicion against one client.
type scrubbing struct {
	*tableTrial
	suspect netip.Addr
}

// begin makes the client suspect on every load balancer, or ends that, and waits until its entries say so.
func (s *scrubbing) begin(suspect bool) error {
	verb := "suspect"
	if !suspect {
		verb = "clear"
	}
	for _, lb := range s.lbs {
		if _, err := s.tell(lb, "connections", verb, "--service", "web", "--client", s.suspect.String()); err != nil {
			return err
		}
	}
	return awaitPromised(s.ctx, daemonDeadline, "entries tell who is suspect", func() error {
		tables, err := s.tables(s.lbs...)
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
	counters, err := s.client(serverName(scrubber)).Counters(s.ctx)
	if err != nil {
		return 0, 0, err
	}
	verdicts, err := s.verdicts(s.lbs...)
	return counters["handed_on"], verdicts["forwarded_by_scrubber"], err
}

// watch looks at what passes the scrubber's link while clients open connections.
func (s *scrubbing) watch(running *load) error {
	link, err := s.openFrames(routerNode, serverName(scrubber))
	if err != nil {
		return err
	}
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
	err = s.busy(running, scrubbedBefore)
	if err == nil {
		err = awaitPromised(s.ctx, stall, "the scrubber has handed on what it was sent", func() error {
			on, sent, err := s.handedOn()
			if err == nil && (on < scrubbedLeast || on+on/20 < sent) {
				err = fmt.Errorf("it was sent %d packets and handed on %d", sent, on)
			}
			return err
		})
	}
	close(done)
	watching.Wait()
	if err != nil {
		return err
	}
	s.result.measure("scrubber_packets_of_the_suspect", float64(visits[s.suspect]))
	s.result.expect(visits[s.suspect] > 0, "nothing of %s passed the scrubber's link", s.suspect)
	delete(visits, s.suspect)
	s.result.expect(len(visits) == 0, "packets of others passed the scrubber's link: %v", visits)
	return nil
}

// judgeQuiet: nothing is sent to the scrubber any more.
func (s *scrubbing) judgeQuiet(running *load) error {
	_, before, err := s.handedOn()
	if err != nil {
		return err
	}
	if err := s.busy(running, scrubbedBefore); err != nil {
		return err
	}
	on, after, err := s.handedOn()
	s.result.measure("scrubber_handed_on", float64(on))
	s.result.measure("scrubber_was_sent", float64(after))
	s.result.expect(before == after, "%d packets were sent to the scrubber though nobody is suspect", after-before)
	return err
}
