package doctor

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

func TestTheSameFaultOfSeveralSubjectsIsToldOnce(t *testing.T) {
	f := healthyFacts(RoleLB)
	web := &f.File.Fleet.Services[0]
	for id := byte(2); id <= 12; id++ {
		address := netip.AddrFrom4([4]byte{10, 0, 0, id})
		web.Servers = append(web.Servers, model.Server{Name: fmt.Sprint("s", id), Address: address, ID: uint16(id), Weight: 1})
		f.Paths[address] = pathFacts{MTU: 1400, Asked: true}
	}
	var bad []Finding
	for _, found := range merged(findings(f)) {
		if found.Severity != OK {
			bad = append(bad, found)
		}
	}
	if len(bad) != 1 || bad[0].Check != "mtu" || bad[0].Subject != "11: web/s2, web/s3, web/s4 and 8 more" {
		t.Errorf("%+v", bad)
	}
}
