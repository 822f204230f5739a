package config

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// sourced is a file for controllers with one service and its servers.
func sourced(servers string) string {
	return "services:\n  - name: web\n    vip: 198.51.100.10\n    ports: [80]\n    servers: " + servers + "\n"
}

func TestWhoNamesServersStandsInPlaceOfTheirList(t *testing.T) {
	for text, want := range map[string]model.ServerSource{
		"{from: dns, name: _web._tcp.example.com, record: srv, family: ipv6, resolver: '[2001:db8::53]:5353', transport: tcp}": {From: model.SourceDNS, Name: "_web._tcp.example.com",
			Record: model.RecordSRV, Family: model.FamilyIPv6, Resolver: "[2001:db8::53]:5353", Transport: model.TransportTCP},
		"{from: consul, service: web, agent: main, datacenter: east, tag: v2}": {From: model.SourceConsul, Service: "web", Agent: "main", Datacenter: "east", Tag: "v2"},
		"{from: file, path: shop/web.yaml}":                                    {From: model.SourceFile, Path: "shop/web.yaml"},
	} {
		t.Run(want.String(), func(t *testing.T) { readAndWriteSource(t, text, want) })
	}
}

func readAndWriteSource(t *testing.T, text string, want model.ServerSource) {
	draft, err := ParseDraft("fleet.yaml", []byte(sourced(text)))
	if err != nil {
		t.Fatal(err)
	}
	s := &draft.Fleet.Services[0]
	if s.Source != want || s.Servers != nil {
		t.Errorf("read %+v, %v", s.Source, s.Servers)
	}
	if err := draft.Validate(); err != nil {
		t.Error(err)
	}
	s.ApplyDefaults()
	s.Servers = append(s.Servers, model.Server{Name: "10.0.0.1", ID: 1, Weight: 1}) // that the source has named
	written, err := Marshal(draft.Fleet)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseDraft("again.yaml", written)
	if err != nil || again.Fleet.Services[0].Source != want || len(again.Fleet.Services[0].Servers) != 0 || strings.Contains(string(written), "10.0.0.1") {
		t.Errorf("written as %s, %v", written, err)
	}
}

// Promise: A source of servers that makes no sense is refused with file, line, field and remedy.
func TestWrongSourcesAreRefusedByField(t *testing.T) {
	for servers, want := range map[string]string{
		"{}":                                                                  "servers.from: missing: say who names them",
		"{from: list}":                                                        "servers.from: missing",
		"{name: web.example.com}":                                             "servers.from: missing",
		"{from: dsn, name: web.example.com}":                                  `servers.from: unknown value "dsn": use one of list, dns`,
		"{from: dns}":                                                         "servers.name: missing: write it like web.example.com",
		"{from: dns, name: 10.0.0.1}":                                         `servers.name: "10.0.0.1" is an address`,
		"{from: dns, name: a..b}":                                             `servers.name: "a..b" is not a name of the DNS`,
		"{from: dns, name: 'a b'}":                                            "is not a name of the DNS",
		"{from: dns, name: a.b, namee: c}":                                    "servers.namee: unknown key: did you mean name?",
		"{from: dns, name: a.b, record: mx}":                                  "servers.record: unknown value",
		"{from: dns, name: a.b, resolver: ns.example.com}":                    `servers.resolver: "ns.example.com" is not the address of a resolver`,
		"{from: dns, name: a.b, resolver: '10.0.0.53:0'}":                     `servers.resolver: "10.0.0.53:0" is not the address of a resolver`,
		"{from: dns, name: a.b, resolver: '0.0.0.0'}":                         "is not the address of a resolver",
		"{from: dns, name: a.b, servers: [{address: 1.2}]}":                   "unknown key",
		"{from: dns, name: a.b, path: web.yaml}":                              "servers.path: servers from dns have none: remove it, or use from: file",
		"{from: consul}":                                                      "servers.service: missing: name the service in Consul, like web",
		"{from: consul, service: a/b}":                                        `servers.service: "a/b" is not a name: use letters, digits and . _ -`,
		"{from: consul, service: '..'}":                                       `servers.service: ".." is not a name`,
		"{from: consul, service: web, agent: ../key}":                         `servers.agent: "../key" is not a name`,
		"{from: consul, service: web, datacenter: 'a&b'}":                     `servers.datacenter: "a&b" is not a name`,
		"{from: consul, service: web, address: http://a}":                     "servers.address: unknown key",
		"{from: consul, service: web, name: a.b}":                             "servers.name: servers from consul have none: remove it, or use from: dns",
		"{from: consul, service: web, tag: " + strings.Repeat("a", 254) + "}": "servers.tag: 254 bytes: use at most 253 bytes",
		"{from: file}":                                                        "servers.path: missing: name a file below files/",
		"{from: file, path: /etc/shadow}":                                     `servers.path: "/etc/shadow" is not below it`,
		"{from: file, path: a/../../b}":                                       "is not below it",
		"{from: file, path: web.yaml, agent: a}":                              "servers.agent: servers from file have none: remove it, or use from: consul",
	} {
		draft, err := ParseDraft("fleet.yaml", []byte(sourced(servers)))
		if err == nil {
			err = draft.Validate()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "fleet.yaml:5: services[0].") {
			t.Errorf("%s: %v, want %s", servers, err, want)
		}
	}
	file := mustParse(t, exampleKeys+sourced("{from: dns, name: web.example.com}"))
	if err := file.CheckWithoutControllers(); err == nil || !strings.Contains(err.Error(), "services[0].servers.from: servers from dns need controllers") {
		t.Errorf("by a file: %v", err)
	}
}
