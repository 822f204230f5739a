package model

import "testing"

// Promise: People read names of Kubernetes' services with slashes, and each form is of one name; other words of a text stay.
func TestPeopleReadNamesOfKubernetes(t *testing.T) {
	const long = "default:a-name-that-is-longer-than-names-of-a-fleet-may.0123456789"
	for name, shown := range map[string]string{
		"default:web:tcp":              "default/web/tcp",
		"east:default:web:udp":         "east/default/web/udp",
		"default:edge:tcp:80":          "default/edge/tcp/80",
		"kube-system:my.gateway:udp:1": "kube-system/my.gateway/udp/1",
		long[:63-11] + ".0123456789":   "default/" + long[8:63-11] + ".0123456789",
	} {
		if got := ForPeople(name); got != shown || FromPeople(got) != name {
			t.Errorf("%s: %s, and back %s", name, got, FromPeople(got))
		}
		for _, around := range [][2]string{{"service ", ": no server is left"}, {`{"service":"`, `"}`}, {"services[", "].vip: missing"}, {"of ", ", 3 of "}, {"see ", "."}, {"a\t", "\n"}} {
			if text := around[0] + name + around[1]; ForPeople(text) != around[0]+shown+around[1] {
				t.Errorf("%s: %s", text, ForPeople(text))
			}
		}
	}
	for _, other := range []string{"web", "web:v2", "2001:db8::1", "[2001:db8::1]:80", "2001:db8:1:2:3:4:5:6", "10.0.0.1:80", "20:41:07", "tcp:80", "web:tcp", "n1:lb", "https://c1:6443", "a:b:c:d:tcp", "02:00:00:00:00:01", "spiffe:x:tcpdump"} {
		if ForPeople(other) != other {
			t.Errorf("%s: %s", other, ForPeople(other))
		}
	}
}
