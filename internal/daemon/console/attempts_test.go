package console

import (
	"fmt"
	"testing"
	"time"
)

func TestAnAddressPausesAfterTenWrongTokensAndIsReportedOnceAnHour(t *testing.T) {
	var a attempts
	now, reports := time.Now(), 0
	for n := range 3000 {
		if paused := a.pauses("192.0.2.1", now); paused != (n >= 10) {
			t.Fatalf("after %d wrong tokens: pauses %v", n, paused)
		}
		if a.wrong("192.0.2.1", now) {
			reports++
		}
	}
	if reports != 1 || a.pauses("192.0.2.2", now) {
		t.Errorf("%d reports; another address pauses: %v", reports, a.pauses("192.0.2.2", now))
	}
	if now = now.Add(attemptsPause); a.pauses("192.0.2.1", now) {
		t.Error("it pauses for longer than a minute")
	}
	if now = now.Add(attemptsReport); !a.wrong("192.0.2.1", now) {
		t.Error("an hour later it is not reported")
	}
	for n := range 5000 {
		a.wrong(fmt.Sprint("host", n), now)
	}
	if len(a.by) > attemptsAddress {
		t.Errorf("%d addresses are remembered", len(a.by))
	}
}
