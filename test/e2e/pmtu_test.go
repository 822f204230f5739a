package e2e

import "testing"

// Promise: a smaller MTU on the way to a server or to a client is found out, not stumbled over.
func TestTransfersCompleteAcrossSmallerMTU(t *testing.T) {
	result := run(t, "pmtu")
	if len(result.Trials) != 6 || result.Broken != 0 {
		t.Errorf("%+v", result.Tally)
	}
}
