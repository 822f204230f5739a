package filtered

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// view is of server sN, behind router rM.
func view(balancer string, n, router int, answers bool) View {
	return View{Balancer: balancer, Server: fmt.Sprint("s", n), Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), Protocol: "IP protocol 4",
		Source: netip.MustParseAddr("10.0.1.1"), Hop: fmt.Sprint("r", router), Answers: answers}
}

func servers(causes []Cause) (lists []string) {
	for _, c := range causes {
		lists = append(lists, strings.Join(c.Balancers, " ")+": "+strings.Join(c.Servers, " "))
	}
	return lists
}

func TestOneLoadBalancerNamesATunnelOnlyWhereNobodyAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		views []View
		want  []string
	}{
		"nothing is seen":                      {nil, nil},
		"all answer":                           {[]View{view("lb1", 1, 1, true), view("lb1", 2, 1, true)}, nil},
		"one of three is down":                 {[]View{view("lb1", 1, 1, false), view("lb1", 2, 1, true), view("lb1", 3, 1, true)}, nil},
		"a single server may as well be down":  {[]View{view("lb1", 1, 1, false)}, nil},
		"none answers":                         {[]View{view("lb1", 1, 1, false), view("lb1", 2, 2, false)}, []string{"lb1: s1 s2"}},
		"none behind one router":               {[]View{view("lb1", 1, 1, false), view("lb1", 2, 1, false), view("lb1", 3, 2, true)}, []string{"lb1: s1 s2"}},
		"another service of the same answers":  {[]View{view("lb1", 1, 1, false), view("lb1", 2, 1, false), view("lb1", 2, 1, true)}, nil},
		"two services of the same are no more": {[]View{view("lb1", 1, 1, false), view("lb1", 1, 1, false)}, nil},
	} {
		if have := servers(Alone(test.views)); !reflect.DeepEqual(have, test.want) {
			t.Errorf("%s: %q, want %q", name, have, test.want)
		}
	}
}

func TestServersThatTheSameLoadBalancersDoNotReachHaveOneCause(t *testing.T) {
	var views []View
	for n := 1; n <= 12; n++ {
		views = append(views, view("lb1", n, 1, false), view("lb2", n, 1, n > 2))
	}
	causes := Seen(views)
	if have := servers(causes); len(have) != 2 || have[0] != "lb1: s10 s11 s12 s3 s4 s5 s6 s7 s8 s9" || have[1] != "lb1 lb2: s1 s2" {
		t.Fatalf("%q", have)
	}
	const want = "10 servers (s10, s11, s12 and 7 more) answer no packet that load balancer lb1 sends in tunnels: their agents are connected, " +
		"most likely a firewall or the network drops IP protocol 4: let it pass from 10.0.1.1 to servers"
	if have := causes[0].Problem(); have != want {
		t.Errorf("%s\nwant\n%s", have, want)
	}
}
