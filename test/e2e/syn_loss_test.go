package e2e

import "testing"

// Promise: A lost SYN or SYN-ACK costs a repetition, not the connection.
// Promise: A handshake whose SYN or SYN-ACK is lost completes, perhaps on another server.
func TestLostHandshakesComplete(t *testing.T) {
	result := run(t, "syn-loss")
	if len(result.Trials) != 4 || result.Broken != 0 {
		t.Errorf("%+v", result.Tally)
	}
}
