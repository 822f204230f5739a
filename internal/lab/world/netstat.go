// TCP's own account of what went wrong, read inside each namespace.
package world

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// netstat reads TCP's counters, RFC 4022's and the extended ones, inside a node's namespace.
func netstat(lab *host.Lab, node string) map[string]uint64 {
	var all []byte
	for _, file := range []string{"snmp", "netstat"} {
		content, err := lab.Space(node).ReadFile("/proc/thread-self/net/" + file)
		script.Checkf(err, "read TCP counters of %s", node)
		all = append(all, content...)
	}
	return parseNetstat(all)
}

// Of MPTCP: what clients count when a connection begins, and when a subflow has joined; and servers, of a subflow that
// joins a connection of another's.
const (
	MPTCPConnections  = "MPCapableSYNACKRX"
	MPTCPJoins        = "MPJoinSynAckRx"
	MPTCPForeignJoins = "MPJoinNoTokenFound"
)

// watchedTCPCounters are those that a wrong timestamp, a lost connection or a wrong server shows in.
var watchedTCPCounters = []string{
	"PAWSActive", "PAWSEstab", "PAWSOldAck", "BeyondWindow", "TSEcrRejected", "PAWSTimewait",
	"TCPTimeouts", "TCPSpuriousRTOs", "TCPAbortOnTimeout", "TCPAbortOnData", "TCPAbortOnClose", "OutRsts", "TCPRetransFail",
	"EmbryonicRsts", "ListenOverflows", "ListenDrops", "SyncookiesSent", "SyncookiesRecv", "SyncookiesFailed", "TCPLossUndo", "TCPFullUndo",
	"TCPOFOQueue", "TCPRcvCollapsed", "TCPSynRetrans", "TCPACKSkippedPAWS", "TCPACKSkippedSeq",
	MPTCPConnections, MPTCPJoins, MPTCPForeignJoins,
}

// parseNetstat picks the watched counters that are not zero out of /proc/net/snmp and /proc/net/netstat.
func parseNetstat(content []byte) map[string]uint64 {
	all := map[string]uint64{}
	scanner := bufio.NewScanner(bytes.NewReader(content))
	scanner.Buffer(nil, 1<<20)
	var names []string
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(names) == len(fields) && names[0] == fields[0] {
			for i := 1; i < len(fields); i++ {
				all[names[i]], _ = strconv.ParseUint(fields[i], 10, 64)
			}
			names = nil
			continue
		}
		names = fields
	}
	watched := map[string]uint64{}
	for _, name := range watchedTCPCounters {
		if value := all[name]; value != 0 {
			watched[name] = value
		}
	}
	return watched
}

// overflowed counts the packets that found a CPU's queue full since the machine started, in all namespaces. 0 where the
// kernel does not tell.
func overflowed() (packets uint64) {
	content, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0
	}
	return parseOverflowed(content)
}

// parseOverflowed adds up the second column of /proc/net/softnet_stat, which has a line for each CPU.
func parseOverflowed(content []byte) (packets uint64) {
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			lost, err := strconv.ParseUint(fields[1], 16, 64)
			if err == nil {
				packets += lost
			}
		}
	}
	return packets
}
