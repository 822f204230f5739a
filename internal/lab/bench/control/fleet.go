// The fleet that is measured: names, addresses, certificates.
package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

const (
	controllerName = "controller"
	operatorName   = "operator"
	followedName   = "followed" // the service whose dispatch follows the load of its servers
)

// Networks of servers: those of the service that is followed, and those of the many services.
var (
	followedServers = netip.MustParseAddr("10.0.0.1")
	massServers     = netip.MustParseAddr("10.64.0.1")
	massVIPs        = netip.MustParseAddr("198.18.0.1")
)

func lbName(i int) string     { return fmt.Sprintf("lb-%d", i) }
func serverName(i int) string { return fmt.Sprintf("server-%d", i) }

// plus returns an IPv4 address n further.
func plus(address netip.Addr, n int) netip.Addr {
	b := address.As4()
	sum := uint32(b[0])<<24 + uint32(b[1])<<16 + uint32(b[2])<<8 + uint32(b[3]) + uint32(n)
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

func serverOf(first netip.Addr, i int) *ballastv1.Server {
	return &ballastv1.Server{Name: serverName(i), Address: plus(first, i).String(), Id: uint32(i + 1)}
}

// followed is the service whose weights are measured: Spotlight's policy with its 4 classes.
func followed(servers int, rate float64) *ballastv1.Service {
	classes := uint32(model.DefaultClasses)
	s := &ballastv1.Service{Name: followedName, Vip: "198.51.100.1", Ports: []uint32{80}, Dispatch: "awfd",
		Load: &ballastv1.Load{Source: "connections", Interval: durationpb.New(intervalOf(rate)), Classes: &classes}}
	for i := range servers {
		s.Servers = append(s.Servers, serverOf(followedServers, i))
	}
	return s
}

func intervalOf(rate float64) time.Duration { return time.Duration(float64(time.Second) / rate) }

// massServices are many services with the defaults of the configuration.
func massServices(services, serversEach int) (list []*ballastv1.Service) {
	for i := range services {
		s := &ballastv1.Service{Name: fmt.Sprintf("service-%d", i), Vip: plus(massVIPs, i).String(), Ports: []uint32{80}}
		for j := range serversEach {
			server := serverOf(plus(massServers, i*serversEach), j)
			s.Servers = append(s.Servers, server)
		}
		list = append(list, s)
	}
	return list
}

// certify makes the authority and everybody's certificates.
func certify(ctx context.Context, dir string, o *Options) error {
	if err := pki.Init(dir, pki.DefaultAuthorityLife, false); err != nil {
		return err
	}
	requests := []pki.Request{{Role: pki.Controller, Name: controllerName}, {Role: pki.Ctl, Name: operatorName}}
	for i := range o.LoadBalancers {
		requests = append(requests, pki.Request{Role: pki.LB, Name: lbName(i)})
	}
	for i := range o.Servers {
		requests = append(requests, pki.Request{Role: pki.Agent, Name: serverName(i)})
	}
	workers := runtime.NumCPU()
	failed := make([]error, workers)
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			for i := worker; i < len(requests) && failed[worker] == nil && ctx.Err() == nil; i += workers {
				failed[worker] = pki.Issue(dir, requests[i])
			}
		})
	}
	group.Wait()
	return errors.Join(append(failed, ctx.Err())...)
}
