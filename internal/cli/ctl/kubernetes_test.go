package ctl_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Promise: `ballast ctl` takes the names that Services and Gateways have in Kubernetes, wherever a service is named, and people read these, while
// programs read names of the fleet; where a name is of several, it names these.
func TestServicesHaveTheirNamesOfKubernetes(t *testing.T) {
	memory := &apitest.Memory{}
	_, handler := api.NewFleetHandler(memory)
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(api.WithCaller(r.Context(), api.Caller{Name: "kube", Role: string(pki.Source)})))
	}))
	defer source.Close()
	var services []*ballastv1.Service
	for _, name := range []string{"default:web:tcp", "east:default:api:tcp", "default:edge:tcp:80", "default:edge:tcp:443", "default:dns:tcp", "default:dns:udp", "my-default:only:tcp"} {
		s := &ballastv1.Service{Name: name, Vip: "198.51.100.10", Ports: []uint32{uint32(1000 + len(services))}, Servers: []*ballastv1.Server{{Name: "n1", Address: "10.0.0.1"}}}
		services = append(services, s)
	}
	_, err := api.NewFleetClient([]string{source.Listener.Addr().String()}, nil).ApplyServices(t.Context(), &ballastv1.ApplyServicesRequest{Owner: "kube", Services: services})
	fleettest.Require(t, err)
	server := api.NewServer()
	server.HandleRaw(api.NewFleetHandler(memory))
	server.Otherwise("this is a controller")
	socket := filepath.Join(t.TempDir(), "ctl.sock")
	serves(t, server, socket)
	for line, want := range map[string]string{
		"service show default/web":                  "default/web/tcp",
		"service show default/api":                  "east/default/api/tcp",
		"service show east/default/api":             "east/default/api/tcp",
		"service show east/default/api/tcp":         "east/default/api/tcp",
		"service show default/edge/tcp/443":         "default/edge/tcp/443",
		"service show default/dns/udp":              "default/dns/udp",
		"service show default:dns:udp":              "default/dns/udp",
		"server list default/web":                   "default/web/tcp",
		"servers default/web":                       "default/web/tcp",
		"server show default/web n1":                "default/web/tcp",
		"server drain default/web n1":               "service default/web/tcp: no server is left",
		"service show default/dns":                  "default/dns is several services: name one of default/dns/tcp, default/dns/udp",
		"service show default/edge/tcp":             "name one of default/edge/tcp/80, default/edge/tcp/443",
		"service list":                              "default/edge/tcp/443",
		"service list -o json":                      `"default:edge:tcp:443"`,
		"service show default/web -o json":          `"default:web:tcp"`,
		"service show default/web -o yaml":          "default:web:tcp",
		"fleet show":                                "name: default:web:tcp", // what apply takes
		"server drain default/dns/tcp n1 --dry-run": "service default/dns/tcp",
		"service show default/only":                 "the fleet has no service of Kubernetes' default/only: see `ballast ctl service list`",
		"service show default/w.b":                  "the fleet has no service of Kubernetes' default/w.b",
		"trace --service default/nothing":           "the fleet has no service of Kubernetes' default/nothing",
		"suspect add --service a/b --client ::1":    "the fleet has no service of Kubernetes' a/b",
		"server weight default/nothing n1 3":        "the fleet has no service of Kubernetes' default/nothing",
	} {
		var out bytes.Buffer
		root := cli.Root("test")
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetIn(strings.NewReader(""))
		command.Main(root, append([]string{"ctl", "--socket", socket}, strings.Fields(line)...), &out)
		output := out.String()
		if !strings.Contains(output, want) {
			t.Errorf("%s: %q, without %q", line, output, want)
		}
		if derived := regexp.MustCompile(`[a-z]+:[a-z]+:(tcp|udp)`); strings.Contains(want, "/") && derived.MatchString(output) {
			t.Errorf("%s: %q names %s", line, output, derived.FindString(output))
		}
	}
}
