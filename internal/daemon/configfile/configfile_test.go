package configfile

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

const whole = `keys: {placement: 000102030405060708090a0b0c0d0e0f, current: 1, cookie: {1: 00112233445566778899aabbccddeeff}}
services:
  - name: web
    vip: 198.51.100.10
    ports: [80]
    servers:
      - name: s1
        address: 10.9.0.2
        id: 1
      - name: s2
        address: 10.9.0.3
        id: 2
  - name: mail
    vip: 198.51.100.10
    ports: [25]
    servers:
      - name: s1
        address: 10.9.0.2
        id: 1
`

func servers(f *model.Fleet) (count int) {
	for i := range f.Services {
		count += len(f.Services[i].Servers)
	}
	return count
}

// Promise: No file that is cut off, at whatever byte, takes a service or a third of a service's servers away unasked, whether connections live or nobody can tell.
func TestNoPartOfAFileIsTakenForTheWhole(t *testing.T) {
	before, err := config.Parse("whole", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]int{}
	for name, living := range map[string]fleet.Connections{"unknown": {}, "ten": {Live: 10, Known: true}} {
		for n := range len(whole) {
			after, err := config.Parse("part", []byte(whole[:n]))
			if err != nil {
				refused["by its form"]++
				continue
			}
			lost := servers(&after) < servers(&before)
			losses := Losses(&before, &after, func(string, uint16) fleet.Connections { return living })
			if err := (Taking{}).Whole(losses, "lb1"); lost != (err != nil) {
				t.Errorf("%s, cut off after %d bytes, with %d services: %v", name, n, len(after.Services), err)
			} else if lost {
				refused["as cut off"]++
			}
			if err := (Taking{AllowRemove: true}).Whole(losses, "lb1"); err != nil {
				t.Errorf("with the yes: %v", err)
			}
		}
	}
	if refused["by its form"] == 0 || refused["as cut off"] == 0 {
		t.Errorf("nothing was tried: %v", refused)
	}
}

func TestAFileWithoutServicesIsRefusedEvenIfNoConnectionLives(t *testing.T) {
	before, err := config.Parse("whole", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	idle := func(string, uint16) fleet.Connections { return fleet.Connections{Known: true} }
	after := before.Clone()
	after.Services = nil
	if err := (Taking{Force: true}).Whole(Losses(&before, &after, idle), "lb1"); err == nil || !strings.Contains(err.Error(), "every service goes; if that is meant: `ballast ctl --instance lb1 config reload --force --allow-remove` takes it") {
		t.Errorf("all: %v", err)
	}
	after.Services = before.Services[:1]
	if losses := Losses(&before, &after, idle); losses != nil {
		t.Errorf("one without connections: %q", losses)
	}
}
