package ctl_test

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
)

func TestExplainShowsEachLoadBalancer(t *testing.T) { byEveryWay(t, explains) }

func explains(t *testing.T, ctl *terminal) {
	ctl.memory.Explanations = []*ballastv1.Explanation{
		{Node: "lb1", Interface: "eth0", Service: "web", Verdict: "forwarded_new", Rung: "new", Meaning: "a new connection", Action: "send", Runs: 64,
			Unknown: &ballastv1.Chosen{Name: "predecessor", Address: "10.0.0.9"},
			Server:  &ballastv1.Chosen{Name: "s1", Address: "10.0.0.1", Id: 1}, Path: "eth0 02:00:00:00:00:01 mtu 1500", Headers: []string{"Ethernet a > b", "IPv4 c > d"},
			Candidates: []*ballastv1.Chosen{{Name: "s1", Address: "10.0.0.1", Id: 1, Runs: 40}, {Name: "s2", Address: "10.0.0.2", Id: 2, Runs: 24}}, Notes: []string{"a note"}},
		{Node: "lb2", Error: "does not answer"},
		{Node: "lb4", Action: "send", Runs: 2, Candidates: []*ballastv1.Chosen{{Name: "s1", Runs: 1}}}, // which contradicts itself
		{Node: "lb3", Interface: "eth0", Verdict: "dropped_malformed", Rung: "dropped", Meaning: "headers that contradict themselves", Action: "drop"},
	}
	ctl.expect("explain 203.0.113.7:40312 198.51.100.10:443", strings.TrimLeft(`
lb1: SYN sent to one of the candidates, such as s1 (10.0.0.1, id 1) of service web; segments of connections that began elsewhere: sent to predecessor (10.0.0.9)
  verdict    forwarded_new: a new connection
  rung       new
  candidates s1 (10.0.0.1, id 1) in 40 of 64 dry runs
             s2 (10.0.0.2, id 2) in 24 of 64 dry runs
  in by      eth0
  path       eth0 02:00:00:00:00:01 mtu 1500
  frame      Ethernet a > b
             IPv4 c > d
  note       a note

lb2 does not say: does not answer

lb4: SYN sent back or on, to no server
  verdict    : 
  candidates s1 () in 1 of 2 dry runs

lb3: SYN dropped
  verdict    dropped_malformed: headers that contradict themselves
  rung       dropped
  in by      eth0
`, "\n"))
	for flags, packet := range map[string]string{"--protocol udp": "datagram", "--tcp-flags psh,ack --tsecr 7": "PSH,ACK with TSecr 7"} {
		ctl.expect("explain 203.0.113.7:40312 198.51.100.10:443 "+flags, "lb3: "+packet+" dropped\n")
	}
	ctl.expect("explain 203.0.113.7:40312 198.51.100.10:443 -o json", `"packet": "SYN"`, `"unknown": {`, `"verdict": "forwarded_new"`, `"runs": 24`, `"error": "does not answer"`)
	ctl.memory.Explanations = ctl.memory.Explanations[1:2]
	if _, err := ctl.try("explain", "203.0.113.7:40312", "198.51.100.10:443"); err == nil || !strings.Contains(err.Error(), "no load balancer says") {
		t.Errorf("where nobody answers: %v", err)
	}
}

func TestExplainRefusesWhatIsNoPacket(t *testing.T) {
	for arguments, why := range map[string]string{
		"203.0.113.7 198.51.100.10:443":                                       `client "203.0.113.7": give ADDRESS:PORT`,
		"203.0.113.7:1 [2001:db8::10]:443":                                    "of two families",
		"203.0.113.7:1 198.51.100.10:443 --tcp-flags SYN,URGENT":              `"URGENT" is none of FIN, SYN, RST, PSH, ACK`,
		"203.0.113.7:1 198.51.100.10:443 --protocol udp --tsecr 7":            "--tsecr is of TCP",
		"203.0.113.7:1 198.51.100.10:443 --connection-id 00":                  "--connection-id is of QUIC",
		"203.0.113.7:1 198.51.100.10:443 --protocol udp --connection-id what": "give up to 20 bytes in hexadecimal",
		"203.0.113.7:1 198.51.100.10:443 --bytes 1461":                        "use 0 to 1460",
	} {
		if _, err := clitest.Run(append([]string{"ctl", "--socket", "/nowhere", "explain"}, strings.Fields(arguments)...)...); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %s", arguments, err, why)
		}
	}
}
