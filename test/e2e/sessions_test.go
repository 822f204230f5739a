package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Promise: All connections of a TLS session reach one server, while servers, load balancers and keys change;
// without it, sessions move (Yuz III).
// Promise: A HelloRetryRequest does not move a connection: the second ClientHello reaches the server of the first.
func TestConnectionsOfATLSSessionReachOneServer(t *testing.T) {
	logMeasured(t, run(t, "sessions"))
}

// Promise: All connections of a TLS session reach one server with unmodified clients and servers: curl, OpenSSL
// and Python with unchanged nginx, Apache, HAProxy and Dovecot (IMAPS) (Yuz V-A).
// Promise: Early data (0-RTT) of OpenSSL reaches the session's server with its ClientHello, and nginx accepts it.
func TestConnectionsOfATLSSessionReachOneServerOfOthersSoftware(t *testing.T) {
	if !long() {
		t.Skip("servers have to be installed: make test-long")
	}
	preloaded(t, "ticket")
	logMeasured(t, run(t, "sessions-nginx"))
	logMeasured(t, run(t, "sessions-software"))
}

// Promise: Pages of Chromium resume their sessions, though its hellos take two segments and it makes connections
// side by side.
func TestPagesOfABrowserResumeTheirSessions(t *testing.T) {
	if !long() {
		t.Skip("Chromium has to be installed: make test-long")
	}
	preloaded(t, "ticket")
	logMeasured(t, run(t, "sessions-chromium"))
}

// Promise: Connections of `session: tls` are established on servers that have Docker's NAT rules; if the kernel
// resets them, the agent reports it.
// Also held by TestHellosAreResetWhereTheKernelTracksThem and TestResetsOfOthersAreNotThoseOfTheKernel.
func TestConnectionsOfATLSSessionComeToBeOnHostsWithDocker(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nftables:", err)
	}
	logMeasured(t, run(t, "sessions-translation"))
}

// Promise: A ClientHello finds its session's server whichever of its segments is lost, doubled or overtaken.
func TestLostSegmentsOfAHelloAreSentAgain(t *testing.T) {
	logMeasured(t, run(t, "session-loss"))
}

// Promise: An application that keeps sessions in memory, by session: tls, carries more requests than one with
// Redis, or behind proxies with sticky sessions and a sixth of the servers' CPU, where states are large (Yuz IV-B,
// figures 7, 9, 10, 11).
func TestSessionsInMemoryCarryMoreThanInRedisAndBehindProxies(t *testing.T) {
	if !long() {
		t.Skip("measures for three minutes: make test-long")
	}
	logMeasured(t, run(t, "session-benefit"))
}

// Promise: The more requests a session has, and the larger its state is, the more an application that keeps sessions in
// memory gains over one with Redis; and the load of its servers stays even (Yuz IV-B, figures 7, 11, 12).
func TestSessionsInMemoryGainByTheirLengthAndSize(t *testing.T) {
	if !long() {
		t.Skip("measures for a quarter of an hour: make test-long")
	}
	logMeasured(t, run(t, "session-sweep"))
}

// preloaded builds a library that servers preload, beside the binary.
func preloaded(t *testing.T, name string) {
	t.Helper()
	library := filepath.Join(filepath.Dir(binary), "ballast-"+name+".so")
	if said, err := exec.Command("gcc", "-O2", "-shared", "-fPIC", "-o", library, "../../preload/"+name+".c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}
