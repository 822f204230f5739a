package e2e

import "testing"

// Promise: a lost SYN or SYN-ACK costs a repetition, not the connection.
func TestLostHandshakesComplete(t *testing.T) {
	result := run(t, "syn-loss")
	if len(result.Trials) != 4 || result.Broken != 0 {
		t.Errorf("%+v", result.Tally)
	}
}
