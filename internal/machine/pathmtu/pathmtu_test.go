package pathmtu

import (
	"reflect"
	"testing"
)

func TestOnlyADeviceThatTakesLessThanIsSentDropsSilently(t *testing.T) {
	server := func(mtu, segment, headers int, paths map[string]int) []Server {
		return []Server{{Name: "s1", Device: "eth0", MTU: mtu, Segment: segment, Overhead: 20, Headers: headers, Paths: paths}}
	}
	const lost = "clients of 1 server (s1) lose packets of more than 1380 bytes without ICMP: eth0 there takes 1400 bytes, and "
	for name, test := range map[string]struct {
		servers []Server
		want    []string
	}{
		"nothing is known of the device": {server(0, 0, 40, map[string]int{"lb1": 1500}), nil},
		"nobody sends there":             {server(1400, 0, 40, nil), nil},
		"the path is as narrow":          {server(1400, 0, 40, map[string]int{"lb1": 1400}), nil}, // load balancers answer by ICMP
		"room for all":                   {server(1520, 0, 40, map[string]int{"lb1": 9000}), nil},
		"a wide path":                    {server(1400, 0, 40, map[string]int{"lb1": 1500}), []string{lost + "lb1 sends up to 1500 with the tunnel: ip link set eth0 mtu 1500 there, or ip route change default via ROUTER advmss 1340"}},
		"of one of two":                  {server(1400, 0, 40, map[string]int{"lb1": 1400, "lb2": 1600}), []string{lost + "lb2 sends up to 1520 with the tunnel: ip link set eth0 mtu 1520 there, or ip route change default via ROUTER advmss 1340"}},
		"segments that fit":              {server(1400, 1340, 40, map[string]int{"lb1": 1500}), nil},
		"segments that do not fit":       {server(1400, 1360, 40, map[string]int{"lb1": 1500}), []string{lost + "lb1 sends up to 1420 with the tunnel: ip link set eth0 mtu 1420 there, or ip route change default via ROUTER advmss 1340"}},
		"UDP announces no segments":      {server(1400, 1340, 0, map[string]int{"lb1": 1500}), []string{lost + "lb1 sends up to 1500 with the tunnel: ip link set eth0 mtu 1500 there"}},
	} {
		if have := Problems(test.servers); !reflect.DeepEqual(have, test.want) {
			t.Errorf("%s: %q\nwant %q", name, have, test.want)
		}
	}
}

func TestTheSameFaultOfSeveralServersIsOneProblem(t *testing.T) {
	var servers []Server
	for _, name := range []string{"s1", "s2", "s3", "s4", "s4"} { // s4 of two services
		servers = append(servers, Server{Name: name, Device: "eth0", MTU: 1400, Overhead: 20, Headers: 40, Paths: map[string]int{"lb1": 1500, "lb2": 1500}})
	}
	if have := Problems(servers); len(have) != 1 || have[0][:47] != "clients of 4 servers (s1, s2, s3 and 1 more) lo" {
		t.Errorf("%q", have)
	}
}
