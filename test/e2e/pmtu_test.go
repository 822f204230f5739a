package e2e

import "testing"

// Promise: A smaller MTU on the way to a server or to a client is found out, not stumbled over.
// Promise: A packet that is too big for the path to its server is answered with the MTU that fits.
// Also held by TestPacketsThatDoNotFitAreAnsweredWithTheMTUThatWould.
// Public: cilium/cilium#34380 (messages that a packet is too big go to another backend).
func TestTransfersCompleteAcrossSmallerMTU(t *testing.T) {
	result := run(t, "pmtu")
	if len(result.Trials) != 6 || result.Broken != 0 {
		t.Errorf("%+v", result.Tally)
	}
}
