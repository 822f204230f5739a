package api_test

import (
	"fmt"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// BenchmarkApply is the whole way: over TCP, checked, compared with what runs, and one server changed.
func BenchmarkApply(b *testing.B) {
	const services, servers = 4096, 16
	request := &ballastv1.ApplyRequest{}
	for i := range services {
		s := &ballastv1.Service{Name: fmt.Sprintf("web-%d", i), Vip: fmt.Sprintf("198.18.%d.%d", i/250, i%250+1), Ports: []uint32{80}}
		for j := range servers {
			s.Servers = append(s.Servers, &ballastv1.Server{Address: fmt.Sprintf("10.%d.%d.%d", j, i/250, i%250+1)})
		}
		request.Services = append(request.Services, s)
	}
	fleet, _ := serveFleet(b, &apitest.Memory{})
	if _, err := fleet.Apply(b.Context(), request); err != nil {
		b.Fatal(err)
	}
	weight := uint32(0)
	request.Services[0].Servers[0].Weight = &weight
	for b.Loop() {
		weight = 1 + weight%200
		if answer, err := fleet.Apply(b.Context(), request); err != nil || len(answer.Changes) > 1 {
			b.Fatal(answer, err)
		}
	}
}
