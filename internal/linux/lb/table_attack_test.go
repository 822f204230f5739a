package lb

import (
	"encoding/binary"
	"math"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/model"
)

// attacked is a table under attack, with connections that have entries and must not suffer.
type attacked struct {
	*world
	bench      *wrapper.Wrapper
	legitimate []*talk
	before     map[verdictKey]uint64
	sent       uint64 // packets since
}

// underAttack is a table of 1008 connections, of which some are legitimate.
func underAttack(t *testing.T, change func(*model.Service)) *attacked {
	w := newWorld(t, tableOf("web", vip4, func(s *model.Service) {
		s.Table.Entries = 1024
		if change != nil {
			change(s)
		}
	}))
	t.Cleanup(w.forgetAssignments)
	b, err := wrapper.Open()
	mustSet(err)
	t.Cleanup(func() { mustSet(b.Close()) })
	a := &attacked{world: w, bench: b}
	for n := range 100 {
		c := w.talkTo(flowTo(vip4, 443, n), uint16(1+n%3))
		c.send(ack, lbVerdictFORWARDED_ADDED)
		c.send(ack, lbVerdictFORWARDED_BY_TABLE)
		a.legitimate = append(a.legitimate, c)
	}
	a.before = w.verdicts()
	return a
}

// flood lets the kernel send so many packets that it makes up, and a packet of a legitimate connection now and then.
func (a *attacked) flood(cell wrapper.Cell, packets int, seed uint64) {
	a.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const rounds = 10
	mustSet(a.bench.Put(a.lb.Program()))
	for round := range rounds {
		mustSet(a.bench.List(&cell, cell.Draw(uint32(packets/rounds), seed+uint64(round)), nil))
		run, err := a.bench.Run(uint32(packets / rounds))
		if err != nil || run.Surprises > 0 {
			a.Fatalf("%d surprises, %v", run.Surprises, err)
		}
		a.sent += run.Runs + run.Discarded
		for _, c := range a.legitimate {
			a.expectUnharmed(c)
		}
	}
}

// expectUnharmed sends a packet of a connection that has an entry.
func (a *attacked) expectUnharmed(c *talk) {
	a.Helper()
	got := a.runBare(c.frame(c.tcp(ack, timestamps(5, c.echo), nil)))
	_, _, id := c.plainIn(c.echo)
	if to := serverOf(id, false).Address; netip.AddrFrom4([4]byte(got[30:34])) != to || echoIn(got) != c.echo {
		a.Fatalf("a packet for %s: %x", to, got)
	}
}

// runBare is run without a look at the counters.
func (a *attacked) runBare(frame []byte) []byte {
	a.Helper()
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	if _, err := a.lb.Program().Run(&options); err != nil {
		a.Fatal(err)
	}
	a.sent++
	return options.DataOut
}

// counted returns what packets since the beginning were counted as, all of them.
func (a *attacked) counted() map[lbVerdict]uint64 {
	a.Helper()
	counts, all := map[lbVerdict]uint64{}, uint64(0)
	for key, packets := range a.verdicts() {
		if delta := packets - a.before[key]; delta > 0 {
			counts[key.verdict] += delta
			all += delta
		}
	}
	if all != a.sent {
		a.Errorf("%d packets were counted of %d: %v", all, a.sent, counts)
	}
	return counts
}

// expectEntries holds the table to be sound, and to have so many entries in use.
func (a *attacked) expectEntries(least, most uint64) {
	a.Helper()
	state := a.stateOfTable("web")
	if owned := state.Owned(); owned < least || owned > most || len(state.Faults()) > 0 {
		a.Errorf("%d entries are in use, want %d to %d; faults %v", owned, least, most, state.Faults())
	}
}

func TestAFloodOfSYNsTakesNoEntry(t *testing.T) {
	packets := 100_000
	if os.Getenv("BALLAST_LONG") != "" {
		packets = 10_000_000
	}
	a := underAttack(t, nil)
	cell := a.benchCell(syn, 1<<24)
	cell.CookieBits = 0
	a.flood(cell, packets, seeded(t).Uint64())
	a.expectEntries(100, 100)
	if counts := a.counted(); counts[lbVerdictFORWARDED_NEW] != uint64(packets) || counts[lbVerdictFORWARDED_BY_TABLE] != a.sent-uint64(packets) {
		t.Errorf("%v", counts)
	}
}

// A cookie that is drawn at random is somebody's with a chance of one in so many: parity of a key that there is, times the ids that servers
// have. Only those take an entry, and each flow but one.
func TestForgedCookiesTakeAsManyEntriesAsAreGuessed(t *testing.T) {
	random := seeded(t)
	a := underAttack(t, func(s *model.Service) { s.Table.Entries = 1 << 11 })
	s := service(&a.want, "web")
	layout := layoutOf(s)
	chance := 0.5 * float64(len(s.Servers)) / float64(uint64(1)<<layout.IDBits)
	const packets = 20_000
	for n := range packets {
		f := flow{netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, byte(n >> 16), byte(n >> 8), byte(n)}), uint16(random.Uint32())), netip.AddrPortFrom(vip4, 443)}
		a.runBare(f.frame(f.tcp(ack, timestamps(5, random.Uint32()|1<<31), nil)))
	}
	for _, c := range a.legitimate {
		a.expectUnharmed(c)
	}
	counts := a.counted()
	expected := chance * packets
	guessed := float64(counts[lbVerdictFORWARDED_ADDED] + counts[lbVerdictFORWARDED_BY_COOKIE] + counts[lbVerdictFORWARDED_TABLE_FULL])
	if math.Abs(guessed-expected) > 6*math.Sqrt(expected) {
		t.Errorf("%.0f cookies were guessed, expected %.0f: %v", guessed, expected, counts)
	}
	if counts[lbVerdictFORWARDED_BY_TABLE] != 100 || counts[lbVerdictFORWARDED_BAD_COOKIE] != packets-uint64(guessed) {
		t.Errorf("%v", counts)
	}
	a.expectEntries(100, 100+counts[lbVerdictFORWARDED_ADDED])
	t.Logf("expected %.0f of %d, guessed %.0f: %v", expected, packets, guessed, counts)
}

// Packets of others' connections that somebody has seen and sends again are the connection's own, as anybody could tell: they count, and
// change neither its server nor anybody else's entry. From another address they are forged.
func TestPacketsThatAreSentAgainHarmNobody(t *testing.T) {
	a := underAttack(t, nil)
	random := seeded(t)
	for range 2000 {
		c := a.legitimate[random.IntN(len(a.legitimate))]
		spoofed := flow{netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 1, byte(random.Uint32()), byte(random.Uint32())}), c.client.Port()), c.flow.service}
		flags := []byte{ack, fin | ack, rst}[random.IntN(3)]
		a.runBare(spoofed.frame(spoofed.tcp(flags, timestamps(5, c.echo), nil)))
	}
	for _, c := range a.legitimate {
		a.expectUnharmed(c)
		if state := a.stateOf(c); state != conntable.StateOpen {
			t.Fatalf("%s is %s", c.client, state)
		}
	}
	counts := a.counted()
	a.expectEntries(100, 100+counts[lbVerdictFORWARDED_ADDED])
}

// Without the key a FIN finds an entry only by chance, and then it must be of the connection's own address, port and cookie.
func TestAFloodOfFINsEndsNobodysConnection(t *testing.T) {
	a := underAttack(t, nil)
	random := seeded(t)
	for _, flags := range []byte{fin | ack, rst} {
		cell := a.benchCell(flags, 1<<24) // with valid cookies, even, of connections that never were
		a.flood(cell, 20_000, random.Uint64())
	}
	spoofed := 0
	for range 5_000 { // from the addresses of those that there are, with cookies that are guessed
		c := a.legitimate[random.IntN(len(a.legitimate))]
		echo := random.Uint32()
		if plain, ok := a.plainOf(service(&a.want, "web"), &refPacket{source: c.client.Addr(), sport: c.client.Port(), dport: 443}, echo); ok {
			if _, _, id := layoutOf(service(&a.want, "web")).Split(plain); id == a.serverOf(c) {
				spoofed++ // an attacker who guesses the server's id may find the entry, by its tag or by nothing
				continue
			}
		}
		a.runBare(c.frame(c.tcp(fin|ack, timestamps(5, echo), nil)))
	}
	for _, c := range a.legitimate {
		a.expectUnharmed(c)
		if state := a.stateOf(c); state != conntable.StateOpen {
			t.Fatalf("%s is %s", c.client, state)
		}
	}
	a.expectEntries(100, 100)
	counts := a.counted()
	t.Logf("%d guesses were left out; %v", spoofed, counts)
}

func (a *attacked) serverOf(c *talk) uint16 {
	_, _, id := c.plainIn(c.echo)
	return id
}

// With cookies that are valid, which takes a handshake each, a flood fills the table: who has an entry keeps it, who comes keeps its server.
func TestATableThatIsFullHarmsNobody(t *testing.T) {
	a := underAttack(t, nil)
	random := seeded(t)
	a.flood(a.benchCell(ack, 1<<20), 60_000, random.Uint64())
	entries, _, _ := a.tableMemory("web")
	places := uint64(len(entries) - len(entries)/conntable.BlockEntries)
	a.expectEntries(places, places)
	for n := range 300 {
		c := a.talkTo(flowTo(vip4, 443, 1000+n), uint16(1+n%3))
		before := c.echo
		out := a.runBare(c.frame(c.tcp(ack, timestamps(5, c.echo), nil)))
		if to := serverOf(uint16(1+n%3), false).Address; netip.AddrFrom4([4]byte(out[30:34])) != to || echoIn(out) != before {
			t.Fatalf("a new connection to %s: %x", to, out)
		}
	}
	counts := a.counted()
	if counts[lbVerdictFORWARDED_TABLE_FULL] < 50_000 || counts[lbVerdictFORWARDED_ADDED] != places-100 {
		t.Errorf("%v", counts)
	}
	t.Log(counts)
	table := a.table("web") // the flood is over: nobody uses its indices, and they are swept
	a.lb.Connections().Sweep(table, 0, table.Blocks, &connections.SweepRules{Limits: conntable.Limits{Idle: 1 << 40}}, nil)
	a.expectEntries(100, 100)
	c := a.talkTo(flowTo(vip4, 443, 5000), 2)
	if out := a.runBare(c.frame(c.tcp(ack, timestamps(5, c.echo), nil))); echoIn(out) == c.echo {
		t.Error("no entry after the flood")
	}
}

// Floods of everything at once, packets cut and garbled among them: whatever it is, it is counted once and the table stays sound.
func TestAnyFloodLeavesASoundTable(t *testing.T) {
	a := underAttack(t, nil)
	random := seeded(t)
	for range 5000 {
		c := a.legitimate[random.IntN(len(a.legitimate))]
		frame := c.frame(c.tcp([]byte{ack, syn, fin | ack, rst, byte(random.Uint32())}[random.IntN(5)], timestamps(5, c.echo), nil))
		for range random.IntN(4) {
			frame[14+random.IntN(len(frame)-14)] = byte(random.Uint32())
		}
		if random.IntN(4) == 0 {
			binary.BigEndian.PutUint32(frame[len(frame)-4:], c.echo^uint32(random.Uint32N(1<<13)))
		}
		a.runBare(frame[:14+random.IntN(len(frame)-13)])
	}
	a.counted()
	state := a.stateOfTable("web")
	if faults := state.Faults(); len(faults) > 0 {
		t.Error(faults)
	}
}
