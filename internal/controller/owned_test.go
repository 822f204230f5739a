package controller

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// Promise: Owners of services, and what operators set of their servers, outlive controllers.
func TestOwnersOutliveControllers(t *testing.T) {
	s, ca := storetest.Open(t), fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", s, nil)
	me, kube := ca.Issue(pki.Ctl, "me"), ca.Issue(pki.Source, "kube")
	request := &ballastv1.ApplyServicesRequest{Owner: "kube", Services: []*ballastv1.Service{{Name: "default:web:tcp", Vip: "198.51.100.9", Ports: []uint32{80},
		Servers: []*ballastv1.Server{{Address: "10.0.0.1"}, {Address: "10.0.0.2"}}}}}
	fleettest.Await(t, "the controller knows the state", func() bool { // which it has to read first
		_, err := c.client(kube).ApplyServices(t.Context(), request)
		return err == nil
	})
	_, err := c.client(me).DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "default:web:tcp", Server: "10.0.0.1"})
	fleettest.Require(t, err)
	c.stop()

	c = startController(t, ca, "c2", "127.0.0.1:0", s, nil)
	var answer *ballastv1.ChangeResponse
	fleettest.Await(t, "the next one does", func() bool {
		answer, err = c.client(kube).ApplyServices(t.Context(), request)
		return err == nil
	})
	if len(answer.Changes) > 0 {
		t.Errorf("the same again: %v", answer.Changes)
	}
	apply(t, c.client(me), fleettest.Service("web", 1))
	fleet, err := c.client(me).GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
	fleettest.Require(t, err)
	if len(fleet.Services) != 2 || fleet.Services[0].GetOwner() != "kube" || fleet.Services[0].Servers[0].State != "draining" || fleet.Services[1].GetOwner() != "" {
		t.Errorf("have %v", fleet.Services)
	}
	history, err := c.client(me).ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
	fleettest.Require(t, err)
	if first := history.Changes[0]; first.Name != "kube" || first.Role != string(pki.Source) {
		t.Errorf("the first change was by %s, %s", first.Name, first.Role)
	}
}
