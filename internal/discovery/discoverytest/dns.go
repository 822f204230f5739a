// Package discoverytest has sources of servers that say what a test wants.
package discoverytest

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// DNS is a server of the DNS on loopback, or on an address that it is given, by UDP and TCP.
type DNS struct {
	Address string

	mutex   sync.Mutex
	records map[string][]dns.RR // by name and type
	change  func(query, answer *dns.Msg, network string) *dns.Msg
	queries []*dns.Msg
}

// tries are how often a port that is free for UDP may be another test's for TCP.
const tries = 20

// NewDNS returns one that knows no name, until the test ends. listen is host:port, which has to be free; port 0: one that is.
func NewDNS(t testing.TB, listen string) *DNS {
	t.Helper()
	d := &DNS{records: map[string][]dns.RR{}}
	var packets net.PacketConn
	var stream net.Listener
	err := errors.New("not tried")
	for try := 0; err != nil; try++ {
		if packets, err = net.ListenPacket("udp", listen); err != nil {
			t.Fatal(err)
		}
		d.Address = packets.LocalAddr().String()
		if stream, err = net.Listen("tcp", d.Address); err != nil {
			packets.Close()
			if try == tries || d.Address == listen {
				t.Fatal(err)
			}
		}
	}
	for _, server := range []*dns.Server{{PacketConn: packets}, {Listener: stream}} {
		network := "tcp"
		if server.PacketConn != nil {
			network = "udp"
		}
		server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
			if answer := d.answer(query, network); answer != nil {
				w.WriteMsg(answer)
			}
		})
		go server.ActivateAndServe()
		t.Cleanup(func() { server.Shutdown() })
	}
	return d
}

// Set makes records, in the form of zone files, those of their names and types. A name that is given alone exists without any.
func (d *DNS) Set(t testing.TB, records ...string) {
	t.Helper()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.records = map[string][]dns.RR{}
	for _, text := range records {
		if !strings.Contains(text, " ") {
			d.records[strings.ToLower(text)] = nil
			continue
		}
		record, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.ToLower(record.Header().Name)
		d.records[name] = append(d.records[name], record)
	}
}

// Change has something done to each answer before it is sent; nil: nothing. What returns nil sends none.
func (d *DNS) Change(change func(query, answer *dns.Msg, network string) *dns.Msg) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.change = change
}

// Queries returns what was asked.
func (d *DNS) Queries() []*dns.Msg {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return append([]*dns.Msg{}, d.queries...)
}

// answer is that of a resolver: aliases are followed.
func (d *DNS) answer(query *dns.Msg, network string) *dns.Msg {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.queries = append(d.queries, query.Copy())
	answer := new(dns.Msg).SetReply(query)
	answer.RecursionAvailable = true
	name, known := strings.ToLower(query.Question[0].Name), false
	for range 10 {
		var records []dns.RR
		records, known = d.records[name]
		alias := ""
		for _, record := range records {
			if cname, ok := record.(*dns.CNAME); ok {
				answer.Answer, alias = append(answer.Answer, record), strings.ToLower(cname.Target)
			} else if record.Header().Rrtype == query.Question[0].Qtype {
				answer.Answer = append(answer.Answer, record)
			}
		}
		if alias == "" {
			break
		}
		name = alias
	}
	if !known {
		answer.Rcode = dns.RcodeNameError
	}
	if d.change != nil {
		return d.change(query, answer, network)
	}
	return answer
}
