package serving

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Promise: An agent by a file without `tunnels_from` refuses a service with `choices`, with the remedy.
func TestChoicesNeedTheLoadBalancersAddresses(t *testing.T) {
	service := model.NewService()
	service.Name, service.VIP, service.Ports, service.Dispatch = "web", netip.MustParseAddr("198.51.100.1"), []uint16{80}, model.DispatchChoices
	here := model.NewServer()
	here.Name, here.Address = "here", netip.MustParseAddr("127.0.0.1")
	service.Servers = []model.Server{here}
	file := config.File{Path: "a file", Fleet: model.Fleet{Services: []model.Service{service}}}
	wanted, err := plan.NewAgent(&file.Fleet, func(*model.Server) bool { return true })
	progtest.Check(t, err)
	byFile, byControllers := Serving{byFile: true}, Serving{}
	if err := byFile.knowsBalancers(&file.Fleet, &wanted); err == nil || !strings.Contains(err.Error(), "web") || !strings.Contains(err.Error(), "tunnels_from") {
		t.Errorf("by a file without load balancers: %v", err)
	}
	if err := byControllers.knowsBalancers(&file.Fleet, &wanted); err != nil {
		t.Errorf("by controllers: %v", err)
	}
	file.Fleet.TunnelsFrom = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	if err := byFile.knowsBalancers(&file.Fleet, &wanted); err != nil {
		t.Errorf("by a file with load balancers: %v", err)
	}
	file.Fleet.TunnelsFrom, wanted.Choices = nil, nil
	if err := byFile.knowsBalancers(&file.Fleet, &wanted); err != nil {
		t.Errorf("without choices: %v", err)
	}
}
