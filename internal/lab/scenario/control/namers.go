package control

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// answers is what a namer at the operator's node says from now on.
type answers struct {
	trial   *world.Trial
	port    uint16
	serve   func(a *answers, stream net.Listener, packets net.PacketConn) (end func())
	servers atomic.Pointer[[]netip.Addr]
	fault   atomic.Value // string; "": none
	at      string       // address:port where it has listened
	end     func()       // nil: it does not run
}

func (a *answers) name(servers ...netip.Addr) {
	a.servers.Store(&servers)
	a.fault.Store("")
	if a.end == nil {
		stream, packets := a.trial.ListenAtOperator(a.port)
		a.at, a.end = stream.Addr().String(), a.serve(a, stream, packets)
	}
}

// fails makes it give such answers.
func (a *answers) fails(how, says string) fault {
	return fault{how, func() { a.fault.Store(how) }, says}
}

// dies ends it.
func (a *answers) dies(says string) fault {
	return fault{"it is dead", func() {
		a.end()
		a.end = nil
	}, says}
}

// dnsNamer is a server of the DNS.
type dnsNamer struct{ *answers }

const domain = "web.example.com."

func newDNS(t *world.Trial) namer {
	return dnsNamer{&answers{trial: t, port: 53, serve: func(a *answers, stream net.Listener, packets net.PacketConn) func() {
		by := []*dns.Server{{PacketConn: packets}, {Listener: stream}}
		for _, one := range by {
			one.Handler = dns.HandlerFunc(a.resolve)
			go one.ActivateAndServe()
		}
		return func() {
			stream.Close()
			packets.Close()
		}
	}}}
}

func (a *answers) resolve(w dns.ResponseWriter, query *dns.Msg) {
	answer := new(dns.Msg).SetReply(query)
	switch a.fault.Load() {
	case "SERVFAIL":
		answer.Rcode = dns.RcodeServerFailure
	case "NXDOMAIN":
		answer.Rcode = dns.RcodeNameError
	case "no record":
	default:
		for _, address := range *a.servers.Load() {
			if query.Question[0].Qtype == dns.TypeA {
				answer.Answer = append(answer.Answer, &dns.A{Hdr: dns.RR_Header{Name: domain, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: address.AsSlice()})
			}
		}
	}
	w.WriteMsg(answer) // whoever does not get it asks again
}

func (d dnsNamer) settings() []string {
	return []string{"--source-from", "dns", "--source-name", domain, "--source-resolver", d.at}
}

func (d dnsNamer) faults() []fault {
	return []fault{d.fails("SERVFAIL", "SERVFAIL"), d.fails("NXDOMAIN", "NXDOMAIN"), d.fails("no record", "has no A"), d.dies("its servers stay as they are")}
}

// consulNamer is an agent of Consul that answers at once.
type consulNamer struct{ *answers }

func newConsul(t *world.Trial) namer {
	return consulNamer{&answers{trial: t, port: 8500, serve: func(a *answers, stream net.Listener, packets net.PacketConn) func() {
		packets.Close()
		writeSource(t, "consul/default.yaml", "address: http://"+stream.Addr().String())
		server := &http.Server{Handler: http.HandlerFunc(a.catalogue)}
		go server.Serve(stream)
		return func() { server.Close() }
	}}}
}

func (a *answers) catalogue(w http.ResponseWriter, _ *http.Request) {
	type service struct {
		Address string
		Port    int
	}
	list := []map[string]service{}
	switch a.fault.Load() {
	case "500":
		http.Error(w, "No cluster leader", http.StatusInternalServerError)
		return
	case "no instance":
	default:
		for _, address := range *a.servers.Load() {
			list = append(list, map[string]service{"Service": {address.String(), 80}})
		}
	}
	w.Header().Set("X-Consul-Index", "0") // do not wait for a change
	w.Header().Set("X-Consul-LastContact", "0")
	json.NewEncoder(w).Encode(list) // whoever does not get it asks again
}

func (c consulNamer) settings() []string {
	return []string{"--source-from", "consul", "--source-service", "web"}
}

func (c consulNamer) faults() []fault {
	return []fault{c.fails("500", "status 500"), c.fails("no instance", "it names no server"), c.dies("connection refused")}
}

// fileNamer is a file on the controllers' hosts.
type fileNamer struct{ trial *world.Trial }

const listed = "files/web.yaml"

func newFile(t *world.Trial) namer { return fileNamer{t} }

func (f fileNamer) settings() []string {
	return []string{"--source-from", "file", "--source-path", filepath.Base(listed)}
}

func (f fileNamer) name(servers ...netip.Addr) {
	var text strings.Builder
	for _, address := range servers {
		fmt.Fprintf(&text, "- {address: %s}\n", address)
	}
	writeSource(f.trial, listed, text.String())
}

func (f fileNamer) faults() []fault {
	return []fault{
		{"the file is gone", func() { script.Check(os.Remove(filepath.Join(f.trial.Controllers.SourcesDir(), listed))) }, "no such file"},
		{"it is no list", func() { writeSource(f.trial, listed, "- {address: 10.") }, "web.yaml:1"},
		{"it is empty", func() { writeSource(f.trial, listed, "[]") }, "it names no server"},
	}
}

// writeSource replaces a file of the controllers' --sources-dir.
func writeSource(t *world.Trial, name, text string) {
	path := filepath.Join(t.Controllers.SourcesDir(), name)
	script.Check(os.MkdirAll(filepath.Dir(path), 0o755))
	script.Check(os.WriteFile(path+".new", []byte(text), 0o644))
	script.Check(os.Rename(path+".new", path))
}
