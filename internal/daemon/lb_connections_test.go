package daemon_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/model"
)

// tableFile is lbFile with a table of 63 entries, and s2 as scrubber.
var tableFile = strings.NewReplacer("ports: [80]", "ports: [80], affinity: table, table: {entries: 64, idle_timeout: 1m, scrubber: s2}",
	"id: 2}%s", "id: 2, weight: 0}").Replace(lbFile)

var (
	tableVIP    = netip.MustParseAddr("198.51.100.10")
	tableClient = netip.MustParseAddrPort("203.0.113.7:1024")

	tableNetwork = netip.MustParsePrefix("203.0.113.0/24") // of the client
)

// tableKey is the service's, of keys as in lbFile: 16 bytes, each so much above the one before.
func tableKey(step byte) cookie.Key {
	var key [16]byte
	for i := range key {
		key[i] = byte(i) * step
	}
	return cookie.ServiceKey(key, tableVIP, model.ProtocolTCP)
}

// say sends a packet of a client's connection to s1, whose server uses an index of the table; 0: none.
func (h *lbHost) say(client netip.AddrPort, index uint16, fin bool) {
	h.t.Helper()
	layout := conntable.Layout{IndexBits: model.DefaultIndexBits, IDBits: model.DirectCookieBits - 1 - model.DefaultIndexBits}
	hash := cookie.FlowHash(tableKey(0x11), client, 80)
	stamps := binary.BigEndian.AppendUint32(nil, 1)
	stamps = binary.BigEndian.AppendUint32(stamps, uint32(cookie.Encode(model.DirectCookieBits, 1, layout.Join(0, index, 1), hash)))
	h.send(client, &layers.TCP{ACK: true, FIN: fin, Options: []layers.TCPOption{
		{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop},
		{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: stamps}}})
}

// send sends a packet of a client to the VIP.
func (h *lbHost) send(client netip.AddrPort, tcp *layers.TCP) {
	h.t.Helper()
	h.sendTo(client, 80, tcp)
}

// sendTo sends to a port of the VIP.
func (h *lbHost) sendTo(client netip.AddrPort, port uint16, tcp *layers.TCP) {
	h.t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: client.Addr().AsSlice(), DstIP: tableVIP.AsSlice()}
	tcp.SrcPort, tcp.DstPort = layers.TCPPort(client.Port()), layers.TCPPort(port)
	var here *net.Interface
	require(h.t, h.space.Do(func() (err error) { here, err = net.InterfaceByName("eth0"); return err }))
	buffer := gopacket.NewSerializeBuffer()
	require(h.t, errors.Join(tcp.SetNetworkLayerForChecksum(ip),
		gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: here.HardwareAddr, EthernetType: layers.EthernetTypeIPv4}, ip, tcp)))
	require(h.t, h.peer.Do(func() error {
		there, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		return unix.Sendto(socket, buffer.Bytes(), 0, &unix.SockaddrLinklayer{Ifindex: there.Index})
	}))
}

func (h *lbHost) connections(query api.ConnectionQuery) (answer api.Connections, err error) {
	err = h.client.Get(h.t.Context(), api.PathConnections+"?"+query.Values().Encode(), &answer)
	return answer, err
}

// awaitConnection waits for the one connection there is to be as wanted.
func (h *lbHost) awaitConnection(what string, done func(api.Connection) bool) (one api.Connection) {
	h.t.Helper()
	await.Nil(h.t, what, func() error {
		answer, err := h.connections(api.ConnectionQuery{})
		if err != nil || len(answer.Connections) != 1 || !done(answer.Connections[0]) {
			return fmt.Errorf("%+v, %v", answer, err)
		}
		one = answer.Connections[0]
		return nil
	})
	return one
}

func TestConnectionsAreShownFlaggedSweptAndLogged(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitFileAfter(tableFile)
	h.say(tableClient, 0, false)
	seen := h.awaitConnection("the connection", func(c api.Connection) bool { return c.State == "new" })
	_, index := conntable.Index(seen.Entry, model.DefaultIndexBits)
	h.say(tableClient, index, false)
	seen = h.awaitConnection("its second packet", func(c api.Connection) bool { return c.State == "open" && c.Packets == 2 })
	if seen.Client != tableClient || seen.Server != "s1" || seen.ID != 1 || seen.Service != "web" || seen.Bytes != 2*52 || seen.Suspect {
		t.Errorf("shown is %+v", seen)
	}
	_, err := h.post(api.PathSuspects, api.Suspect{Service: "web", Client: netip.MustParsePrefix("::ffff:203.0.113.0/120"), For: 3600})
	require(t, err)
	h.expectQueries()
	h.kill()
	h.start()
	h.await("the next daemon", func(s api.LBStatus) bool { return s.Ready })
	h.say(tableClient, index, false)
	h.awaitConnection("a packet to the next daemon", func(c api.Connection) bool { return c.State == "open" && c.Packets == 3 && c.Suspect })
	var suspects []api.Suspect
	require(t, h.client.Get(t.Context(), api.PathSuspects, &suspects))
	if len(suspects) != 1 || suspects[0].Client != tableNetwork || time.Until(suspects[0].Until) < 50*time.Minute {
		t.Errorf("suspects of the next daemon: %v", suspects)
	}
	var cleared api.Changed
	require(t, h.client.Do(t.Context(), http.MethodDelete, api.PathSuspects, api.Suspect{Service: "web", Client: tableNetwork}, &cleared))
	h.awaitConnection("the suspicion to go", func(c api.Connection) bool { return !c.Suspect })
	h.awaitFile(h.write(strings.Replace(tableFile, "idle_timeout: 1m", "idle_timeout: 1s", 1)))
	h.expectLogged()
}

// Who waits for a server to drain must not take a connection for ended whose beginning nobody here has seen.
func TestPacketsOfConnectionsThatBeganElsewhereAreToldOf(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitFileAfter(tableFile)
	awaitActivity := func(what string, above uint64) (activity uint64) {
		await.True(t, what, func() bool {
			list, err := h.client.Fleet().ListServers(t.Context(), &ballastv1.ListServersRequest{Service: "web"})
			require(t, err)
			s1 := list.Servers[0]
			activity = s1.Activity
			return list.OneNode && s1.Connections != nil && *s1.Connections == 0 && activity > above
		})
		return activity
	}
	first := awaitActivity("the first report", 0)
	h.say(tableClient, 0, false)
	awaitActivity("a packet", first)
}

// expectQueries looks for the connection by filters that it passes and others that it does not.
func (h *lbHost) expectQueries() {
	h.t.Helper()
	for want, queries := range map[uint64][]api.ConnectionQuery{
		1: {{}, {Service: "web", Server: "s1", State: "open", Client: netip.MustParsePrefix("203.0.113.7/32"), MinPackets: 2, MinBytes: 104, Suspects: true, Sort: "idle", Limit: 1}},
		0: {{Server: "s2"}, {State: "new"}, {Client: netip.MustParsePrefix("203.0.113.8/32")}, {MinPackets: 3}, {MinBytes: 105}, {MinAge: 3600}, {MinIdle: 3600}},
	} {
		for _, query := range queries {
			answer, err := h.connections(query)
			if err != nil || answer.Matched != want || len(answer.Connections) != int(want) || len(answer.Tables) != 1 {
				h.t.Errorf("%+v: %+v, %v", query, answer, err)
				continue
			}
			table := answer.Tables[0]
			if table.Entries != 63 || table.Used != 1 || table.Free != 62 || table.Open != 1 || table.Suspects != 1 || len(table.Servers) != 1 || table.Servers[0].Packets != 2 {
				h.t.Errorf("%+v: table %+v", query, table)
			}
		}
	}
	for want, query := range map[string]api.ConnectionQuery{"ballast ctl service list": {Service: "none"}, "ballast ctl server list": {Server: "none"},
		"use new, open": {State: "none"}, "use packets, bytes": {Sort: "none"}, "ask for 1 to": {Limit: -1}} {
		if _, err := h.connections(query); err == nil || !strings.Contains(err.Error(), want) {
			h.t.Errorf("%+v: %v, which does not say %q", query, err, want)
		}
	}
	for want, suspect := range map[string]api.Suspect{"by the family of its VIP": {Service: "web", Client: netip.MustParsePrefix("::1/128")}, "name a client": {Service: "web"},
		"292 years": {Service: "web", Client: tableNetwork, For: 1e10}, "-1 seconds": {Service: "web", Client: tableNetwork, For: -1},
		"96 bits or more": {Service: "web", Client: netip.MustParsePrefix("::ffff:203.0.113.0/24")}} {
		if _, err := h.post(api.PathSuspects, suspect); err == nil || !strings.Contains(err.Error(), want) {
			h.t.Errorf("%+v: %v, which does not say %q", suspect, err, want)
		}
	}
}

// awaitLogged waits for a line of the flow log.
func (h *lbHost) awaitLogged() (line api.EndedConnection) {
	h.t.Helper()
	await.True(h.t, "a line is logged", func() bool {
		text, err := os.ReadFile(filepath.Join(h.dir, "flows.json"))
		if err != nil || !bytes.HasSuffix(text, []byte("\n")) {
			return false
		}
		require(h.t, json.Unmarshal(text, &line))
		return true
	})
	return line
}

// expectLogged waits for the connection to be silent for long enough.
func (h *lbHost) expectLogged() {
	h.t.Helper()
	line := h.awaitLogged()
	if line.Client != tableClient || line.Service != "web" || line.Server != "s1" || line.Reason != "idle" || line.Packets != 3 || line.Bytes != 3*52 || line.Node == "" ||
		line.Last.Before(line.First) || time.Since(line.Last) > hostDeadline || time.Since(line.Last) < time.Second {
		h.t.Errorf("logged is %+v", line)
	}
	// The line is there a moment before it is counted.
	await.Nil(h.t, "it is counted", func() error {
		text := h.metrics()
		missing := slices.DeleteFunc([]string{`ballast_table_capacity{service="web"} 63`, `ballast_table_entries{service="web",state="free"} 63`,
			`ballast_table_ended_total{reason="idle",service="web"} 1`, `ballast_flow_log_records_total 1`, `ballast_flow_log_dropped_total{where="datapath"} 0`},
			func(want string) bool { return strings.Contains(text, want) })
		if len(missing) > 0 {
			return fmt.Errorf("missing: %q", missing)
		}
		return nil
	})
}

func TestAConnectionWhoseIndexIsNeededIsLogged(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitFileAfter(strings.Replace(tableFile, "entries: 64", "entries: 64, index_bits: 1", 1))
	const partitions = conntable.BlockEntries / 2
	key := tableKey(1)
	partition := func(client netip.AddrPort) uint32 {
		return conntable.PartitionOf(conntable.Hash(key.K0, key.K1, client, 80), partitions)
	}
	other := tableClient
	for other == tableClient || partition(other) != partition(tableClient) {
		other = netip.AddrPortFrom(other.Addr(), other.Port()+1)
	}
	h.say(tableClient, 0, false)
	h.say(tableClient, 0, true)
	h.awaitConnection("its end", func(c api.Connection) bool { return c.State == "finished" })
	h.say(other, 0, false)
	if line := h.awaitLogged(); line.Client != tableClient || line.Reason != "fin" || !line.Reclaimed || line.Packets != 2 || line.Service != "web" || line.Server != "s1" {
		t.Errorf("logged is %+v", line)
	}
	h.awaitConnection("its successor", func(c api.Connection) bool { return c.State == "new" && c.Client == other })
}

func TestServicesWithoutATableSaySo(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	if answer, err := h.connections(api.ConnectionQuery{}); err != nil || len(answer.Tables) != 0 {
		t.Errorf("%+v, %v", answer, err)
	}
	_, err := h.connections(api.ConnectionQuery{Service: "web"})
	if err == nil || !strings.Contains(err.Error(), "affinity cookie, and no table") {
		t.Error(err)
	}
	_, err = h.post(api.PathSuspects, api.Suspect{Service: "web", Client: netip.MustParsePrefix("203.0.113.7/32")})
	if err == nil || !strings.Contains(err.Error(), "give it affinity table") {
		t.Error(err)
	}
	h.awaitFile(h.write(strings.Replace(tableFile, ", scrubber: s2", "", 1)))
	_, err = h.post(api.PathSuspects, api.Suspect{Service: "web", Client: netip.MustParsePrefix("203.0.113.7/32")})
	if err == nil || !strings.Contains(err.Error(), "has no scrubber") {
		t.Error(err)
	}
}

func TestTheFirstTierSaysWhoHasTheTables(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newTierHost(t, "first-lb")
	h.awaitFileAfter(fmt.Sprintf(tierFile, "10.9.0.2"))
	_, err := h.connections(api.ConnectionQuery{Service: "web"})
	if err == nil || !strings.Contains(err.Error(), "in the tables of the second: ask its nodes") {
		t.Error(err)
	}
	_, err = h.connections(api.ConnectionQuery{Server: "s1"})
	if err == nil || !strings.Contains(err.Error(), "of service web are in the tables of the second") {
		t.Error(err)
	}
	if answer, err := h.connections(api.ConnectionQuery{}); err != nil || len(answer.Tables) != 0 || !slices.Equal(answer.SecondTier, []string{"web"}) {
		t.Errorf("%+v, %v", answer, err)
	}
	_, err = h.post(api.PathSuspects, api.Suspect{Service: "web", Client: netip.MustParsePrefix("203.0.113.7/32")})
	if err == nil || !strings.Contains(err.Error(), "ask its nodes") {
		t.Error(err)
	}
}
