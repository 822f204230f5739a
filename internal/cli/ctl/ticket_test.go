package ctl_test

import (
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

func TestKeysOfTicketsAreListedTurnedAndRevoked(t *testing.T) {
	at := timestamppb.New(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	memory := &apitest.Memory{Tickets: ballastv1.ListTicketKeysResponse{Needed: true, Current: 2, Due: at, Own: []string{"s9"},
		Keys: []*ballastv1.TicketKeyStatus{{Epoch: 1, Made: at, Expires: at}, {Epoch: 2, Made: at}, {Epoch: 3, Made: at}}, Behind: []string{"agent s2 does not have the key of epoch 3 yet"}}}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.expect("tickets", "read until 2026-05-01T12:00:00Z", "tickets are made by it", "read; used from 2026-05-01T12:00:00Z", "ticket use waits: agent s2 does not have",
		"agent s9 was given a key of its own")
	ctl.expect("--json tickets", `"current": 2`, `"behind"`, `"expires"`)
	ctl.refuse("ticket use", "sessions would begin again: agent s2 does not have the key of epoch 3 yet")
	ctl.refuse("ticket use zero", "is not a number")
	ctl.expect("ticket use --force", "epoch 3 is used in place of 2")
	ctl.expect("ticket use 2 --force", "epoch 2 is used in place of 3")
	ctl.refuse("ticket revoke", "--yes")
	ctl.expect("ticket revoke --yes", "all before epoch 9 are revoked")
	ctl.expect("tickets", "tickets are made by it")
	memory = &apitest.Memory{}
	path = filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	(&terminal{t, memory, []string{"ctl", "--socket", path}}).expect("tickets", "no service has session: tls")
}
