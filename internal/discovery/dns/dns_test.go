package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ballast-lb/ballast/internal/discovery/discoverytest"
	"github.com/ballast-lb/ballast/internal/machine/discovery"
	"github.com/ballast-lb/ballast/internal/model"
)

// asking is a name, asked at a server of the test.
func asking(server *discoverytest.DNS, change ...func(*model.ServerSource)) *Source {
	of := model.ServerSource{From: model.SourceDNS, Name: "web.example.com", Resolver: server.Address}
	for _, f := range change {
		f(&of)
	}
	s := New(of)
	s.client.timeout = 200 * time.Millisecond
	return s
}

func srv(o *model.ServerSource) { o.Record = model.RecordSRV }

// show is an answer in a line, servers in the order of addresses.
func show(answer discovery.Answer) string {
	if answer.Err != nil {
		return "error: " + answer.Err.Error()
	}
	slices.SortFunc(answer.Servers, func(a, b discovery.Found) int { return a.Address.Compare(b.Address) })
	var b strings.Builder
	for _, f := range answer.Servers {
		fmt.Fprintf(&b, "%s*%d ", netip.AddrPortFrom(f.Address, f.Port), f.Weight)
	}
	return strings.TrimSpace(b.String() + strings.Join(answer.Notes, "; "))
}

func TestAnswers(t *testing.T) {
	const soa = "example.com. 300 IN SOA ns.example.com. me.example.com. 1 2 3 4 7"
	rcode := func(code int, kinds ...uint16) func(query, answer *dns.Msg, _ string) *dns.Msg {
		return func(query, answer *dns.Msg, _ string) *dns.Msg {
			if len(kinds) == 0 || slices.Contains(kinds, query.Question[0].Qtype) {
				answer.Rcode, answer.Answer = code, nil
			}
			return answer
		}
	}
	chain := []string{}
	for i := range 12 {
		chain = append(chain, fmt.Sprintf("a%d.example.com. 60 IN CNAME a%d.example.com.", i, i+1))
	}
	for name, test := range map[string]struct {
		records []string
		change  func(query, answer *dns.Msg, network string) *dns.Msg
		of      func(*model.ServerSource)
		want    string
		wait    time.Duration
	}{
		"both families":    {records: []string{"web.example.com. 30 IN A 10.0.0.1", "web.example.com. 20 IN AAAA 2001:db8::1", "web.example.com. 30 IN A 10.0.0.2"}, want: "10.0.0.1:0*1 10.0.0.2:0*1 [2001:db8::1]:0*1", wait: 20 * time.Second},
		"one family alone": {records: []string{"web.example.com. 30 IN A 10.0.0.1"}, want: "10.0.0.1:0*1", wait: 30 * time.Second},
		"ipv6 is asked for": {records: []string{"web.example.com. 30 IN A 10.0.0.1", "web.example.com. 20 IN AAAA 2001:db8::1"}, of: func(o *model.ServerSource) { o.Family = model.FamilyIPv6 },
			want: "[2001:db8::1]:0*1", wait: 20 * time.Second},
		"a TTL of 0":         {records: []string{"web.example.com. 0 IN A 10.0.0.1"}, want: "10.0.0.1:0*1"},
		"aliases":            {records: []string{"web.example.com. 40 IN CNAME b.example.net.", "b.example.net. 9 IN CNAME c.example.net.", "c.example.net. 30 IN A 10.0.0.3"}, want: "10.0.0.3:0*1", wait: 9 * time.Second},
		"no such name":       {want: "error: web.example.com does not exist (NXDOMAIN)", wait: longest},
		"no such record":     {records: []string{"web.example.com."}, want: "error: web.example.com has no AAAA record", wait: longest},
		"an alias of nobody": {records: []string{"web.example.com. 40 IN CNAME b.example.net."}, want: "error: b.example.net does not exist (NXDOMAIN)", wait: 40 * time.Second},
		"too many aliases":   {records: append(chain, "web.example.com. 60 IN CNAME a0.example.com."), want: "error: web.example.com: more than 8 aliases in a row", wait: time.Minute},
		"a circle": {records: []string{"web.example.com. 60 IN CNAME b.example.com.", "b.example.com. 60 IN CNAME web.example.com."},
			want: "error: web.example.com: its aliases (CNAME) go round in a circle", wait: time.Minute},
		"the resolver fails":       {records: []string{"web.example.com. 30 IN A 10.0.0.1"}, change: rcode(dns.RcodeServerFailure), want: "the resolver failed (SERVFAIL)", wait: longest},
		"the resolver refuses":     {change: rcode(dns.RcodeRefused), want: "the resolver failed (REFUSED)", wait: longest},
		"one of two queries fails": {records: []string{"web.example.com. 30 IN A 10.0.0.1"}, change: rcode(dns.RcodeServerFailure, dns.TypeAAAA), want: "for web.example.com AAAA: the resolver failed (SERVFAIL)", wait: 30 * time.Second},
		"nothing comes":            {change: func(*dns.Msg, *dns.Msg, string) *dns.Msg { return nil }, want: "i/o timeout", wait: longest},
		"a negative TTL": {change: func(_, answer *dns.Msg, _ string) *dns.Msg {
			record, _ := dns.NewRR(soa)
			answer.Ns = append(answer.Ns, record)
			return answer
		}, want: "NXDOMAIN", wait: 7 * time.Second},
		"another question is answered": {records: []string{"web.example.com. 30 IN A 10.0.0.1"}, change: func(_, answer *dns.Msg, _ string) *dns.Msg {
			answer.Question[0].Name = "other.example.com."
			return answer
		}, want: "the answer is to another question", wait: longest},
		"records of others": {records: []string{"web.example.com. 30 IN A 10.0.0.1"}, change: func(query, answer *dns.Msg, _ string) *dns.Msg {
			record, _ := dns.NewRR("evil.example.com. 1 IN A 10.6.6.6")
			answer.Answer = append(answer.Answer, record)
			return answer
		}, want: "10.0.0.1:0*1", wait: 30 * time.Second},
		"a query is no answer": {change: func(query, _ *dns.Msg, _ string) *dns.Msg { return query }, want: "the answer is to another question", wait: longest},
		"no EDNS": {records: []string{"web.example.com. 30 IN A 10.0.0.1"}, change: func(query, answer *dns.Msg, _ string) *dns.Msg {
			if query.IsEdns0() != nil {
				answer.Rcode, answer.Answer = dns.RcodeFormatError, nil
			}
			return answer
		}, want: "10.0.0.1:0*1", wait: 30 * time.Second},
		"truncated": {records: []string{"web.example.com. 30 IN A 10.0.0.1", "web.example.com. 30 IN A 10.0.0.2"}, change: func(_, answer *dns.Msg, network string) *dns.Msg {
			if network == "udp" {
				answer.Truncated, answer.Answer = true, answer.Answer[:min(1, len(answer.Answer))]
			}
			return answer
		}, want: "10.0.0.1:0*1 10.0.0.2:0*1", wait: 30 * time.Second},
		"truncated by TCP as well": {records: []string{"web.example.com. 30 IN A 10.0.0.1"}, change: func(_, answer *dns.Msg, _ string) *dns.Msg {
			answer.Truncated = true
			return answer
		}, want: "truncated, by TCP as well", wait: longest},
		"by TCP alone": {records: []string{"web.example.com. 30 IN A 10.0.0.1"}, of: func(o *model.ServerSource) { o.Transport = model.TransportTCP }, change: func(_, answer *dns.Msg, network string) *dns.Msg {
			if network == "udp" {
				return nil
			}
			return answer
		}, want: "10.0.0.1:0*1", wait: 30 * time.Second},
		"SRV": {of: srv, records: []string{"web.example.com. 30 IN SRV 10 3 8080 a.example.com.", "web.example.com. 30 IN SRV 10 0 8081 b.example.com.", "web.example.com. 30 IN SRV 20 9 8080 c.example.com.",
			"a.example.com. 30 IN A 10.0.0.1", "b.example.com. 8 IN A 10.0.0.2", "c.example.com. 30 IN A 10.0.0.3"}, want: "10.0.0.1:8080*3 10.0.0.2:8081*1", wait: 8 * time.Second},
		"SRV with large weights": {of: srv, records: []string{"web.example.com. 30 IN SRV 0 60000 80 a.example.com.", "web.example.com. 30 IN SRV 0 30000 80 b.example.com.",
			"a.example.com. 30 IN A 10.0.0.1", "b.example.com. 30 IN A 10.0.0.2"}, want: fmt.Sprintf("10.0.0.1:80*%d 10.0.0.2:80*%d", model.MaxWeight, model.MaxWeight/2), wait: 30 * time.Second},
		"SRV with a target that is gone": {of: srv, records: []string{"web.example.com. 30 IN SRV 0 1 80 a.example.com.", "web.example.com. 30 IN SRV 0 1 80 b.example.com.", "a.example.com. 30 IN A 10.0.0.1"},
			want: "10.0.0.1:80*1 b.example.com does not exist (NXDOMAIN)", wait: 30 * time.Second},
		"SRV with a target that nobody knows of": {of: srv, records: []string{"web.example.com. 30 IN SRV 0 1 80 a.example.com.", "a.example.com. 30 IN A 10.0.0.1"}, change: rcode(dns.RcodeServerFailure, dns.TypeAAAA),
			want: "the resolver failed (SERVFAIL)", wait: 30 * time.Second},
		"SRV of targets without addresses": {of: srv, records: []string{"web.example.com. 30 IN SRV 0 1 80 a.example.com."}, want: "none of the SRV targets of web.example.com has an address", wait: 30 * time.Second},
		"SRV says no":                      {of: srv, records: []string{"web.example.com. 30 IN SRV 0 0 0 ."}, want: "there is no such service (SRV target .)", wait: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := discoverytest.NewDNS(t, "127.0.0.1:0")
			server.Set(t, test.records...)
			server.Change(test.change)
			s := asking(server)
			if test.of != nil {
				s = asking(server, test.of)
			}
			answer, wait := s.Ask(t.Context())
			got := show(answer)
			if answer.Err != nil && !strings.Contains(got, strings.TrimPrefix(test.want, "error: ")) || answer.Err == nil && got != test.want {
				t.Errorf("have %q, want %q", got, test.want)
			}
			if wait != test.wait {
				t.Errorf("is good for %v, want %v", wait, test.wait)
			}
		})
	}
}

// Promise: DNS queries cannot be told in advance: ids and ports are others each time.
func TestQueriesCannotBeGuessed(t *testing.T) {
	server := discoverytest.NewDNS(t, "127.0.0.1:0")
	server.Set(t, "web.example.com. 30 IN A 10.0.0.1")
	s := asking(server)
	const asked = 50
	for range asked {
		s.Ask(t.Context())
	}
	ids := map[uint16]bool{}
	for _, query := range server.Queries() {
		ids[query.Id] = true
		if opt := query.IsEdns0(); opt == nil || opt.UDPSize() != udpSize {
			t.Fatal("a query without EDNS, or with another size")
		}
	}
	if len(ids) < 2*asked-5 { // of 65536, by chance
		t.Errorf("%d ids in %d queries", len(ids), 2*asked)
	}
}

// An answer with another id, and one from another address, are none.
func TestForgedAnswersAreDropped(t *testing.T) {
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	elsewhere, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			query := new(dns.Msg)
			query.Unpack(buffer[:n])
			answer := func(id uint16, address string) []byte {
				m := new(dns.Msg).SetReply(query)
				record, _ := dns.NewRR("web.example.com. 30 IN A " + address)
				m.Id, m.Answer = id, []dns.RR{record}
				text, _ := m.Pack()
				return text
			}
			elsewhere.WriteTo(answer(query.Id, "10.6.6.6"), from)
			socket.WriteTo(answer(query.Id+1, "10.6.6.7"), from)
			socket.WriteTo(answer(query.Id, "10.0.0.1"), from)
		}
	}()
	s := New(model.ServerSource{From: model.SourceDNS, Name: "web.example.com", Resolver: socket.LocalAddr().String(), Family: model.FamilyIPv4})
	if answer, _ := s.Ask(t.Context()); show(answer) != "10.0.0.1:0*1" {
		t.Errorf("have %s", show(answer))
	}
}

func TestResolversAreThoseOfTheHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	s := New(model.ServerSource{From: model.SourceDNS, Name: "web.example.com"})
	s.client.file, s.client.timeout = file, 200*time.Millisecond
	if answer, _ := s.Ask(t.Context()); !strings.Contains(show(answer), "find resolvers") {
		t.Errorf("without a file: %s", show(answer))
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if answer, _ := s.Ask(t.Context()); !strings.Contains(show(answer), "names no resolver") {
		t.Errorf("with an empty one: %s", show(answer))
	}
	if err := os.WriteFile(file, []byte("search example.org\nnameserver 127.0.0.2\nnameserver 127.0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := s.client.resolvers(); err != nil || !slices.Equal(list, []string{"127.0.0.2:53", "127.0.0.1:53"}) {
		t.Errorf("have %v, %v", list, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if answer, _ := s.Ask(ctx); answer.Err == nil {
		t.Error("an answer after the end")
	}
}
